"""Typed doors to the server-side functions in `functions.lua`. All are atomic and safe to repeat.

Those of `trajectories.lua` are in `shared.bus.trajectories`, those of `archive.lua` in `shared.bus.archive`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Literal, NamedTuple

import msgspec
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError, ResponseError

from shared.bus.connection import MEMORY_FULL, command
from shared.messages import seen
from shared.messages.batches import BATCHES, BatchOpened, RolloutProgress
from shared.messages.seen import BatchesSeen
from shared.policy.dispatch.backlog import Backlog
from shared.runtime.errors import Overloaded
from shared.runtime.units import Epoch, Seconds

_packed = msgspec.msgpack.Encoder().encode


SOURCES = ("functions.lua", "trajectories.lua", "archive.lua")
"""One library; the later use what the first defines."""


class Deposed(Exception):
    """Another leader has taken over; what this one wanted to write was not written."""


class Submission(NamedTuple):
    """One item of `submit`."""

    action: str
    digest: bytes
    """Of everything that makes the request what it is; the same id with another digest is a conflict."""
    batch: str
    payload: bytes
    trajectory: str = ""
    """Whose environment it needs; it must be open."""
    tenant: str = ""
    """Whose kept answers count against it."""


class Receipt(NamedTuple):
    """What `submit` says of one item."""

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
    """`disk-short` is the caller's own: it asked with `max_journal` 0, because of its disk."""
    entry: str
    """The journal entry (accepted, repeated), the batch's state (batch-closed), its size (batch-full), the shortage
    (disk-short), or how the trajectory ended and why, with a blank between (trajectory-ended)."""


class Opening(NamedTuple):
    """What `open_batch` says."""

    code: Literal["opened", "repeated", "conflict"]
    """Conflict: under this key a batch of another size was opened."""
    batch: str
    """The batch of this key."""


class IdKey(NamedTuple):
    """What derived ids are made with."""

    key: bytes
    older_until: float
    """Until when ids that an older version made without a key are looked for: Unix seconds; 0 in a fresh store."""


class Answering(NamedTuple):
    """One item of `finish`."""

    action: str
    entry: str
    batch: str
    answer: bytes
    keep_s: int
    """How long the answer is kept, outside a batch. Inside one, the batch's retention counts."""
    tenant: str = ""
    """Whose kept answers it adds to."""
    masked: str = ""
    """Of an action in a trajectory whose answer is masked: how it ended, a blank, and why."""
    outcome: str = ""
    """Entry of `outcomes` that it rests on, which is dropped with this."""
    unqueued_end_ms: int = 0
    """When it would have been done had it never queued, Unix milliseconds: the latest of a batch is kept with it."""


class Advancing(NamedTuple):
    """One item of `advance`."""

    action: str
    stage: int
    """Index of the stage that begins."""
    carried: bytes
    """What the stages before took."""
    outcome: str = ""
    """Entry of `outcomes` that ended the stage before, which is dropped with this."""


class Granting(NamedTuple):
    """One item of `grant`: a message to a node; `action` is empty for messages about no action."""

    stream: str
    payload: bytes
    action: str = ""
    mark: str = ""
    """`attempt:node`, kept with the action so that a new leader knows where it went."""
    trajectory: str = ""
    """Its environment begins with this grant."""
    placement: bytes = b""
    """Then: where, for a new leader (`shared.bus.trajectories.Placement`)."""


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
    """Load (or replace) the function library. It is part of Valkey's own durable state afterwards.

    What is there already is left alone: loading is refused while memory is full, when services must still come back.
    """
    source = "".join(files("shared.bus").joinpath(name).read_text("utf-8") for name in SOURCES)
    known = await command(redis, "FUNCTION", "LIST", "LIBRARYNAME", "treadle", "WITHCODE")
    if not any(source.encode() in library for library in known):
        await command(redis, "FUNCTION", "LOAD", "REPLACE", source)


async def call(redis: Redis, name: str, *args: Any) -> Any:
    """One function of the library, its plain reply.

    Raises:
        Deposed: a leader's function, and its epoch is over.
        Overloaded: Valkey's memory bound; nothing was written.
    """
    try:
        return await command(redis, "FCALL", name, 0, *args)
    except OutOfMemoryError as error:
        raise Overloaded(what=MEMORY_FULL, retry_after_s=2.0) from error
    except ResponseError as error:
        if str(error).startswith("FENCED"):
            raise Deposed from error
        raise


async def lead(redis: Redis, holder: str, ttl_s: Seconds) -> Epoch:
    """Take or keep the dispatching lease. Returns the epoch, or 0 while another holds it."""
    return int(await call(redis, "lead", holder, round(ttl_s * 1000)))


async def resign(redis: Redis, holder: str) -> None:
    """Give the lease back, if it is still ours."""
    await call(redis, "resign", holder)


