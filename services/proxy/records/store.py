"""Reads of what the server-side functions store: actions, answers, batches, results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

import msgspec
from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command, with_retries
from shared.messages.actions import ACTIONS, ActionSubmitted
from shared.messages.batches import BatchState
from shared.policy.dispatch.backlog import PoolBacklog
from shared.runtime import log
from shared.runtime.errors import Unavailable
from shared.store.results import ArchiveReader, Results

T = TypeVar("T")

_log = log.get(__name__)

RETRY_LIMIT_S = 10.0

_pools = msgspec.msgpack.Decoder(list[PoolBacklog])
_stuck = msgspec.msgpack.Decoder(dict[str, int])


@dataclass(frozen=True, slots=True)
class Stored:
    """Stored state of one action."""

    state: Literal["queued", "granted", "finished"]
    batch: str
    answer: bytes | None
    entry: str = ""
    """Its journal entry, while it is unanswered."""
    stage: int = 0
    """Its current stage, while it is unanswered."""
    trajectory: str = ""
    """Trajectory whose environment it needs, while it is unanswered."""


@dataclass(frozen=True, slots=True)
class EnvironmentStatus:
    """State of a trajectory's environment."""

    unmade: str
    """Why its last creation failed; empty if it succeeded or was not tried."""
    placed: bool
    """It was granted on a node."""


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch's hash. Times are Unix seconds by Valkey's clock."""

    id: str
    tenant: str
    task: str
    state: BatchState
    size: int | None
    """Number of requests when all have come; None: not known yet. Once no more can come: the number that came."""
    submitted: int
    answered: int
    opened_at: float
    first_at: float | None
    active_at: float
    ended_at: float | None
    workflow: bytes
    """The task as it was when the batch was opened, JSON."""


class Store:
    """Reads. Postgres is read only for what Valkey no longer has. If that is away, the read raises `Unavailable`."""

    def __init__(self, redis: Redis, archive: ArchiveReader) -> None:
        self._redis = redis
        self._archive = archive
        self.results = Results(redis, archive)

    async def action(self, action: str) -> Stored | None:
        """Return one action, or None if neither store has it."""

        async def read() -> list[bytes | None]:
            fields = ("batch", "grant", "answer", "result", "entry", "stage", "trajectory", "archived")
            reply: list[bytes | None] = await command(self._redis, "HMGET", f"action:{action}", *fields)
            return reply

        batch, granted, answer, result, entry, stage, trajectory, archived = await with_retries(
            read, what="reading an action", limit_s=RETRY_LIMIT_S
        )
        if batch is not None and result is not None:
            answer = await self._result(batch, result)
            if not await self._has_batch(batch):  # deleted; the archiver will delete its results
                return None
        if batch is None or archived is not None or (result is not None and answer is None):
            return await self._archived(action)
        if answer:
            return Stored("finished", batch.decode(), answer)
        return Stored(
            state="granted" if granted else "queued",
            batch=batch.decode(),
            answer=None,
            entry=(entry or b"").decode(),
            stage=int(stage or 0),
            trajectory=(trajectory or b"").decode(),
        )

    async def submitted(self, entry: str) -> ActionSubmitted | None:
        """Return the journal entry with this id; None if it has been answered."""

        async def read() -> list[tuple[bytes, list[bytes]]]:
            rows: list[tuple[bytes, list[bytes]]] = await command(self._redis, "XRANGE", ACTIONS.name, entry, entry)
            return rows

        for _, fields in await with_retries(read, what="reading the journal", limit_s=RETRY_LIMIT_S):
            try:
                message = ACTIONS.decode(fields[1])
            except msgspec.MsgspecError:  # of another version; the leader will reject it
                return None
            return message if isinstance(message, ActionSubmitted) else None
        return None

    async def environment_status(self, trajectory: str) -> EnvironmentStatus:
        """Return the state of a trajectory's environment."""

        async def read() -> list[bytes | None]:
            key = f"trajectory:{trajectory}"
            fields: list[bytes | None] = await command(self._redis, "HMGET", key, "state", "reason", "node")
            return fields

        state, reason, node = await with_retries(read, what="reading a trajectory", limit_s=RETRY_LIMIT_S)
        return EnvironmentStatus(reason.decode() if state == b"open" and reason else "", node is not None)

    async def pools(self) -> list[PoolBacklog]:
        """Return the pools with waiting work, most first, as the leader last published them."""
        return await self._backlog("pools", _pools) or []

    async def stuck(self) -> dict[str, int]:
        """Return {batch: actions that no present node can execute}, as the leader last published it."""
        return await self._backlog("stuck", _stuck) or {}

    async def _backlog(self, field: str, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
        """None if no leader has published yet, or one of another version has published another format."""

        async def read() -> bytes | None:
            packed: bytes | None = await command(self._redis, "HGET", "backlog", field)
            return packed

        packed = await with_retries(read, what="reading the backlog", limit_s=RETRY_LIMIT_S)
        try:
            return decoder.decode(packed) if packed is not None else None
        except msgspec.MsgspecError:
            return None

    async def answers(self, actions: list[str]) -> dict[str, bytes]:
        """Return the existing answers of these actions; without archived ones while Postgres is away."""

        async def read() -> list[list[bytes | None]]:
            pipe = self._redis.pipeline(transaction=False)
            for action in actions:
                pipe.hmget(f"action:{action}", ["batch", "answer", "result", "archived"])
            return await pipe.execute()

        found: dict[str, bytes] = {}
        gone: list[str] = []
        for action, (batch, answer, result, archived) in zip(
            actions, await with_retries(read, what="reading answers", limit_s=RETRY_LIMIT_S), strict=True
        ):
            if batch is not None and result is not None:
                answer = await self._result(batch, result)
            if answer is not None:
                found[action] = answer
            elif batch is None or archived is not None or result is not None:
                gone.append(action)
        try:
            if gone and await self._has_archived():
                found.update({action: answer for action, (_, answer) in (await self._archive.find(gone)).items()})
        except Unavailable as error:
            _log.warning("reading_answers_failed", waiting=len(gone), error=str(error))
        return found

    async def _result(self, batch: bytes, cursor: bytes) -> bytes | None:
        """Return one result from Valkey. None: it has been archived, or is just expiring."""

        async def read() -> list[tuple[bytes, list[bytes]]]:
            reply: list[Any] = await command(self._redis, "XRANGE", b"results:" + batch, cursor, cursor)
            return reply

        rows = await with_retries(read, what="reading a result", limit_s=RETRY_LIMIT_S)
        return rows[0][1][1] if rows else None

    async def _has_batch(self, batch: bytes) -> bool:
        async def read() -> int:
            return int(await command(self._redis, "EXISTS", b"batch:" + batch))

        return await with_retries(read, what="looking for a batch", limit_s=RETRY_LIMIT_S) > 0

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

        async def read() -> int:
            return int(await command(self._redis, "EXISTS", keys.ARCHIVED, keys.EXPIRING))

        return await with_retries(read, what="looking for archived answers", limit_s=RETRY_LIMIT_S) > 0

    async def batch(self, batch: str) -> StoredBatch | None:
        """One batch, or None."""

        async def read() -> dict[bytes, bytes]:
            flat: list[bytes] = await command(self._redis, "HGETALL", f"batch:{batch}")
            return dict(zip(flat[::2], flat[1::2], strict=True))

        fields = await with_retries(read, what="reading a batch", limit_s=RETRY_LIMIT_S)
        return _batch(batch, fields) if fields else None

    async def open_batches(self) -> list[StoredBatch]:
        """Return every batch that has not ended, oldest first."""
        names = [name.decode() for name in await command(self._redis, "ZRANGE", "batches:open", 0, -1)]
        found = [await self.batch(name) for name in names]
        return [batch for batch in found if batch is not None]


def _batch(name: str, fields: dict[bytes, bytes]) -> StoredBatch:
    def seconds(key: bytes) -> float | None:
        return int(fields[key]) / 1000 if key in fields else None

    state, submitted = fields[b"state"].decode(), int(fields[b"submitted"])
    return StoredBatch(
        id=name,
        tenant=fields[b"tenant"].decode(),
        task=fields[b"task"].decode(),
        state=cast("BatchState", state),
        size=int(fields[b"size"]) or None if state == "open" else submitted,
        submitted=submitted,
        answered=int(fields[b"answered"]),
        opened_at=seconds(b"opened_ms") or 0.0,
        first_at=seconds(b"first_ms"),
        active_at=seconds(b"active_ms") or 0.0,
        ended_at=seconds(b"ended_ms"),
        workflow=fields[b"workflow"],
    )
