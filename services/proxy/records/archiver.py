"""Moves answers from Valkey to Postgres: those older than a minute, and all of them beyond a fill mark.

Copy, commit, then delete. After a crash the steps are repeated. Every step can be repeated, also by two replicas at
once (ADR 0031). So the lease only saves work.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import msgspec
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from services.proxy.metrics import ARCHIVE_FAILURES, ARCHIVED
from services.proxy.records.memory import ValkeyMemory
from services.proxy.settings import ProxySettings
from shared.bus import archive, keys
from shared.bus.archive import BatchKey, StoredResult
from shared.bus.connection import TRANSIENT, ValkeyClock
from shared.bus.lease import Lease
from shared.runtime import log
from shared.runtime.units import Seconds
from shared.store.answers import Answers
from shared.store.database import Sessions, transaction
from shared.store.records import KeptAnswer
from shared.store.results import FAILURES

_log = log.get(__name__)

LEASE_S: Final[Seconds] = 60.0
"""Longer than any step: a Postgres statement ends after 30 s."""
LOOK_EVERY_S: Final[Seconds] = 1.0
LONGEST_PAUSE_S: Final[Seconds] = 15.0
"""Longest time between two attempts while Postgres is away or its disk is full."""
SWEEP_EVERY_S: Final[Seconds] = 15.0
DELETE_BY_AGE_EVERY_S: Final[Seconds] = 300.0
AT_ONCE: Final = 1000
"""Answers of one transaction; about 20 ms of this process."""
MOST_BYTES: Final = 4 << 20
"""Approximate bytes of answers in one transaction. Fewer if Valkey is small: it holds them twice meanwhile."""
MOST_SHARE: Final = 1 / 16
"""Share of Valkey's memory bound that one transaction's answers may take."""
DELETED_AT_ONCE: Final = 5000
"""Rows deleted in one transaction: 50 ms of Postgres, which nothing else waits for."""
MARGIN_S: Final[Seconds] = 86_400.0
"""Rows expire at most this much later than their batch would, if Valkey has lost the batch."""


class _Named(msgspec.Struct, frozen=True):
    """The field of a result that its compact id needs."""

    id: str


_named = msgspec.json.Decoder(_Named)


def _names(rows: list[StoredResult]) -> list[str]:
    return [_named.decode(row.answer).id for row in rows]


class Archiver:
    """One replica's archiver. It works while it holds the lease."""

    def __init__(
        self, redis: Redis, sessions: Sessions, clock: ValkeyClock, memory: ValkeyMemory, settings: ProxySettings
    ) -> None:
        self._redis = redis
        self._sessions = sessions
        self._clock = clock
        self._memory = memory
        self._settings = settings
        self._lease = Lease(redis, keys.Role.ARCHIVER, LEASE_S)
        self._swept_s = 0.0
        self._aged_s = time.monotonic()

    async def run(self) -> None:
        """Loop. While Postgres or Valkey is away, retry after a pause that grows to `LONGEST_PAUSE_S`."""
        pause_s = LOOK_EVERY_S
        while True:
            try:
                await self._turn()
                pause_s = LOOK_EVERY_S
            except (*FAILURES, *TRANSIENT, ResponseError) as error:
                ARCHIVE_FAILURES.inc()
                _log.warning("archiving_failed", error=str(error) or type(error).__name__, again_in_s=pause_s)
                pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
            await asyncio.sleep(pause_s)

    async def stop(self) -> None:
        """Release the lease."""
        try:
            async with asyncio.timeout(1.0):
                await self._lease.release()
        except (*TRANSIENT, TimeoutError) as error:
            _log.warning("archiver_lease_release_failed", error=str(error))

    async def _turn(self) -> None:
        """Archive what is due. At intervals, delete what has expired."""
        moved = 1
        while moved and await self._lease.hold():
            began = time.monotonic()
            moved = await self.archive_due()
            if not self._presses:
                await asyncio.sleep(time.monotonic() - began)  # leave half of the time to the dispatcher
        if time.monotonic() - self._swept_s > SWEEP_EVERY_S and await self._lease.hold():
            self._swept_s = time.monotonic()
            await self.sweep()
        if time.monotonic() - self._aged_s > DELETE_BY_AGE_EVERY_S and await self._lease.hold():
            self._aged_s = time.monotonic()
            await self.delete_by_age()

    @property
    def _presses(self) -> bool:
        return self._memory.now.used_share > self._settings.archive_fill

    @property
    def _most_bytes(self) -> int:
        return min(MOST_BYTES, round(self._memory.now.bound_bytes * MOST_SHARE) or MOST_BYTES)

    async def archive_due(self) -> int:
        """Archive some of what is due: a page of each batch that has waited longest. Return the number of answers."""
        await self._memory.read()
        age_s = 0.0 if self._presses else self._settings.archive_after_s
        until_ms = round((self._clock.unix() - age_s) * 1000)
        moved = await self._archive_actions(until_ms)
        for key in await archive.due_batches(self._redis, until_ms, 16):
            moved += await self._archive_results(key, until_ms)
        return moved

    async def _archive_actions(self, until_ms: int) -> int:
        """Archive answers outside batches. Return how many index entries were processed."""
        due = await archive.due_actions(self._redis, until_ms, AT_ONCE, self._most_bytes)
        gone = [one for one in due if not one.entry]
        if gone:  # they have expired, so Postgres is not needed
            await archive.archive_actions(self._redis, gone)
        alive = {one.action: one for one in due if one.entry}
        if alive:
            rows = [
                KeptAnswer(one.action, "", one.tenant, archive.numeric(one.entry), one.answer, one.expires_at + 60.0)
                for one in alive.values()
            ]
            await self._keep(rows)
            await archive.archive_actions(self._redis, list(alive.values()))
        return len(due)

    async def _archive_results(self, key: BatchKey, until_ms: int) -> int:
        """Archive one page of a batch, from its oldest result in Valkey."""
        rows = await archive.due_results(self._redis, key, until_ms, AT_ONCE, self._most_bytes)
        if not rows:
            await archive.archive_results(self._redis, key, [])
            return 0
        settings = self._settings
        expires_at = self._clock.unix() + settings.batch_lifetime_s + settings.keep_batch_s + MARGIN_S
        actions = _names(rows)
        await self._keep(
            [
                KeptAnswer(action, key.batch, key.tenant, archive.numeric(row.cursor), row.answer, expires_at)
                for action, row in zip(actions, rows, strict=True)
            ]
        )
        await self._replace(key, rows, actions)
        return len(rows)

    async def _replace(self, key: BatchKey, rows: list[StoredResult], actions: list[str]) -> None:
        """Replace results in Valkey by compact ids. Does nothing if the batch has expired."""
        lengths = [(action, len(row.answer)) for action, row in zip(actions, rows, strict=True)]
        await archive.archive_results(self._redis, key, lengths, rows[-1].cursor)

    async def _keep(self, rows: list[KeptAnswer]) -> None:
        async with transaction(self._sessions) as session:
            await Answers(session).add(rows)
        ARCHIVED.inc(len(rows))

    # ---- deletion ----------------------------------------------------------------------------------------------

    async def sweep(self) -> None:
        """Delete what has expired in Valkey: byte accounts of answers, and results of batches."""
        await archive.expire_kept(self._redis)
        for key in await archive.expired_batches(self._redis, keys.UNARCHIVED):
            await self._drop(key)
        for key in await archive.expired_batches(self._redis, keys.ARCHIVED):
            if await self._forgotten(key.batch):
                await archive.release_batch(self._redis, key)

    async def _drop(self, key: BatchKey) -> None:
        """Free an expired batch's data in Valkey once the planner has its history. It is not copied."""
        async with transaction(self._sessions) as session:
            if not await Answers(session).has_history(key.batch):
                return  # it is archived when it is due
        while rows := await archive.due_results(self._redis, key, None, AT_ONCE, self._most_bytes):
            await self._replace(key, rows, _names(rows))
        await archive.archive_results(self._redis, key, [])

    async def _forgotten(self, batch: str) -> bool:
        """Delete an expired batch's results in Postgres once the planner has its history. True: none are left."""
        while True:
            async with transaction(self._sessions) as session:
                answers = Answers(session)
                if not await answers.has_history(batch):
                    return not await answers.has(batch)  # `delete_by_age` deletes them later
                if await answers.delete(batch, DELETED_AT_ONCE) < DELETED_AT_ONCE:
                    return True

    async def delete_by_age(self) -> None:
        """Delete answers that have expired, also of batches that Valkey has lost."""
        gone = DELETED_AT_ONCE
        while gone == DELETED_AT_ONCE:
            async with transaction(self._sessions) as session:
                gone = await Answers(session).expire(DELETED_AT_ONCE)
