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

    admitted: asyncio.Future[None]
    refused: asyncio.Future[NotServed]
    """Done if the engine is taken away."""
    ok: bool = False
    """The engine has served it. Set by the holder."""
    ends_s: Seconds = inf
    """Time by which the engine has to answer. Set by the holder."""


async def unless_refused(call: Coroutine[Any, Any, T], holding: EngineUse) -> T:
    """Await a call, and cancel it if the engine is taken away. A call that has ended before is valid.

    It is no task of its own, because tasks cost two turns of the event loop.

    Raises:
        NotServed: the engine was taken away. The call has ended.
    """
    loop, taken = asyncio.get_running_loop(), False
    limit = asyncio.timeout(None)

    def take(_: asyncio.Future[NotServed]) -> None:
        nonlocal taken
        if not ended:
            taken = True
            limit.reschedule(loop.time())

    ended = False
    holding.refused.add_done_callback(take)
    try:
        async with limit:
            try:
                return await call
            finally:
                ended = True
    except TimeoutError:
        if not (taken and limit.expired()):
            raise
        raise holding.refused.result() from None
    finally:
        holding.refused.remove_done_callback(take)
