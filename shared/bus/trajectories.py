"""Typed calls of the server-side functions in `library/trajectories.lua`. All are atomic and safe to repeat."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec
from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command
from shared.bus.functions import call
from shared.bus.keys import Role
from shared.messages.environments import LOCAL, TRAJECTORIES, EnvironmentsExpected, EnvironmentSpec
from shared.runtime.units import Epoch, Seconds

READ_AT_ONCE = 512


class TrajectoryOpeningResult(NamedTuple):
    """Result of `open_trajectory`."""

    code: Literal["opened", "repeated", "conflict", "full"]
    """Conflict: this key has opened another trajectory; full: too many are open."""
    trajectory: str
    """The trajectory of this key; empty if too many are open."""


class StoredPlacement(msgspec.Struct, frozen=True, array_like=True):
    """Placement of an environment, as stored for the next leader."""

    node: str
    units: dict[str, int]
    """Units that it holds on that node until it ends."""


class PriorityReceipt(NamedTuple):
    """Result of `set_priority`."""

    code: Literal["set", "ended", "unknown"]
    how: str
    """If it has ended: its state, a space, and the reason."""


class TrajectoryStatus(NamedTuple):
    """Status of a trajectory."""

    state: str
    """`open`, or how it ended; empty: there is no record (any more)."""
    reason: str


@dataclass(frozen=True, slots=True)
class EnvironmentStatus:
    """State of a trajectory's environment."""

    unmade: str
    """Reason why its last creation failed; empty if it succeeded or was not tried."""
    placed: bool
    """It was granted on a node."""


class OpenedTrajectory(NamedTuple):
    """The constant fields of a trajectory that its actions need."""

    tenant: str
    task: str
    node_class: str
    environment: EnvironmentSpec


class TrajectoryRecord(NamedTuple):
    """The hash of a trajectory. Times are Unix seconds by Valkey's clock."""

    id: str
    state: str
    reason: str
    tenant: str
    task: str
    batch: str | None
    group: str
    request: str
    node_class: str
    node: str | None
    environment: EnvironmentSpec
    opened_at: float
    active_at: float
    ended_at: float | None
    priority: float = 0.0
    record: str = ""
    """`tokens`: those of its model calls are recorded."""


_INDEXES = (keys.TRAJECTORIES_OPEN, keys.TRAJECTORIES_DUE, keys.TRAJECTORIES_ENDED)
_OPENINGS: dict[int, Any] = {1: "opened", 0: "repeated", -1: "conflict", -2: "full"}
_PRIORITIES: dict[int, Any] = {1: "set", 0: "ended", -1: "unknown"}
_spec = msgspec.msgpack.Decoder(EnvironmentSpec)
_placement = msgspec.msgpack.Decoder(StoredPlacement)
pack = msgspec.msgpack.Encoder().encode
"""Encodes a placement for the store."""


def _records(trajectories: Iterable[str]) -> list[str]:
    return [key for name in trajectories for key in keys.trajectory_group(name)]


async def open_trajectory(
    redis: Redis,
    trajectory: str,
    spec: EnvironmentSpec,
    *,
    idempotency_key: str,
    digest: bytes,
    most: int,
    keep_s: Seconds,
    node_class: str,
    fields: dict[str, Any],
) -> TrajectoryOpeningResult:
    """Open a trajectory, once per idempotency key.

    Args:
        redis: the client.
        trajectory: its id, if it is new.
        spec: its environment. An image of a registry is published as a hint.
        idempotency_key: the caller's; empty: none.
        digest: of the whole request. The same key with another digest is a conflict.
        most: most open trajectories in the whole mesh.
        keep_s: retention of its record after its end.
        node_class: class of the nodes that may have its environment.
        fields: further fields of its record.

    Raises:
        Overloaded: Valkey's memory bound is reached; nothing was opened.
    """
    hint = b""
    if spec.image != LOCAL:
        expected = EnvironmentsExpected(images=[spec.image], node_class=node_class, memory_mb=spec.memory_mb)
        hint = TRAJECTORIES.encode(expected)
    flat = [part for pair in fields.items() for part in pair]
    lives_s, kept_s = math.ceil(spec.lifetime_s), max(1, math.ceil(keep_s))
    touched = [keys.trajectory(trajectory), keys.TRAJECTORIES_OPEN, keys.TRAJECTORIES_DUE, keys.TRAJECTORIES]
    if idempotency_key:
        touched.append(keys.trajectory_key(fields["tenant"], idempotency_key))
    code, known = await call(redis, "open_trajectory_v2", touched, digest, most, lives_s, kept_s, hint, *flat)
    return TrajectoryOpeningResult(_OPENINGS[code], known.decode())


