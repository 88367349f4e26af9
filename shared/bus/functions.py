"""The server-side function library, and typed calls of its functions for actions. All are atomic and safe to repeat.

Calls of the other functions are beside the keys that they change: `lease`, `batches`, `trajectories`, `archive`,
`nodes`, `backlog`, `identity`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Literal, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError, ResponseError

from shared.bus import keys
from shared.bus.connection import MEMORY_FULL, command
from shared.bus.holds import Change, Taking, pack
from shared.bus.keys import KeyList, Role
from shared.policy.model.quotas import Settled
from shared.runtime.errors import Overloaded
from shared.runtime.units import Epoch, Seconds

SOURCES = (
    "base.lua",
    "leases.lua",
    "journal.lua",
    "batches.lua",
    "answers.lua",
    "artifacts.lua",
    "grants.lua",
    "granted_submissions.lua",
    "quotas.lua",
    "held_leases.lua",
    "trajectories.lua",
    "traces.lua",
    "archive.lua",
    "nodes.lua",
    "mesh.lua",
)
"""Files of one library in the folder `library`. Each uses definitions of those before it."""


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
    """Time at which it would have finished without queueing, Unix milliseconds. The batch keeps the latest."""
    trajectory: str = ""
    """Trajectory whose environment it needed. Its action is not executed again."""
    used: bytes = b""
    """Usage of an action in a trajectory, JSON: summed for the batch that the trajectory names."""
    settled: tuple[Settled, ...] = ()
    """Holds of its attempts."""
    traced_by: str = ""
    """Trajectory whose trace shows it; empty: none."""
    span: bytes = b""
    """What the trace shows (`shared.bus.traces.encode_action`)."""


class Advancing(NamedTuple):
    """One item of `advance_stages`."""

    action: str
    stage: int
    """Index of the stage that begins."""
    carried: bytes
    """Measurements of the earlier stages."""
    outcome: str = ""
    """Entry of `outcomes` that ended the earlier stage. It is deleted together with this."""
    settled: tuple[Settled, ...] = ()
    """Holds of the earlier stage's attempts."""


class Granting(NamedTuple):
    """One item of `send_grants`: a message to a node."""

    stream: str
    payload: bytes
    action: str = ""
    """Action whose record changes with the message; empty: none. Without a record nothing is sent."""
    mark: str = ""
    """`attempt:node`, stored with the action so that a new leader can find its last grant; empty: no grant."""
    trajectory: str = ""
    """Trajectory whose environment begins with this grant."""
    placement: bytes = b""
    """Placement of that environment, for a new leader (`shared.bus.trajectories.StoredPlacement`)."""
    taking: Taking | None = None
    """Amounts that the attempt takes from quotas."""
    resumes: str = ""
    """Journal entry of the request to resume that the message fulfils; empty: none."""


