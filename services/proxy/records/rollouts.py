"""Trainers' progress reports, forwarded to the planner: at most one a second for each batch."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from redis.asyncio import Redis

from shared.api.batches import ProgressReceipt, ProgressReport
from shared.bus import batches
from shared.bus.connection import ValkeyClock, with_retries
from shared.messages.batches import RolloutProgress
from shared.runtime.errors import Conflict, NotFound
from shared.runtime.units import Seconds

EVERY_S: Seconds = 1.0
"""Earlier reports are dropped. Each is a message, and the planner reads them only every few seconds."""
MOST_KNOWN = 4096
"""Batches whose last report is kept in memory."""


class _Taken(NamedTuple):
    at: Seconds
    done: bool
    """Nothing is generating any more."""


class Rollouts:
    """Receives this replica's progress reports."""

    def __init__(self, redis: Redis, clock: ValkeyClock) -> None:
        self._redis = redis
        self._clock = clock
        self._taken: dict[str, _Taken] = {}

    async def report(self, batch: str, report: ProgressReport) -> ProgressReceipt:
        """Forward a report unless it comes too soon. The end of the last sample is forwarded at once, once.

        The median of a million lengths takes a quarter of a second; of 2,048 a fifth of a millisecond.

        Raises:
            NotFound: there is no such batch.
            Conflict: it has ended.
        """
        taken = self._admit(batch, done=report.generating == 0)
        if taken is None:
            return ProgressReceipt(batch=batch, generating=report.generating, taken=False)
        try:
            await self._publish(batch, taken.at, report)
        except BaseException:
            if self._taken.get(batch) is taken:
                del self._taken[batch]
            raise
        return ProgressReceipt(batch=batch, generating=report.generating, taken=True)

    def _admit(self, batch: str, *, done: bool) -> _Taken | None:
        """Reserve the batch's next report. None: it comes too soon."""
        now = self._clock.unix()
        last = self._taken.get(batch)
        if last is not None and now - last.at < EVERY_S and (last.done or not done):
            return None
        self._taken.pop(batch, None)  # removed and added again, so that the dict is ordered by last use
        taken = self._taken[batch] = _Taken(now, done)
        while len(self._taken) > MOST_KNOWN:
            del self._taken[next(iter(self._taken))]
        return taken

    async def _publish(self, batch: str, at: Seconds, report: ProgressReport) -> None:
        tokens = float(median(report.lengths)) if report.lengths else None
        message = RolloutProgress(batch=batch, at=at, generating=report.generating, tokens=tokens)

        async def attempt() -> str | None:
            return await batches.progress(self._redis, message)

        state = await with_retries(attempt, what="reporting a rollout", limit_s=10.0)
        if state is None:
            raise NotFound(kind="batch", name=batch)
        if state not in ("open", "sealed"):
            raise Conflict(what=f"batch {batch} is {state}: no more requests are expected")
