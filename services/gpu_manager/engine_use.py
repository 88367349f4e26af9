"""One holder's use of an engine, and its refusal."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from math import inf
from typing import Any, TypeVar

from shared.runtime.units import Seconds

T = TypeVar("T")


class NotServed(Exception):
    """An action gets no engine. The text says why."""

    def __init__(self, reason: str, retry_in_s: Seconds | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_in_s = retry_in_s
        """Seconds before which a retry is useless; None: it is useless before something is changed."""


@dataclass(slots=True)
class EngineUse:
    """One holder's use of an engine."""

    decided: asyncio.Future[None]
    """Done when the machine has admitted or refused it."""
    refused: asyncio.Future[NotServed]
    """Done if it was refused, or the engine is taken away."""
    ok: bool = False
    """The engine has served it. Set by the holder."""
    failed: bool = False
    """The engine has failed its call. Set by the holder."""
    ends_s: Seconds = inf
    """Time by which the engine has to answer. Set by the holder."""

    def decide(self) -> None:
        """End its wait. A holder that is cancelled at this moment waits no more."""
        if not self.decided.done():
            self.decided.set_result(None)

    def refuse(self, error: NotServed) -> None:
        """Refuse it, or take the engine away."""
        if not self.refused.done():
            self.refused.set_result(error)
            self.decide()


async def unless_refused(call: Coroutine[Any, Any, T], holding: EngineUse) -> T:
    """Await a call, and cancel it if the engine is taken away. A call that has ended before is valid.

    It is no task of its own, because tasks cost two turns of the event loop. A call that is being cancelled already is
    not disturbed: it ends its processes.

    Raises:
        NotServed: the engine was taken away. The call has ended.
    """
    loop, working = asyncio.get_running_loop(), asyncio.current_task()
    limit = asyncio.timeout(None)
    ended = taken = False

    def take(_: asyncio.Future[NotServed]) -> None:
        nonlocal taken
        if not ended and working is not None and not working.cancelling():
            taken = True
            limit.reschedule(loop.time())

    holding.refused.add_done_callback(take)
    try:
        async with limit:
            try:
                result = await call
            finally:
                ended = True
    except Exception:
        if taken and limit.expired():
            raise holding.refused.result() from None
        raise
    finally:
        holding.refused.remove_done_callback(take)
    if taken and limit.expired():  # it was cancelled, and returned something
        raise holding.refused.result()
    return result