async def close_trajectory(redis: Redis, trajectory: str, reason: str) -> bool:
    """End an open trajectory at its trainer's request. No effect if it has ended. False: there is none."""
    touched = (*_INDEXES, keys.ACTIONS, *keys.trajectory_group(trajectory))
    return bool(await call(redis, "close_trajectory_v2", touched, reason) == 1)


async def set_priority(redis: Redis, trajectory: str, priority: float) -> PriorityReceipt:
    """Set the priority of an open trajectory, which the leader applies to its unanswered actions. Must be finite."""
    touched = (keys.ACTIONS, keys.trajectory(trajectory))
    code, how = await call(redis, "set_trajectory_priority_v1", touched, repr(float(priority)))
    return PriorityReceipt(_PRIORITIES[code], how.decode())


async def read_priorities(redis: Redis, trajectories: Sequence[str]) -> dict[str, float]:
    """Return the priorities of those of these trajectories whose priority was changed. One round trip per
    `READ_AT_ONCE` of them.
    """
    found: dict[str, float] = {}
    for start in range(0, len(trajectories), READ_AT_ONCE):
        chunk = trajectories[start : start + READ_AT_ONCE]
        pipe = redis.pipeline(transaction=False)
        for trajectory in chunk:
            pipe.hget(keys.trajectory(trajectory), "priority")
        priorities = zip(chunk, await pipe.execute(), strict=True)
        found |= {trajectory: float(priority) for trajectory, priority in priorities if priority is not None}
    return found


async def record_ends(redis: Redis, epoch: Epoch, ends: Sequence[tuple[str, str, str]]) -> None:
    """Record ended environments. Each item: (trajectory, how it ended or `unmade`, reason).

    Raises:
        Deposed: this leader's epoch is over; nothing was written.
    """
    touched = (
        *_INDEXES,
        keys.epoch(Role.DISPATCHER),
        keys.PLACEMENTS,
        *_records(trajectory for trajectory, _, _ in ends),
    )
    args = (part for _, *end in ends for part in end)
    await call(redis, "record_environment_ends_v2", touched, epoch, *args)


async def expire_trajectories(redis: Redis, epoch: Epoch, *, most: int = 256) -> list[str]:
    """End open trajectories whose time is over without a report of their end. At most `most` at once.

    Raises:
        Deposed: this leader's epoch is over; nothing was written.
    """
    seconds, micros = await command(redis, "TIME")
    now_ms = int(seconds) * 1000 + int(micros) // 1000
    due = await command(redis, "ZRANGEBYSCORE", keys.TRAJECTORIES_DUE, "-inf", now_ms, "LIMIT", 0, most)
    if not due:
        return []
    touched = (*_INDEXES, keys.ACTIONS, keys.epoch(Role.DISPATCHER), *_records(name.decode() for name in due))
    return [name.decode() for name in await call(redis, "expire_trajectories_v2", touched, epoch)]


async def expect(redis: Redis, images: Sequence[str], node_class: str = "") -> None:
    """Publish the hint that environments of these images will be needed."""
    message = TRAJECTORIES.encode(EnvironmentsExpected(images=list(images), node_class=node_class))
    await command(redis, "XADD", TRAJECTORIES.name, "MAXLEN", "~", TRAJECTORIES.maxlen, "*", "m", message)


