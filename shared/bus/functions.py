"""Typed calls of the server-side functions in `functions.lua`. All are atomic and safe to repeat.

Those of `trajectories.lua` are in `shared.bus.trajectories`, those of `archive.lua` in `shared.bus.archive`, those of
`nodes.lua` in `shared.bus.nodes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Literal, NamedTuple

import msgspec
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError, ResponseError

from shared.bus.connection import MEMORY_FULL, command
from shared.messages import batch_snapshot
from shared.messages.batch_snapshot import OpenBatchesSnapshot
from shared.messages.batches import BATCHES, BatchOpened, RolloutProgress
from shared.policy.dispatch.backlog import Backlog
from shared.runtime.errors import Overloaded
from shared.runtime.units import Epoch, Seconds

_packed = msgspec.msgpack.Encoder().encode


SOURCES = ("functions.lua", "trajectories.lua", "archive.lua", "nodes.lua")
"""Parts of one library. Later ones use definitions of the first."""


class Deposed(Exception):
    """Another leader has taken over. This leader's write was rejected."""


class Submission(NamedTuple):
    """One item of `journal_actions`."""

    action: str
    digest: bytes
    """Digest of the request's content. The same id with another digest is a conflict."""
    batch: str
    payload: bytes
    trajectory: str = ""
    """Trajectory whose environment it needs. It must be open."""
    tenant: str = ""
    """Tenant whose kept answers count against its bound."""


class Receipt(NamedTuple):
    """Result of `journal_actions` for one item."""

    code: Literal[
        "accepted",
        "repeated",
        "conflict",
        "no-batch",
        "batch-closed",
        "batch-full",
        "journal-full",
        "no-trajectory",
        "trajectory-ended",
        "answer-gone",
        "disk-short",
        "tenant-full",
    ]
    """`disk-short` is set by the caller, which passes `max_journal` 0 while its disk is short."""
    entry: str
    """The journal entry (accepted, repeated), the batch's state (batch-closed), its size (batch-full), the shortage
    (disk-short), or how the trajectory ended and why, with a space between (trajectory-ended)."""


class BatchOpeningResult(NamedTuple):
    """Result of `open_batch`."""

    code: Literal["opened", "repeated", "conflict"]
    """Conflict: this key has opened a batch of another size."""
    batch: str
    """The batch of this key."""


class IdKey(NamedTuple):
    """Key of derived ids."""

    key: bytes
    older_until: float
    """Until this time, ids that an older version made without a key are looked up. Unix seconds; 0 in a fresh store."""


class Answering(NamedTuple):
    """One item of `answer_actions`."""

    action: str
    entry: str
    batch: str
    answer: bytes
    keep_s: int
    """Retention of an answer outside a batch. Inside one, the batch's retention counts."""
    tenant: str = ""
    """Tenant whose kept answers it adds to."""
    masked: str = ""
    """For a masked answer in a trajectory: how it ended, a space, and the reason."""
    outcome: str = ""
    """Entry of `outcomes` behind the answer. It is deleted together with this."""
    unqueued_end_ms: int = 0
    """When it would have finished without any queueing, Unix milliseconds. The batch keeps the latest."""


class Advancing(NamedTuple):
    """One item of `advance_stages`."""

    action: str
    stage: int
    """Index of the stage that begins."""
    carried: bytes
    """Measurements of the earlier stages."""
    outcome: str = ""
    """Entry of `outcomes` that ended the earlier stage. It is deleted together with this."""


class Granting(NamedTuple):
    """One item of `send_grants`: a message to a node. `action` is empty if the message is not about an action."""

    stream: str
    payload: bytes
    action: str = ""
    mark: str = ""
    """`attempt:node`, stored with the action so that a new leader can find its last grant."""
    trajectory: str = ""
    """Trajectory whose environment begins with this grant."""
    placement: bytes = b""
    """Placement of that environment, for a new leader (`shared.bus.trajectories.StoredPlacement`)."""


_CODES: dict[int, Any] = {
    1: "accepted",
    0: "repeated",
    -1: "conflict",
    -2: "no-batch",
    -3: "batch-closed",
    -4: "batch-full",
    -5: "journal-full",
    -6: "no-trajectory",
    -7: "trajectory-ended",
    -8: "answer-gone",
    -9: "tenant-full",
}
_OPENINGS: dict[int, Any] = {1: "opened", 0: "repeated", -1: "conflict"}


async def load(redis: Redis) -> None:
    """Load (or replace) the function library. Afterwards it is part of Valkey's own durable state.

    An identical library is not loaded again. Valkey rejects loading while its memory is full, and services must be able
    to restart then.
    """
    source = "".join(files("shared.bus").joinpath(name).read_text("utf-8") for name in SOURCES)
    known = await command(redis, "FUNCTION", "LIST", "LIBRARYNAME", "treadle", "WITHCODE")
    if not any(source.encode() in library for library in known):
        await command(redis, "FUNCTION", "LOAD", "REPLACE", source)


async def call(redis: Redis, name: str, *args: Any, keys: Sequence[str] = ()) -> Any:
    """Call one function of the library and return its plain reply.

    Raises:
        Deposed: it is a leader's function, and its epoch is over.
        Overloaded: Valkey's memory bound is reached; nothing was written.
    """
    try:
        return await command(redis, "FCALL", name, len(keys), *keys, *args)
    except OutOfMemoryError as error:
        raise Overloaded(what=MEMORY_FULL, retry_after_s=2.0) from error
    except ResponseError as error:
        if str(error).startswith("FENCED"):
            raise Deposed from error
        raise


