"""Actions of `/run_code` whose callers have left: kept for a retry, or cancelled."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from redis.asyncio import Redis

from services.proxy.records.batching import Batcher
from services.proxy.settings import ProxySettings
from shared.bus import functions
from shared.bus.connection import TRANSIENT, command, patiently
from shared.runtime.background import Background
from shared.runtime.errors import TreadleError
from shared.runtime.units import Seconds

MOST_ABANDONED = 65_536
"""Of actions still to be cancelled; those beyond it end with their budget."""
STOPPING_S: Seconds = 1.0
"""For what a stopping proxy still writes on behalf of a caller."""


class Retries:
    """Actions whose callers got 504: a retry joins one within `run_code_join_s`, else it is cancelled.

    Kept as a list for each digest, because trainers send the same body many times at once: every retry joins another
    action of the list, so each is executed once.
    """

    def __init__(self, redis: Redis, background: Background, settings: ProxySettings) -> None:
        self._redis = redis
        self._background = background
        self._join_s = settings.run_code_join_s
        self._patience_s = settings.submit_patience_s
        self._abandoned: Batcher[tuple[str, str], None] = Batcher(self._cancel_all, most=64)

    async def leave(self, digest: str, action: str) -> None:
        """Keep the action for the retry; cancel it when no retry has come."""
        await self._push(digest, action)
        self._background.start(self._expire(digest, action), name="retry window")

    async def leave_and_stop(self, digest: str, action: str) -> None:
        """As `leave`, of a proxy that stops: another one may serve the retry. The action's budget ends it otherwise."""
        with suppress(*TRANSIENT, TimeoutError):
            async with asyncio.timeout(STOPPING_S):
                await self._push(digest, action)

    async def join(self, digest: str) -> str | None:
        """An action an earlier call left behind, oldest first; each is handed out once."""

        async def take() -> bytes | None:
            taken: bytes | None = await command(self._redis, "LPOP", f"retry:{digest}")
            return taken

        action = await patiently(take, what="joining", patience_s=self._patience_s)
        return None if action is None else action.decode()

    def cancel(self, action: str, reason: str) -> None:
        """Cancel an action nobody waits for, in the background; while Valkey is away, `MOST_ABANDONED` are kept."""
        if len(self._abandoned) < MOST_ABANDONED:
            self._abandoned.put((action, reason))

    async def cancel_and_stop(self, action: str, reason: str) -> None:
        """As `cancel`, of a proxy that stops."""
        with suppress(*TRANSIENT, TimeoutError, TreadleError):
            async with asyncio.timeout(STOPPING_S):
                await functions.cancel(self._redis, action, reason)

    async def _push(self, digest: str, action: str) -> None:
        await command(self._redis, "RPUSH", f"retry:{digest}", action)
        await command(self._redis, "PEXPIRE", f"retry:{digest}", round(self._join_s * 1000))

    async def _expire(self, digest: str, action: str) -> None:
        """The retry or this task owns the action: whoever removes it from the list."""
        await asyncio.sleep(self._join_s * 0.95)

        async def take() -> bool:
            return bool(await command(self._redis, "LREM", f"retry:{digest}", 1, action))

        if await patiently(take, what="taking what nobody came back for", patience_s=None):
            self.cancel(action, "its caller did not come back")

    async def _cancel_all(self, abandoned: list[tuple[str, str]]) -> list[None]:
        async def attempt() -> None:
            await asyncio.gather(*(functions.cancel(self._redis, *each) for each in abandoned))

        await patiently(attempt, what="cancelling abandoned actions", patience_s=None)
        return [None] * len(abandoned)
