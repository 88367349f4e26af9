"""Learned amounts of quotas in Valkey, for the next leader."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import Annotated

import msgspec
from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command
from shared.bus.functions import call
from shared.bus.keys import Role
from shared.bus.quotas import read_limits
from shared.policy.resources.quota_estimates import LAST, MOST_KEYS, Estimate, EstimateKey, QuotaEstimates
from shared.runtime.units import Epoch

_json = msgspec.json.Encoder().encode
_key = msgspec.json.Decoder(tuple[str, str, str]).decode
_uses = msgspec.json.Decoder(Annotated[tuple[float, ...], msgspec.Meta(min_length=1, max_length=LAST)]).decode


async def store_estimates(redis: Redis, epoch: Epoch, changed: Mapping[EstimateKey, Estimate]) -> None:
    """Store changed estimates. The hash has `MOST_KEYS` fields at most: beyond it, others are removed.

    Raises:
        Deposed: this leader's epoch is over; nothing was written.
    """
    args: list[bytes] = []
    for key, estimate in changed.items():
        args += (_json(key), _json(estimate.uses))
    touched = (keys.epoch(Role.DISPATCHER), keys.QUOTA_ESTIMATES)
    await call(redis, "store_estimates_v1", touched, epoch, MOST_KEYS, *args)


async def expected_amounts(redis: Redis, tenant: str, work: str, quotas: Collection[str]) -> dict[str, float]:
    """Return the amounts that an action would reserve now of quotas whose amounts are learned. `work`: task, otherwise
    kind. Two round trips.
    """
    keys_of = {name: (tenant, work, name) for name in quotas}
    stored = await command(redis, "HMGET", keys.QUOTA_ESTIMATES, *map(_json, keys_of.values())) if quotas else []
    estimates = QuotaEstimates()
    for key, value in zip(keys_of.values(), stored, strict=True):
        with contextlib.suppress(msgspec.MsgspecError):
            if value is not None:
                estimates.restore(key, Estimate.of(_uses(value)))
    limits = await read_limits(redis, quotas)
    return {name: estimates.expect(key, limits.get(name)) for name, key in keys_of.items()}


async def read_estimates(redis: Redis) -> dict[EstimateKey, Estimate]:
    """Return the stored estimates; those of another version are left out."""
    flat = await command(redis, "HGETALL", keys.QUOTA_ESTIMATES)
    found: dict[EstimateKey, Estimate] = {}
    for field, value in zip(flat[::2], flat[1::2], strict=True):
        try:
            found[_key(field)] = Estimate.of(_uses(value))
        except msgspec.MsgspecError:
            continue
    return found
