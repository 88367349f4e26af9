"""Traces of trajectories in Valkey: what their actions have taken, from the leader's answers (`library/traces.lua`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command
from shared.bus.functions import Answering, call
from shared.bus.keys import KeyList, Role
from shared.runtime.units import Epoch, Seconds

MOST_TRACED: Final = 1024
"""Actions of one trace, the first ones."""
MOST_FOR_IT: Final = MOST_TRACED + 64
"""The same while an action that was only submitted for the trajectory is added: its grading comes last."""
_EPOCH: Final = keys.epoch(Role.DISPATCHER)


class TracedStage(msgspec.Struct, frozen=True, array_like=True):
    """One stage of a traced action."""

    name: str
    node: str
    units: int
    attempts: int
    queue_s: Seconds
    execution_s: Seconds
    parked_s: Seconds
    restore_s: Seconds = 0.0
    """Older ones end before it."""


class TracedAction(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One answered action. New fields go to its end, with a default, because stored ones are older."""

    name: str
    """Its kind; of a request with several stages its task."""
    arrived_s: Seconds
    """Unix time."""
    total_s: Seconds
    queue_s: Seconds
    execution_s: Seconds
    ended: str
    reason: str
    passed: bool | None
    score: float | None
    request: str
    batch: str
    stages: tuple[TracedStage, ...]
    in_environment: bool
    """It acted in the environment of the trajectory."""


encode_action: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(TracedAction).decode


async def trace_actions(redis: Redis, epoch: Epoch, answers: Sequence[Answering]) -> None:
    """Add answered actions to the traces of their trajectories.

    Raises:
        Deposed: this leader's epoch is over; nothing was written.
        Overloaded: Valkey's memory bound is reached; nothing was written.
    """
    touched = KeyList(_EPOCH)
    args: list[Any] = [epoch]
    for one in answers:
        args += (touched.position(one.traced_by, _traced), one.tenant, one.action, one.span)
        args.append(MOST_TRACED if one.trajectory else MOST_FOR_IT)
    await call(redis, "trace_actions_v1", touched.listed, *args)


async def read_trace(redis: Redis, trajectory: str) -> dict[str, TracedAction]:
    """Return action -> what the trace of a trajectory shows of it. O(its actions)."""
    flat = await command(redis, "HGETALL", keys.trace(trajectory))
    return {action.decode(): _decode(span) for action, span in zip(flat[::2], flat[1::2], strict=True)}


def _traced(trajectory: str) -> tuple[str, str]:
    return keys.trajectory(trajectory), keys.trace(trajectory)
