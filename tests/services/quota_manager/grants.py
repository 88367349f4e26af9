"""Grants of calls for unit tests."""

from __future__ import annotations

from typing import Any

import msgspec

from shared.messages.grants import Granted


def grant(params: dict[str, Any] | bytes, kind: str = "http", **changes: Any) -> Granted:
    """Return a grant of a call that takes one of the quota `search`."""
    encoded = params if isinstance(params, bytes) else msgspec.json.encode(params)
    fields: dict[str, Any] = {"quotas": {"search": 1.0}, "timeout_s": 30.0, "budget_s": 600.0, "attempt": 1, **changes}
    return Granted(action="a", epoch=1, tenant="ada", stage=0, work=kind, params=encoded, units={"calls": 1}, **fields)