async def lead(redis: Redis, holder: str, ttl_s: Seconds) -> Epoch:
    """Take or renew the dispatching lease. Return the epoch, or 0 while another process holds it."""
    return int(await call(redis, "lead", holder, round(ttl_s * 1000)))


async def resign(redis: Redis, holder: str) -> None:
    """Release the lease if it is still ours."""
    await call(redis, "resign", holder)


async def journal_actions(
    redis: Redis, submissions: Sequence[Submission], *, max_journal: int, most_kept: int = 0
) -> list[Receipt]:
    """Journal many requests, each one atomically. They are accepted when this returns.

    Args:
        redis: the client.
        submissions: the requests.
        max_journal: most unanswered actions of the whole mesh.
        most_kept: bytes of Valkey's memory. Tenants whose kept answers take as much are rejected; 0: no bound.

    Raises:
        Overloaded: Valkey's memory bound is reached; nothing of this call was accepted.
    """
    args: list[Any] = [max_journal, most_kept]
    for item in submissions:
        args += ("action:" + item.action, item.digest, item.batch, item.trajectory, item.tenant, item.payload)
    replies = await call(redis, "journal_actions", *args)
    return [Receipt(_CODES[code], entry.decode()) for code, entry in replies]


async def answer_actions(
    redis: Redis, epoch: Epoch, answers: Sequence[Answering], *, keep_batch_s: Seconds
) -> list[bool]:
    """Answer many actions, once each. False: the action had an answer, which stays.

    Raises:
        Deposed: this leader's epoch is over; nothing was written.
    """
    args: list[Any] = [epoch, round(keep_batch_s)]
    for item in answers:
        args += item
    return [flag == 1 for flag in await call(redis, "answer_actions", *args)]


async def send_grants(redis: Redis, epoch: Epoch, grants: Sequence[Granting]) -> None:
    """Send messages to nodes, in order.

    Raises:
        Deposed: this leader's epoch is over; nothing was sent.
    """
    args: list[Any] = [epoch]
    for item in grants:
        args += item
    await call(redis, "send_grants", *args)


async def advance_stages(redis: Redis, epoch: Epoch, steps: Sequence[Advancing]) -> None:
    """Move requests to their next stage."""
    args: list[Any] = [epoch]
    for step in steps:
        args += step
    await call(redis, "advance_stages", *args)


async def discard(redis: Redis, epoch: Epoch, entries: Sequence[str]) -> None:
    """Delete processed journal entries that are not requests."""
    await call(redis, "discard", epoch, *entries)


async def publish_backlog(
    redis: Redis, epoch: Epoch, backlog: Backlog, batches: OpenBatchesSnapshot | None = None
) -> None:
    """Publish the backlog for every replica, and where the requests of open batches are.

    `batches` None: the last published value stays.

    Raises:
        Deposed: this leader's epoch is over; nothing was written.
    """
    args: list[Any] = [epoch, _packed(backlog.pools), _packed(backlog.stuck)]
    if batches is not None:
        args.append(batch_snapshot.encode(batches))
    await call(redis, "publish_backlog", *args)


async def publish(redis: Redis, stream: str, maxlen: int, payloads: Sequence[bytes]) -> None:
    """Append to a bounded stream, even when memory is full, because nodes' reports lead to freed memory."""
    await call(redis, "publish", stream, maxlen, *payloads)


async def open_batch(
    redis: Redis, opened: BatchOpened, *, idempotency_key: str, asked: int | None, fields: dict[str, Any]
) -> BatchOpeningResult:
    """Open a batch, once per idempotency key.

    Args:
        redis: the client.
        opened: the message to publish. Its size is `asked`, or the task's.
        idempotency_key: the caller's; empty: none.
        asked: the size that the caller named, if any.
        fields: further fields of the batch's hash.
    """
    flat = [part for pair in fields.items() for part in pair]
    message = BATCHES.encode(opened)
    sizes = (asked or 0, opened.size or 0)
    code, batch = await call(redis, "open_batch", opened.batch, idempotency_key, message, *sizes, *flat)
    return BatchOpeningResult(_OPENINGS[code], batch.decode())


async def end_batch(redis: Redis, batch: str, state: str, *, keep_batch_s: Seconds) -> str | None:
    """Seal, cancel or abandon a batch. Return its state afterwards; None if there is no such batch."""
    reply = await call(redis, "end_batch", batch, state, round(keep_batch_s))
    return None if reply is None else reply.decode()


async def progress(redis: Redis, report: RolloutProgress) -> str | None:
    """Publish the progress of an open or sealed batch's rollout. Return the batch's state; None: no such batch.

    Raises:
        Overloaded: Valkey's memory bound is reached; nothing was published.
    """
    reply = await call(redis, "progress", report.batch, BATCHES.encode(report))
    return None if reply is None else reply.decode()


async def id_key(redis: Redis, candidate: bytes, window_s: Seconds) -> IdKey:
    """Return the store's key of derived ids. If it has none, `candidate` is stored first."""
    key, older_until_ms = await call(redis, "id_key", candidate, round(window_s * 1000))
    return IdKey(key, int(older_until_ms) / 1000)


async def cancel(redis: Redis, action: str, reason: str) -> Literal["requested", "answered", "unknown"]:
    """Request that the leader cancels an action."""
    code = await call(redis, "cancel", action, reason)
    return "requested" if code == 1 else "answered" if code == 0 else "unknown"
