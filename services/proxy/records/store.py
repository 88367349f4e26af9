"""Reads of what the server-side functions store: actions, answers, batches, results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from redis.asyncio import Redis

from shared.bus import actions, archive, backlog, batches, trajectories
from shared.bus.batches import StoredBatch
from shared.bus.connection import with_retries
from shared.bus.trajectories import EnvironmentStatus
from shared.messages.actions import ActionSubmitted
from shared.policy.dispatch.backlog import PoolBacklog
from shared.policy.model.waiting import WaitingReason
from shared.runtime import log
from shared.runtime.errors import Unavailable
from shared.store.results import ArchiveReader, Results

_log = log.get(__name__)

RETRY_LIMIT_S = 10.0
CONTINUES = "it continues as soon as its units are free"


@dataclass(frozen=True, slots=True)
class Stored:
    """Stored state of one action."""

    state: Literal["queued", "granted", "parked", "finished"]
    batch: str
    answer: bytes | None
    entry: str = ""
    """Its journal entry, while it is unanswered."""
    stage: int = 0
    """Its current stage, while it is unanswered."""
    trajectory: str = ""
    """Trajectory whose environment it needs, while it is unanswered."""
    parked_s: float = 0.0
    """Time of the request to park it, Unix seconds, while it is parked."""
    parked_because: str = ""


class Store:
    """Reads. Postgres is read only for what Valkey no longer has. If that is away, the read raises `Unavailable`."""

    def __init__(self, redis: Redis, archive: ArchiveReader) -> None:
        self._redis = redis
        self._archive = archive
        self.results = Results(redis, archive)

    async def action(self, action: str) -> Stored | None:
        """Return one action, or None if neither store has it."""

        async def read() -> actions.ActionRecord | None:
            return await actions.read_action(self._redis, action)

        found = await with_retries(read, what="reading an action", limit_s=RETRY_LIMIT_S)
        if found is None or found.archived:
            return await self._archived(action)
        answer = found.answer
        if found.result:
            answer = await self._result(found.batch, found.result)
            if not await self._has_batch(found.batch):  # deleted; the archiver will delete its results
                return None
            if answer is None:
                return await self._archived(action)
        if answer:
            return Stored("finished", found.batch, answer)
        return Stored(
            state="parked" if found.parked_s else "granted" if found.granted else "queued",
            batch=found.batch,
            answer=None,
            entry=found.entry,
            stage=found.stage,
            trajectory=found.trajectory,
            parked_s=found.parked_s,
            parked_because=CONTINUES if found.resumes else found.parked_because,
        )

    async def submitted(self, entry: str) -> ActionSubmitted | None:
        """Return the journal entry with this id; None if it has been answered."""

        async def read() -> ActionSubmitted | None:
            return await actions.read_submission(self._redis, entry)

        return await with_retries(read, what="reading the journal", limit_s=RETRY_LIMIT_S)

    async def environment_status(self, trajectory: str) -> EnvironmentStatus:
        """Return the state of a trajectory's environment."""

        async def read() -> EnvironmentStatus:
            return await trajectories.read_environment(self._redis, trajectory)

        return await with_retries(read, what="reading a trajectory", limit_s=RETRY_LIMIT_S)

    async def pools(self) -> list[PoolBacklog]:
        """Return the pools with waiting work, most first, as the leader last published them."""

        async def read() -> list[PoolBacklog]:
            return await backlog.read_pools(self._redis)

        return await with_retries(read, what="reading the backlog", limit_s=RETRY_LIMIT_S)

    async def waiting_reason(self, action: str, stage: int) -> tuple[WaitingReason, dict[str, WaitingReason]]:
        """Return why an action waits, as the leader last published it; see `backlog.read_reason`. One small read."""

        async def read() -> tuple[WaitingReason, dict[str, WaitingReason]]:
            return await backlog.read_reason(self._redis, action, stage)

        return await with_retries(read, what="reading why an action waits", limit_s=RETRY_LIMIT_S)

    async def stuck(self) -> dict[str, int]:
        """Return {batch: actions that no present node can execute}, as the leader last published it."""

        async def read() -> dict[str, int]:
            return await backlog.read_stuck(self._redis)

        return await with_retries(read, what="reading the backlog", limit_s=RETRY_LIMIT_S)

    async def answers(self, names: list[str]) -> dict[str, bytes]:
        """Return the existing answers of these actions; without archived ones while Postgres is away."""

        async def read() -> list[actions.ActionRecord | None]:
            return await actions.read_actions(self._redis, names)

        found: dict[str, bytes] = {}
        gone: list[str] = []
        records = await with_retries(read, what="reading answers", limit_s=RETRY_LIMIT_S)
        for action, record in zip(names, records, strict=True):
            answer = None if record is None else record.answer
            if record is not None and record.result:
                answer = await self._result(record.batch, record.result)
            if answer is not None:
                found[action] = answer
            elif record is None or record.archived or record.result:
                gone.append(action)
        try:
            if gone and await self._has_archived():
                found.update({action: answer for action, (_, answer) in (await self._archive.find(gone)).items()})
        except Unavailable as error:
            _log.warning("reading_answers_failed", waiting=len(gone), error=str(error))
        return found

    async def _result(self, batch: str, result: str) -> bytes | None:
        """Return one result from Valkey. None: it has been archived, or is just expiring."""

        async def read() -> bytes | None:
            return await actions.read_result(self._redis, batch, result)

        return await with_retries(read, what="reading a result", limit_s=RETRY_LIMIT_S)

    async def _has_batch(self, batch: str) -> bool:
        async def read() -> bool:
            return await batches.batch_exists(self._redis, batch)

        return await with_retries(read, what="looking for a batch", limit_s=RETRY_LIMIT_S)

    async def _archived(self, action: str) -> Stored | None:
        """Return an action whose answer is archived. A result is hidden once its batch has expired."""
        if not await self._has_archived():
            return None
        found = (await self._archive.find([action])).get(action)
        if found is None or (found[0] and await self.batch(found[0]) is None):
            return None
        return Stored("finished", *found)

    async def _has_archived(self) -> bool:
        """Return whether Postgres may have answers. A mesh that has archived nothing works without Postgres."""

        async def read() -> bool:
            return await archive.has_archived(self._redis)

        return await with_retries(read, what="looking for archived answers", limit_s=RETRY_LIMIT_S)

    async def batch(self, batch: str) -> StoredBatch | None:
        """One batch, or None."""

        async def read() -> StoredBatch | None:
            return await batches.read_batch(self._redis, batch)

        return await with_retries(read, what="reading a batch", limit_s=RETRY_LIMIT_S)

    async def open_batches(self) -> list[StoredBatch]:
        """Return every batch that has not ended, oldest first."""
        found = [await self.batch(name) for name in await batches.open_batches(self._redis)]
        return [batch for batch in found if batch is not None]
