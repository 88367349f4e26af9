"""The deadline of reads: a caller learns within seconds that Valkey does not answer.

The deadline is one of silence. A long page of results may take longer, as long as Valkey sends replies; a submission
waits for a restart, because it is worth waiting for (`submit_patience_s`).
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
"""A loop that was busy sees its timers before the replies that came meanwhile, so silence is looked at twice."""


class ReadDeadline:
    """Ends a block when Valkey has sent nothing for `deadline_s`; what came before the block does not count."""

    def __init__(self, redis: Redis, deadline_s: Seconds, wait_s: Seconds) -> None:
        self._redis = redis
        self._deadline_s = deadline_s
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time() + wait_s
        self._suspected = False
        self.limit = asyncio.timeout(None)
        self._timer = self._loop.call_later(wait_s + deadline_s, self._look)

    def lift(self) -> None:
        """From now on there is none."""
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
        proxy: whose connection is watched; the lease and the measurement of the disk ask for something every second.
        wait_s: the caller has asked to wait so long: silence counts from then on.
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
    """Call `app` for a read. Once its answer has begun there is no deadline: who follows a batch waits on purpose.

    Raises:
        Unavailable: Valkey was silent, and nothing has been sent yet.
    """
    async with read_deadline(proxy) as deadline:

        async def begin(message: Message) -> None:
            deadline.lift()
            await send(message)

        await app(scope, receive, begin)
