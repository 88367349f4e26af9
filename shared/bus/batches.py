"""Batches in Valkey: reads, and calls of `library/batches.lua`, which are atomic and safe to repeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command
from shared.bus.functions import call
from shared.messages.batches import BATCHES, BatchOpened, BatchState, RolloutProgress
from shared.runtime.units import Seconds


class BatchOpeningResult(NamedTuple):
    """Result of `open_batch`."""

    code: Literal["opened", "repeated", "conflict"]
    """Conflict: this key has opened a batch of another size."""
    batch: str
    """The batch of this key."""


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


class BatchActivity(NamedTuple):
    """Counts of a batch, and when it was used. Times are Unix seconds by Valkey's clock."""

    opened_at: float
    active_at: float
    """Last submission."""
    submitted: int
    answered: int


class EnvironmentCounts(NamedTuple):
    """Answers of actions in trajectories that name a batch."""

    answered: int
    masked: dict[str, tuple[int, str]]
    """End of an action -> (count, newest reason)."""
    used: Mapping[str, float] = {}
    """Sums of their usage, by name."""


_OPENINGS: dict[int, Any] = {1: "opened", 0: "repeated", -1: "conflict"}


async def open_batch(
    redis: Redis, opened: BatchOpened, *, idempotency_key: str, asked: int | None, fields: dict[str, Any]
) -> BatchOpeningResult:
    """Open a batch, once per idempotency key.

    Args:
        redis: the client.
        opened: the message to publish. Its size is `asked`, or the task's.
        idempotency_key: the caller's, within its task; empty: none.
        asked: the size that the caller named, if any.
        fields: further fields of the batch's hash.

    Raises:
        Overloaded: Valkey's memory bound is reached; nothing was opened.
    """
    touched = [keys.batch(opened.batch), keys.BATCHES_OPEN, keys.BATCHES]
    if idempotency_key:
        touched.append(keys.batch_key(opened.tenant, opened.task, idempotency_key))
    flat = [part for pair in fields.items() for part in pair]
    sizes = (asked or 0, opened.size or 0)
    code, batch = await call(redis, "open_batch_v2", touched, BATCHES.encode(opened), *sizes, *flat)
    return BatchOpeningResult(_OPENINGS[code], batch.decode())


async def end_batch(redis: Redis, batch: str, state: str, *, keep_batch_s: Seconds) -> str | None:
    """Seal, cancel or abandon a batch. Return its state afterwards; None if there is no such batch."""
    touched = (keys.BATCHES_OPEN, keys.BATCHES, keys.ACTIONS, *keys.batch_group(batch))
    reply = await call(redis, "end_batch_v2", touched, state, round(keep_batch_s))
    return None if reply is None else reply.decode()


async def progress(redis: Redis, report: RolloutProgress) -> str | None:
    """Publish the progress of an open or sealed batch's rollout. Return the batch's state; None: no such batch.

    Raises:
        Overloaded: Valkey's memory bound is reached; nothing was published.
    """
    reply = await call(redis, "progress_v2", (keys.batch(report.batch), keys.BATCHES), BATCHES.encode(report))
    return None if reply is None else reply.decode()


async def was_opened(redis: Redis, tenant: str, task: str, idempotency_key: str) -> bool:
    """Return whether this key has opened a batch of the task."""
    return bool(await command(redis, "EXISTS", keys.batch_key(tenant, task, idempotency_key)) == 1)


async def open_batches(redis: Redis) -> list[str]:
    """Return the batches that have not ended, oldest first."""
    return [name.decode() for name in await command(redis, "ZRANGE", keys.BATCHES_OPEN, 0, -1)]


async def read_batch(redis: Redis, batch: str) -> StoredBatch | None:
    """Return a batch; None: it was never opened, or has expired."""
    flat = await command(redis, "HGETALL", keys.batch(batch))
    return _stored(batch, dict(zip(flat[::2], flat[1::2], strict=True))) if flat else None


async def batch_exists(redis: Redis, batch: str) -> bool:
    """Return whether a batch was opened and has not expired."""
    return bool(await command(redis, "EXISTS", keys.batch(batch)) == 1)


async def batch_tenant(redis: Redis, batch: str) -> str | None:
    """Return whose batch it is; None: there is no such batch."""
    tenant: bytes | None = await command(redis, "HGET", keys.batch(batch), "tenant")
    return None if tenant is None else tenant.decode()


async def first_arrival(redis: Redis, batch: str) -> float | None:
    """Return when the first request of a batch arrived, Unix seconds. None: none has, or there is no such batch."""
    first_ms: bytes | None = await command(redis, "HGET", keys.batch(batch), "first_ms")
    return None if first_ms is None else int(first_ms) / 1000


async def read_activity(redis: Redis, batch: str) -> BatchActivity | None:
    """Return the counts of a batch; None: it has expired."""
    names = ("opened_ms", "active_ms", "submitted", "answered")
    opened, active, submitted, answered = await command(redis, "HMGET", keys.batch(batch), *names)
    if opened is None:
        return None
    return BatchActivity(int(opened) / 1000, int(active) / 1000, int(submitted), int(answered))


async def read_environments(redis: Redis, batch: str) -> EnvironmentCounts | None:
    """Return counts of answers in trajectories that name the batch; None before the first one. O(kinds)."""
    flat = [part.decode() for part in await command(redis, "HGETALL", keys.environments_of(batch))]
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    if not fields:
        return None
    masked = {
        ended: (int(fields[f"count:{ended}"]), reason)
        for field, reason in fields.items()
        if (ended := field.removeprefix("why:")) != field
    }
    used = {name: float(amount) for field, amount in fields.items() if (name := field.removeprefix("used:")) != field}
    return EnvironmentCounts(int(fields["answered"]), masked, used)


def _stored(name: str, fields: dict[bytes, bytes]) -> StoredBatch:
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