async def submit(
    redis: Redis, submissions: Sequence[Submission], *, max_journal: int, most_kept: int = 0
) -> list[Receipt]:
    """Journal many requests in one step each atomically; accepted means this has returned.

    Args:
        redis: where.
        submissions: what to journal.
        max_journal: most unanswered actions of the whole mesh.
        most_kept: a tenant whose kept answers take so many bytes of Valkey's memory is refused; 0: none is.

    Raises:
        Overloaded: Valkey's memory bound; nothing of this call was accepted.
    """
    args: list[Any] = [max_journal, most_kept]
    for item in submissions:
        args += ("action:" + item.action, item.digest, item.batch, item.trajectory, item.tenant, item.payload)
    replies = await call(redis, "journal_actions", *args)
    return [Receipt(_CODES[code], entry.decode()) for code, entry in replies]


async def finish(redis: Redis, epoch: Epoch, answers: Sequence[Answering], *, keep_batch_s: Seconds) -> list[bool]:
    """Answer many actions, once each. False: it was answered before, and that answer stands.

    Raises:
        Deposed: this leader's epoch is over; nothing was written.
    """
    args: list[Any] = [epoch, round(keep_batch_s)]
    for item in answers:
        args += item
    return [flag == 1 for flag in await call(redis, "answer_actions", *args)]


async def grant(redis: Redis, epoch: Epoch, grants: Sequence[Granting]) -> None:
    """Send messages to nodes, in order.

    Raises:
        Deposed: this leader's epoch is over; nothing was sent.
    """
    args: list[Any] = [epoch]
    for item in grants:
        args += item
    await call(redis, "send_grants", *args)


async def advance(redis: Redis, epoch: Epoch, steps: Sequence[Advancing]) -> None:
    """Move requests to their next stage."""
    args: list[Any] = [epoch]
    for step in steps:
        args += step
    await call(redis, "advance_stages", *args)


async def discard(redis: Redis, epoch: Epoch, entries: Sequence[str]) -> None:
    """Delete journal entries that were no requests and have been dealt with."""
    await call(redis, "discard", epoch, *entries)


async def tell_backlog(redis: Redis, epoch: Epoch, backlog: Backlog, batches: BatchesSeen | None = None) -> None:
    """Write down what waits, for every replica to read, and where the requests of open batches stand.

    `batches` None: what was told of them holds.

    Raises:
        Deposed: this leader's epoch is over; nothing was written.
    """
    args: list[Any] = [epoch, _packed(backlog.pools), _packed(backlog.stuck)]
    if batches is not None:
        args.append(seen.encode(batches))
    await call(redis, "tell_backlog", *args)


async def publish(redis: Redis, stream: str, maxlen: int, payloads: Sequence[bytes]) -> None:
    """Append to a bounded stream even when memory is full: what nodes report is what frees it."""
    await call(redis, "publish", stream, maxlen, *payloads)


async def open_batch(
    redis: Redis, opened: BatchOpened, *, idempotency_key: str, asked: int | None, fields: dict[str, Any]
) -> Opening:
    """Open a batch, once per idempotency key.

    Args:
        redis: where.
        opened: what is said of it; its size is what `asked` comes to.
        idempotency_key: the caller's; empty: none.
        asked: the size that the caller named, if any.
        fields: what else its hash shall hold.
    """
    flat = [part for pair in fields.items() for part in pair]
    message = BATCHES.encode(opened)
    sizes = (asked or 0, opened.size or 0)
    code, batch = await call(redis, "open_batch", opened.batch, idempotency_key, message, *sizes, *flat)
    return Opening(_OPENINGS[code], batch.decode())


async def end_batch(redis: Redis, batch: str, state: str, *, keep_batch_s: Seconds) -> str | None:
    """Seal, cancel or abandon a batch. Returns the state it has now; None when there is no such batch."""
    reply = await call(redis, "end_batch", batch, state, round(keep_batch_s))
    return None if reply is None else reply.decode()


async def progress(redis: Redis, report: RolloutProgress) -> str | None:
    """Say how far a rollout is. Returns the batch's state; None: no such batch. Said where it is open or sealed.

    Raises:
        Overloaded: Valkey's memory bound; nothing was said.
    """
    reply = await call(redis, "progress", report.batch, BATCHES.encode(report))
    return None if reply is None else reply.decode()


async def id_key(redis: Redis, candidate: bytes, window_s: Seconds) -> IdKey:
    """The store's key of derived ids; `candidate` where it has none yet."""
    key, older_until_ms = await call(redis, "id_key", candidate, round(window_s * 1000))
    return IdKey(key, int(older_until_ms) / 1000)


async def cancel(redis: Redis, action: str, reason: str) -> Literal["asked", "answered", "unknown"]:
    """Ask the leader to cancel an action."""
    code = await call(redis, "cancel", action, reason)
    return "asked" if code == 1 else "answered" if code == 0 else "unknown"
