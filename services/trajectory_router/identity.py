"""CallIdentity of a call: its trajectory and group, from what clients and other routers send.

The first of these counts: the trajectory of the URL (`/r/{trajectory}/...`), `X-Trajectory-Id`, headers of other
routers (sglang-router, AIBrix, vllm-router, Dynamo), headers of agents, fields of the body. An id that was never
opened is as good as another: its calls stay on one worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgspec

HEADERS: Final = (
    b"x-trajectory-id",
    b"x-smg-routing-key",
    b"x-session-id",
    b"x-aibrix-session-key",
    b"x-dynamo-session-id",
    b"x-claude-code-session-id",
    b"session-id",
)
"""Headers that identify a trajectory, in their order."""
GROUP_HEADER: Final = b"x-trajectory-group"
MOST_ID: Final = 256
"""Characters of an id. A longer one counts by its digest."""


class ModelBody(msgspec.Struct, frozen=True):
    """The fields of a call's body that the router reads. All others pass as they are."""

    model: Any = None
    stream: Any = None
    priority: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    session_id: Any = None
    session_params: Any = None
    vllm_xargs: Any = None
    user: Any = None
    group_id: Any = None
    rid: Any = None


read_model_body = msgspec.json.Decoder(ModelBody).decode
"""Decode the fields that count. Raises `msgspec.DecodeError` if the body is no JSON object."""


class CallIdentity(NamedTuple):
    """Trajectory and group of a call; empty: none."""

    trajectory: str
    group: str


def identify(headers: Sequence[tuple[bytes, bytes]], body: ModelBody, own: str = "") -> CallIdentity:
    """Return the identity of a call. `own`: the trajectory of its URL."""
    given = dict(reversed(headers))  # of a repeated header the first counts
    group = _text(given.get(GROUP_HEADER, b"").decode("latin-1")) or _text(body.group_id)
    if own:
        return CallIdentity(own, group)
    for name in HEADERS:
        if name in given and (known := _text(given[name].decode("latin-1"))):
            return CallIdentity(known, group)
    for value in (
        body.session_id,
        _field(body.session_params, "session_id"),
        _field(body.vllm_xargs, "agentic_context"),
    ):
        if known := _text(value):
            return CallIdentity(known, group)
    return CallIdentity("", group)


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        return ""
    return (
        value if len(value) <= MOST_ID else blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    )
