"""Requests to park an action and to resume it: one atomic function each."""

from __future__ import annotations

from typing import Literal

from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.functions import call

ParkingReceipt = Literal["requested", "answered", "unknown", "no-trajectory", "not-running"]
_RECEIPTS: dict[int, ParkingReceipt] = {
    1: "requested",
    0: "answered",
    -1: "unknown",
    -2: "no-trajectory",
    -3: "not-running",
}


async def park(redis: Redis, action: str, reason: str) -> ParkingReceipt:
    """Request that the leader parks an action. May be repeated."""
    return _RECEIPTS[await call(redis, "park_v1", (keys.action(action), keys.ACTIONS), reason)]


async def resume(redis: Redis, action: str) -> ParkingReceipt:
    """Request that the leader lets a parked action continue. May be repeated. `not-running`: it was not parked."""
    return _RECEIPTS[await call(redis, "resume_v1", (keys.action(action), keys.ACTIONS))]
