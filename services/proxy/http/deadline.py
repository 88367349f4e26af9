"""The deadline of reads: a caller gets an error within seconds if Valkey does not answer.

The deadline measures silence. A long page of results may take longer while Valkey sends replies. A submission waits
longer, for a restart of Valkey (`submit_retry_s`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from redis.asyncio import Redis
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.proxy.state import ProxyState
from shared.bus.wire import PipelinedRedis
from shared.runtime.errors import Unavailable
from shared.runtime.units import Seconds

SECOND_LOOK_S: Final[Seconds] = 0.05
"""A busy event loop runs timers before it reads the replies that have arrived. So silence is checked twice."""


class ReadDeadline:
    """Ends a block if Valkey sends nothing for `deadline_s`. Silence before the block does not count."""

    def __init__(self, redis: Redis, deadline_s: Seconds, wait_s: Seconds) -> None:
        self._redis = redis
        self._deadline_s = deadline_s
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time() + wait_s
        self._suspected = False
        self.limit = asyncio.timeout(None)
        self._timer = self._loop.call_later(wait_s + deadline_s, self._look)

    def lift(self) -> None:
        """Remove the deadline."""
        self._timer.cancel()

    def _look(self) -> None:
        replied = self._redis.replied if isinstance(self._redis, PipelinedRedis) else 0.0
        left_s = max(self._began, replied) + self._deadline_s - self._loop.time()
        if left_s <= 0 and self._suspected:
            self.limit.reschedule(self._loop.time())
            return
        self._suspected = left_s <= 0
        self._timer = self._loop.call_later(max(left_s, SECOND_LOOK_S), self._look)


@asynccontextmanager
async def read_deadline(proxy: ProxyState, *, wait_s: Seconds = 0.0) -> AsyncIterator[ReadDeadline]:
    """Bound a block that reads from Valkey.

    Args:
        proxy: its connection is watched. The lease and the disk measurement send a command every second.
        wait_s: how long the caller has asked to wait. Silence counts after this time.
    Raises:
        Unavailable: Valkey was silent for `read_deadline_s`.
    """
    deadline = ReadDeadline(proxy.redis, proxy.settings.read_deadline_s, wait_s)
    try:
        async with deadline.limit:
            yield deadline
    except TimeoutError as error:
        if not deadline.limit.expired():
            raise
        raise Unavailable(what=f"Valkey has not answered for {proxy.settings.read_deadline_s:g} s") from error
    finally:
        deadline.lift()


async def answer_in_time(proxy: ProxyState, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Call `app` for a read. The deadline ends when the answer begins, because a follower of a batch waits on purpose.

    Raises:
        Unavailable: Valkey was silent, and nothing has been sent yet.
    """
    async with read_deadline(proxy) as deadline:

        async def begin(message: Message) -> None:
            deadline.lift()
            await send(message)

        await app(scope, receive, begin)
