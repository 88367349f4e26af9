"""How one attempt ended, and its result as it travels: JSON of bounded size."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from shared.messages.outcomes import Evidence, ExecutionStatus
from shared.policy.model.formulation import TrajectoryEnd

_encoder = msgspec.json.Encoder()

EMPTY = b"{}"


class Done(NamedTuple):
    """What a node says of an attempt that has ended; durations and epochs are added by who tells it."""

    status: ExecutionStatus
    passed: bool | None = None
    score: float | None = None
    output: bytes = EMPTY
    """Known to be JSON."""
    reason: str = ""
    cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    retry_in_s: float = 0.0
    """Of one that was postponed."""
    evidence: Evidence = ""
    environment_ended: TrajectoryEnd = "lost"
    """Of `environment-lost`."""


def lost(reason: str) -> Done:
    """Our failure, to be tried again."""
    return Done("lost", reason=reason)


def refused(reason: str) -> Done:
    """What no other attempt would do."""
    return Done("refused", reason=reason)


def encode_output(output: dict[str, Any], limit: int) -> bytes:
    """JSON of an action's output, at most about `limit` bytes: long texts are cut and `truncated` says so.

    Raises:
        ValueError: it is nested too deeply to be written down; a trainer's function may return such a thing.
    """
    if not output:
        return EMPTY
    try:
        return _bounded(output, limit)
    except RecursionError:
        raise ValueError("the output is nested too deeply") from None


def encode_whole(output: dict[str, Any], limit: int) -> bytes | int:
    """JSON of an output that would mean something else if it were cut; its length where it is beyond the limit."""
    encoded = _encoder.encode(output)
    return encoded if len(encoded) <= limit else len(encoded)


def _bounded(output: dict[str, Any], limit: int) -> bytes:
    encoded = _encoder.encode(output)
    room = limit
    while len(encoded) > limit and room > 16:
        room //= 2
        encoded = _encoder.encode({**_cut(output, room), "truncated": True})
    return encoded if len(encoded) <= limit else _encoder.encode({"truncated": True})


def _cut(value: Any, room: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= room else value[:room]
    if isinstance(value, dict):
        return {key: _cut(part, room) for key, part in value.items()}
    if isinstance(value, list):
        return [_cut(part, room) for part in value[: max(1, room)]]
    return value