async def read_placements(redis: Redis) -> AsyncIterator[dict[str, StoredPlacement]]:
    """Yield every placed environment that has not ended, in chunks. One may occur twice."""
    cursor = b"0"
    while True:
        cursor, flat = await command(redis, "HSCAN", keys.PLACEMENTS, cursor, "COUNT", READ_AT_ONCE)
        if flat:
            pairs = zip(flat[::2], flat[1::2], strict=True)
            yield {name.decode(): _placement.decode(packed) for name, packed in pairs}
        if cursor == b"0":
            return


async def read_statuses(redis: Redis, trajectories: Sequence[str]) -> dict[str, TrajectoryStatus]:
    """Return the status of these trajectories. One round trip per `READ_AT_ONCE` of them."""
    found: dict[str, TrajectoryStatus] = {}
    for start in range(0, len(trajectories), READ_AT_ONCE):
        chunk = trajectories[start : start + READ_AT_ONCE]
        pipe = redis.pipeline(transaction=False)
        for trajectory in chunk:
            pipe.hmget(keys.trajectory(trajectory), ["state", "reason"])
        for trajectory, (state, reason) in zip(chunk, await pipe.execute(), strict=True):
            found[trajectory] = TrajectoryStatus((state or b"").decode(), (reason or b"").decode())
    return found


async def read_environment(redis: Redis, trajectory: str) -> EnvironmentStatus:
    """Return the state of a trajectory's environment."""
    state, reason, node = await command(redis, "HMGET", keys.trajectory(trajectory), "state", "reason", "node")
    return EnvironmentStatus(reason.decode() if state == b"open" and reason else "", node is not None)


async def read_opened(redis: Redis, trajectory: str) -> OpenedTrajectory | None:
    """Return the constant fields of a trajectory; None: there is no such trajectory."""
    names = ("tenant", "task", "class", "spec")
    tenant, task, node_class, spec = await command(redis, "HMGET", keys.trajectory(trajectory), *names)
    if tenant is None or task is None or node_class is None or spec is None:
        return None
    return OpenedTrajectory(tenant.decode(), task.decode(), node_class.decode(), _spec.decode(spec))


async def newest_trajectories(redis: Redis, start: int, count: int, *, is_open: bool) -> list[str]:
    """Return open or ended trajectories from position `start`, newest first."""
    index = keys.TRAJECTORIES_OPEN if is_open else keys.TRAJECTORIES_ENDED
    return [name.decode() for name in await command(redis, "ZREVRANGE", index, start, start + count - 1)]


async def read_records(redis: Redis, trajectories: Sequence[str]) -> list[TrajectoryRecord | None]:
    """Return the record of each trajectory, in one round trip. None: there is none (any more)."""
    pipe = redis.pipeline(transaction=False)
    for name in trajectories:
        pipe.hgetall(keys.trajectory(name))
    rows = await pipe.execute() if trajectories else []
    fields = [dict(zip(row[::2], row[1::2], strict=True)) for row in rows]
    return [_record(name, each) if each else None for name, each in zip(trajectories, fields, strict=True)]


def _record(name: str, fields: dict[bytes, bytes]) -> TrajectoryRecord:
    return TrajectoryRecord(
        id=name,
        state=fields[b"state"].decode(),
        reason=fields[b"reason"].decode(),
        tenant=fields[b"tenant"].decode(),
        task=fields[b"task"].decode(),
        batch=fields[b"batch"].decode() if b"batch" in fields else None,
        group=fields[b"group"].decode(),
        request=fields[b"request"].decode(),
        node_class=fields[b"class"].decode(),
        node=fields[b"node"].decode() if b"node" in fields else None,
        environment=_spec.decode(fields[b"spec"]),
        opened_at=int(fields[b"opened_ms"]) / 1000,
        active_at=int(fields[b"active_ms"]) / 1000,
        ended_at=int(fields[b"ended_ms"]) / 1000 if b"ended_ms" in fields else None,
        priority=float(fields.get(b"priority", b"0")),
        record=fields.get(b"record", b"").decode(),
    )
