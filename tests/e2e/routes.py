"""Every route of the proxy that changes data; a new one must be added to one of these lists."""

from __future__ import annotations

from typing import Any

import aiohttp

Json = dict[str, Any]

ACTION = {"kind": "noop", "params": {}}
REWARD = {"task": "known", "params": {}}
SWEREX = "/v1/trajectories/{trajectory}/swerex"
BEGINS_WORK: dict[str, Json] = {
    "/v1/actions": ACTION,
    "/v1/acquire": {"quotas": {"known": 1}},
    "/v1/rewards": REWARD,
    "/v1/rewards/bulk": REWARD,
    "/v1/tasks/{task}/batches": {},
    "/v1/trajectories": {"environment": {}},
    "/v1/trajectories/{trajectory}/actions": {"kind": "env.bash", "params": {"line": "true"}},
    f"{SWEREX}/create_session": {"session_type": "bash", "session": "new"},
    f"{SWEREX}/run_in_session": {"action_type": "bash", "session": "default", "command": "true"},
    f"{SWEREX}/close_session": {"session_type": "bash", "session": "default"},
    f"{SWEREX}/execute": {"command": ["true"]},
    f"{SWEREX}/read_file": {"path": "a"},
    f"{SWEREX}/write_file": {"path": "a", "content": "b"},
    f"{SWEREX}/upload": {},
    "/run_code": {"code": "print(1)"},
    "/t/{tenant}/{task}/run_code": {"code": "print(1)"},
    "/retrieve": {"query": "a"},
    "/t/{tenant}/{task}/retrieve": {"query": "a"},
}
"""Bodies of the routes that begin work; that of an upload is `form`."""
BEGINS_NONE = {
    "/v1/actions/{id}/park",
    "/v1/actions/{id}/resume",
    "/v1/leases/{id}/renew",
    "/v1/leases/{id}/release",
    "/v1/leases/{id}/settle",
    "/v1/tasks/{task}",
    "/v1/tenants/{tenant}",
    "/v1/quotas/{quota}",
    "/v1/services/{service}",
    "/v1/trajectories/{trajectory}",
    "/v1/batches/{batch}/progress",
    "/v1/batches/{batch}/seal",
    f"{SWEREX}/close",
}
RETRIEVE: Json = {
    "stages": [{"name": "search", "kind": "search.retrieve", "params": {"url": "http://127.0.0.1:9/retrieve"}}]
}
"""Task `retrieve` of the routes that end so."""


def address(path: str, names: dict[str, str]) -> str:
    """Return the path with its names. `/retrieve` needs a task of its own."""
    return path.format(**{**names, "task": "retrieve"} if path.endswith("/retrieve") else names)


def form() -> aiohttp.FormData:
    """The body of an upload."""
    fields = aiohttp.FormData()
    fields.add_field("file", b"content", filename="a")
    fields.add_field("target_path", "a")
    fields.add_field("unzip", "false")
    return fields