CODES: dict[int, Any] = {
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
_EPOCH = keys.epoch(Role.DISPATCHER)


def source() -> str:
    """Return the library's source."""
    return "".join(files("shared.bus").joinpath("library", name).read_text("utf-8") for name in SOURCES)


def _alone(key: str) -> tuple[str]:
    return (key,)


def _action(name: str) -> tuple[str]:
    return (keys.action(name),)


async def load(redis: Redis) -> None:
    """Load (or replace) the function library. Afterwards it is part of Valkey's own durable state.

    An identical library is not loaded again. Valkey rejects loading while its memory is full, and services must be able
    to restart then.
    """
    wanted = source()
    known = await command(redis, "FUNCTION", "LIST", "LIBRARYNAME", "treadle", "WITHCODE")
    if not any(wanted.encode() in library for library in known):
        await command(redis, "FUNCTION", "LOAD", "REPLACE", wanted)


async def call(redis: Redis, name: str, keys: Sequence[str], *args: Any) -> Any:
    """Call one function of the library with the keys that it touches. Return its plain reply.

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
    touched = KeyList(keys.ACTIONS, keys.BATCHES, keys.KEPT, *(keys.action(item.action) for item in submissions))
    args: list[Any] = [max_journal, most_kept]
    for _, digest, batch, payload, trajectory, tenant in submissions:
        args += (
            digest,
            touched.position(batch, keys.submission_group) if batch else 0,
            touched.position(trajectory, keys.trajectory_group) if trajectory else 0,
            tenant,
            payload,
        )
    replies = await call(redis, "journal_actions_v2", touched.listed, *args)
    return [Receipt(CODES[code], entry.decode()) for code, entry in replies]


_ANSWERING = (
    _EPOCH,
    keys.ACTIONS,
    keys.ANSWERED,
    keys.OUTCOMES,
    keys.UNARCHIVED,
    keys.UNARCHIVED_ACTIONS,
    keys.KEPT,
    keys.KEPT_BATCHES,
    keys.BATCHES_OPEN,
    keys.BATCHES,
)


async def answer_actions(
    redis: Redis, epoch: Epoch, answers: Sequence[Answering], *, keep_batch_s: Seconds
) -> list[bool]:
    """Answer many actions, once each. False: the action had an answer, which stays.

    Raises:
        Deposed: this leader's epoch is over; nothing was written.
    """
    touched = KeyList(*_ANSWERING, *(keys.action(item.action) for item in answers))
    args: list[Any] = [epoch, round(keep_batch_s)]
    for item in answers:
        batch, trajectory = item.batch, item.trajectory
        args += (
            item.entry,
            touched.position(batch, keys.batch_group) if batch else 0,
            touched.position(trajectory, keys.trajectory_group) if trajectory else 0,
            item.answer,
            item.keep_s,
            item.tenant,
            item.masked,
            item.outcome,
            item.unqueued_end_ms,
            item.used,
        )
    settled = [change for item in answers for change in item.settled]
    return [flag == 1 for flag in await _call_with(settled, redis, "answer_actions", touched.listed, args)]


async def send_grants(redis: Redis, epoch: Epoch, grants: Sequence[Granting]) -> None:
    """Send messages to nodes, in order.

    Raises:
        Deposed: this leader's epoch is over; nothing was sent.
    """
    touched = KeyList(_EPOCH, keys.PLACEMENTS, keys.TRAJECTORIES_DUE)
    args: list[Any] = [epoch]
    for stream, payload, action, mark, trajectory, placement, _, resumes in grants:
        args += (
            touched.position(stream, _alone),
            payload,
            touched.position(action, _action) if action else 0,
            mark,
            resumes,
            touched.position(trajectory, keys.trajectory_group) if trajectory else 0,
            placement,
        )
    taken = [item.taking for item in grants if item.taking is not None]
    await _call_with(taken, redis, "send_grants", touched.listed, args)


async def advance_stages(redis: Redis, epoch: Epoch, steps: Sequence[Advancing]) -> None:
    """Move requests to their next stage."""
    args: list[Any] = [epoch]
    for _, stage, carried, outcome, _ in steps:
        args += (stage, carried, outcome)
    actions = (keys.action(step.action) for step in steps)
    settled = [change for step in steps for change in step.settled]
    await _call_with(settled, redis, "advance_stages", [_EPOCH, keys.OUTCOMES, *actions], args)


async def _call_with(
    changes: Sequence[Change], redis: Redis, name: str, touched: Sequence[str], args: Sequence[Any]
) -> Any:
    """Call a function together with changes of holds, in one atomic write."""
    if not changes:
        return await call(redis, f"{name}_v2", touched, *args)
    touched = (*touched, keys.QUOTA_HOLDS, keys.QUOTA_LEVELS)
    return await call(redis, f"{name}_with_quotas_v1", touched, *args, pack(changes))


async def discard(redis: Redis, epoch: Epoch, entries: Sequence[str]) -> None:
    """Delete processed journal entries that are not requests."""
    await call(redis, "discard_v2", (_EPOCH, keys.ACTIONS), epoch, *entries)


async def publish(redis: Redis, stream: str, maxlen: int, payloads: Sequence[bytes]) -> None:
    """Append to a bounded stream, even when memory is full, because nodes' reports lead to freed memory."""
    await call(redis, "publish_v2", (stream,), maxlen, *payloads)


async def cancel(redis: Redis, action: str, reason: str) -> Literal["requested", "answered", "unknown"]:
    """Request that the leader cancels an action."""
    code = await call(redis, "cancel_v2", (keys.action(action), keys.ACTIONS), reason)
    return "requested" if code == 1 else "answered" if code == 0 else "unknown"
