"""Requests to park an action and to resume it: one atomic function each.

Callers and the action's node may park it. A node names itself as the `parker` and its `grant`: it resumes only what it
has parked itself, and nothing of a later attempt. A caller's request applies over the node's.
"""

from __future__ import annotations

from typing import Literal

from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.functions import call

ParkingReceipt = Literal["requested", "answered", "unknown", "no-trajectory", "not-running", "parked-by-another"]
_RECEIPTS: dict[int, ParkingReceipt] = {
    2: "parked-by-another",
    1: "requested",
    0: "answered",
    -1: "unknown",
    -2: "no-trajectory",
    -3: "not-running",
}


def grant_of(attempt: int, node: str) -> str:
    """Return the name of a grant, as the action's hash has it."""
    return f"{attempt}:{node}"


async def park(redis: Redis, action: str, reason: str, *, grant: str = "", parker: str = "") -> ParkingReceipt:
    """Request that the leader parks an action. May be repeated. `grant`: only this one, else `not-running`."""
    return _RECEIPTS[await call(redis, "park_v2", (keys.action(action), keys.ACTIONS), reason, grant, parker)]


async def resume(redis: Redis, action: str, *, grant: str = "", parker: str = "") -> ParkingReceipt:
    """Request that the leader lets a parked action continue. May be repeated. `not-running`: it was not parked.

    `parked-by-another`: a caller has parked it meanwhile, so it stays parked.
    """
    return _RECEIPTS[await call(redis, "resume_v2", (keys.action(action), keys.ACTIONS), grant, parker)]
