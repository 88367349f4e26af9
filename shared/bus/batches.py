"""Batches in Valkey: calls of the functions in `library/batches.lua`. All are atomic and safe to repeat."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command
from shared.bus.functions import call
from shared.messages.batches import BATCHES, BatchOpened, RolloutProgress
from shared.runtime.units import Seconds


class BatchOpeningResult(NamedTuple):
    """Result of `open_batch`."""

    code: Literal["opened", "repeated", "conflict"]
    """Conflict: this key has opened a batch of another size."""
    batch: str
    """The batch of this key."""


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
