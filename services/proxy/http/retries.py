"""Actions of `/run_code` and `/retrieve` whose callers have gone: kept for a retry, or cancelled."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from hashlib import blake2b

from redis.asyncio import Redis

from services.proxy.records.batching import Batcher
from services.proxy.records.intake import digest_of
from services.proxy.settings import ProxySettings
from shared.bus import functions, retries
from shared.bus.connection import TRANSIENT, with_retries
from shared.messages.actions import ActionSubmitted
from shared.runtime.background import Background
from shared.runtime.errors import TreadleError
from shared.runtime.units import Seconds

MOST_ABANDONED = 65_536
"""Most actions that wait to be cancelled. Others end with their budget."""
STOPPING_S: Seconds = 1.0
"""Time for what a stopping proxy still writes for a caller."""


def digest_of_call(submitted: ActionSubmitted, route: str = "") -> str:
    """Return the digest of tenant, task and body. Calls of one route with equal digests are the same."""
    scope = f"{submitted.tenant}\x00{submitted.task}\x00{route}".removesuffix("\x00").encode()
    return blake2b(digest_of(submitted.stages, 0.0) + scope, digest_size=12).hexdigest()


class RunCodeRetries:
    """Actions whose callers got 503 or 504. A retry joins one within `run_code_join_s`, else it is cancelled.

    Each digest has a list, because trainers send the same body many times at once. Every retry joins another action of
    the list, so each is executed once.
    """

    def __init__(self, redis: Redis, background: Background, settings: ProxySettings) -> None:
        self._redis = redis
        self._background = background
        self._join_s = settings.run_code_join_s
        self._limit_s = settings.submit_retry_s
        self._abandoned: Batcher[tuple[str, str], None] = Batcher(self._cancel_all, most=64)

    async def leave(self, digest: str, action: str) -> None:
        """Keep the action for a retry. Cancel it if no retry comes in time."""
        await self._push(digest, action)
        self._background.start(self._expire(digest, action), name="retry window")

    async def leave_and_stop(self, digest: str, action: str) -> None:
        """Like `leave`, in a stopping proxy. Another replica may serve the retry; else the budget ends the action."""
        with suppress(*TRANSIENT, TimeoutError):
            async with asyncio.timeout(STOPPING_S):
                await self._push(digest, action)

    async def join(self, digest: str) -> str | None:
        """Return an action that an earlier call left, oldest first. Each is returned once."""

        async def take() -> str | None:
            return await retries.take_for_retry(self._redis, digest)

        return await with_retries(take, what="joining", limit_s=self._limit_s)

    def cancel(self, action: str, reason: str) -> None:
        """Cancel an abandoned action, in the background. While Valkey is away, `MOST_ABANDONED` cancellations wait."""
        if len(self._abandoned) < MOST_ABANDONED:
            self._abandoned.put((action, reason))

    async def cancel_and_stop(self, action: str, reason: str) -> None:
        """Like `cancel`, in a stopping proxy."""
        with suppress(*TRANSIENT, TimeoutError, TreadleError):
            async with asyncio.timeout(STOPPING_S):
                await functions.cancel(self._redis, action, reason)

    async def _push(self, digest: str, action: str) -> None:
        await retries.leave_for_retry(self._redis, digest, action, self._join_s)

    async def _expire(self, digest: str, action: str) -> None:
        """Cancel the action unless a retry has taken it. Whichever removes it from the list owns it."""
        await asyncio.sleep(self._join_s * 0.95)

        async def take() -> bool:
            return await retries.withdraw(self._redis, digest, action)

        if await with_retries(take, what="reading abandoned actions", limit_s=None):
            self.cancel(action, "its caller did not come back")

    async def _cancel_all(self, abandoned: list[tuple[str, str]]) -> list[None]:
        async def attempt() -> None:
            await asyncio.gather(*(functions.cancel(self._redis, *each) for each in abandoned))

        await with_retries(attempt, what="cancelling abandoned actions", limit_s=None)
        return [None] * len(abandoned)
