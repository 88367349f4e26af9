"""Brakes of quotas in Valkey: for a new leader, and for every replica to show. The leader's ledger decides; this stores.

They are written within half a second of a change, not with the answer that has caused it. So a leader that is killed
may lose the last half second: the next one asks the service once more than needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command
from shared.bus.functions import call
from shared.bus.keys import Role
from shared.policy.model.brakes import Brake
from shared.runtime.units import Epoch

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Brake).decode


async def publish_brakes(redis: Redis, epoch: Epoch, brakes: Mapping[str, Brake]) -> None:
    """Store all brakes, instead of what was stored before. O(brakes).

    Raises:
        Deposed: this leader's epoch is over; nothing was written.
    """
    args: list[Any] = [epoch]
    for quota, brake in brakes.items():
        args += (quota, _encode(brake))
    await call(redis, "publish_reasons_v1", (keys.epoch(Role.DISPATCHER), keys.QUOTA_BRAKES), *args)


async def read_brakes(redis: Redis) -> dict[str, Brake]:
    """Return the brakes by quota, as last stored. One of another version is left out. O(brakes)."""
    flat = await command(redis, "HGETALL", keys.QUOTA_BRAKES)
    found: dict[str, Brake] = {}
    for quota, value in zip(flat[::2], flat[1::2], strict=True):
        try:
            found[quota.decode()] = _decode(value)
        except msgspec.MsgspecError:
            continue
    return found
