"""Quotas in Valkey: limits, holds of attempts, and levels of rates. The leader's ledger decides; this stores it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command
from shared.bus.functions import call
from shared.bus.holds import Change, pack
from shared.bus.keys import Role
from shared.messages.quotas import QUOTA_CHANGES, QuotaChanged
from shared.policy.model.quotas import QuotaHold, QuotaLimits
from shared.runtime.units import Epoch

_json = msgspec.json.Encoder().encode


class _StoredHold(msgspec.Struct, array_like=True):
    action: str
    stage: int
    attempt: int
    node: str
    incarnation: str
    at_s: float
    amounts: dict[str, float]


_decode_hold = msgspec.json.Decoder(_StoredHold).decode
_decode_limits = msgspec.json.Decoder(QuotaLimits).decode


class StoredLevel(NamedTuple):
    """Level of one rate."""

    quota: str
    period_s: float | None
    used: float
    at_s: float


class StoredQuotas(NamedTuple):
    """All data of quotas, for a new leader."""

    limits: dict[str, QuotaLimits]
    levels: list[StoredLevel]
    holds: list[QuotaHold]


async def change_holds(redis: Redis, epoch: Epoch, changes: Sequence[Change]) -> None:
    """Store changes of holds that no grant, answer or advance carries.

    Raises:
        Deposed: this leader's epoch is over; nothing was written.
    """
    touched = (keys.epoch(Role.DISPATCHER), keys.QUOTA_HOLDS, keys.QUOTA_LEVELS)
    await call(redis, "change_holds", touched, epoch, pack(changes))


async def set_quota(redis: Redis, name: str, limits: QuotaLimits | None) -> None:
    """Create, change or delete (None) a quota. The leader applies it; amounts that are taken stay taken."""
    message = QUOTA_CHANGES.encode(QuotaChanged(name=name, limits=limits))
    stored = b"" if limits is None else _json(limits)
    touched = (keys.QUOTAS, keys.QUOTA_CHANGES)
    await call(redis, "set_quota", touched, name, stored, QUOTA_CHANGES.maxlen, message)


async def read_quotas(redis: Redis) -> StoredQuotas:
    """Read limits, levels and holds. O(quotas + attempts that hold some)."""
    limits, levels, holds = [await _pairs(redis, key) for key in (keys.QUOTAS, keys.QUOTA_LEVELS, keys.QUOTA_HOLDS)]
    return StoredQuotas(
        {name.decode(): _decode_limits(value) for name, value in limits},
        [_read_level(field.decode(), value.decode()) for field, value in levels],
        [_read_hold(value) for _, value in holds],
    )


async def _pairs(redis: Redis, key: str) -> list[tuple[bytes, bytes]]:
    flat = await command(redis, "HGETALL", key)
    return list(zip(flat[::2], flat[1::2], strict=True))


def _read_level(field: str, value: str) -> StoredLevel:
    period, _, name = field.partition(" ")
    used, _, at_s = value.partition(" ")
    return StoredLevel(name, float(period) if period else None, float(used), float(at_s))


def _read_hold(value: bytes) -> QuotaHold:
    one = _decode_hold(value)
    return QuotaHold(one.action, one.stage, one.attempt, one.node, one.incarnation, one.at_s, one.amounts)
