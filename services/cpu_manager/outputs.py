"""Output of an attempt as it is sent: JSON of bounded size."""

from __future__ import annotations

from typing import Any

import msgspec

from shared.policy.model.results import EMPTY

_encoder = msgspec.json.Encoder()


def encode_output(output: dict[str, Any], limit: int) -> bytes:
    """Return an action's output as JSON of at most about `limit` bytes. Long texts are cut, and `truncated` is set.

    Raises:
        ValueError: the output is nested too deeply to encode. A trainer's function may return such a value.
    """
    if not output:
        return EMPTY
    try:
        return _bounded(output, limit)
    except RecursionError:
        raise ValueError("the output is nested too deeply") from None


def encode_whole(output: dict[str, Any], limit: int) -> bytes | int:
    """Return the output as JSON, or its length if it exceeds the limit. For outputs that must not be cut."""
    encoded = _encoder.encode(output)
    return encoded if len(encoded) <= limit else len(encoded)


def _bounded(output: dict[str, Any], limit: int) -> bytes:
    encoded = _encoder.encode(output)
    room = limit
    while len(encoded) > limit and room > 16:
        room //= 2
        encoded = _encoder.encode({**_shortened(output, room), "truncated": True})
    return encoded if len(encoded) <= limit else _encoder.encode({"truncated": True})


def _shortened(value: Any, room: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= room else value[:room]
    if isinstance(value, dict):
        return {key: _shortened(part, room) for key, part in value.items()}
    if isinstance(value, list):
        return [_shortened(part, room) for part in value[: max(1, room)]]
    return value
