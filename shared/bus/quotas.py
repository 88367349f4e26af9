"""Quotas in Valkey: limits, holds of attempts, and levels of rates. The leader's ledger decides; this stores it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import msgspec
from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command
from shared.bus.functions import call
from shared.bus.holds import Change, pack
from shared.bus.keys import Role
from shared.messages.quotas import QUOTA_CHANGES, QuotaChanged
from shared.policy.model.quotas import Level, QuotaHold, QuotaLimits
from shared.runtime.units import Epoch, Seconds

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


MOST_QUOTAS: Final = 1_000
"""Most quotas. A new leader and `GET /v1/quotas` read all of them."""
SPENT_KEPT_S: Final[Seconds] = 604800.0
"""Time for which a level without refill is kept after its quota was deleted: a quota of that name may be created again,
with the same budget."""


class StoredLevel(NamedTuple):
    """Level of one rate."""

    quota: str
    period_s: float | None
    used: float
    at_s: float
    per_s: float
    """Refill since `at_s`, amount per second."""
    most: float | None = None
    """`Level.most`; None: a former version has stored it."""
    new_s: float = 0.0
    """`Level.new_s`."""

    @property
    def level(self) -> Level:
        """The level."""
        return Level(self.used, self.at_s, self.per_s, self.most, self.new_s)

    def is_expired(self, now: Seconds) -> bool:
        """Return whether nothing is missing any more, or the level is without refill and older than `SPENT_KEPT_S`."""
        if not self.per_s:
            return now - self.at_s > SPENT_KEPT_S
        return self.used <= (now - self.at_s) * self.per_s


class StoredQuotas(NamedTuple):
    """All data of quotas, for a new leader."""

    limits: dict[str, QuotaLimits]
    levels: list[StoredLevel]
    holds: list[QuotaHold]


class QuotaStatus(NamedTuple):
    """A quota and what is taken of it, for people."""

    limits: QuotaLimits
    levels: dict[float | None, Level]
    """Period -> level of its rate."""
    held: float
    """Amount that attempts hold."""
    actions: int
    """Number of these attempts."""


async def change_holds(redis: Redis, epoch: Epoch, changes: Sequence[Change]) -> None:
    """Store changes of holds that no grant, answer or advance carries.

    Raises:
        Deposed: this leader's epoch is over; nothing was written.
    """
    touched = (keys.epoch(Role.DISPATCHER), keys.QUOTA_HOLDS, keys.QUOTA_LEVELS)
    await call(redis, "change_holds_v2", touched, epoch, pack(changes))


async def set_quota(redis: Redis, name: str, limits: QuotaLimits | None, *, most: int = MOST_QUOTAS) -> bool:
    """Create, change or delete (None) a quota. The leader applies it; amounts that are taken stay taken. False: there
    are `most` other quotas, and nothing was written.
    """
    message = QUOTA_CHANGES.encode(QuotaChanged(name=name, limits=limits))
    stored = b"" if limits is None else _json(limits)
    touched = (keys.QUOTAS, keys.QUOTA_CHANGES)
    return bool(await call(redis, "set_quota_v2", touched, name, stored, QUOTA_CHANGES.maxlen, message, most))


async def read_quotas(redis: Redis) -> StoredQuotas:
    """Read limits, levels and holds. O(quotas + attempts that hold some)."""
    limits, levels, holds = [await _pairs(redis, key) for key in (keys.QUOTAS, keys.QUOTA_LEVELS, keys.QUOTA_HOLDS)]
    return StoredQuotas(
        {name.decode(): _decode_limits(value) for name, value in limits},
        [_read_level(field.decode(), value.decode()) for field, value in levels],
        [_read_hold(value) for _, value in holds],
    )


async def read_limits(redis: Redis, names: Collection[str]) -> dict[str, QuotaLimits]:
    """Read the limits of those of these quotas that exist."""
    stored = await command(redis, "HMGET", keys.QUOTAS, *names) if names else []
    return {name: _decode_limits(value) for name, value in zip(names, stored, strict=True) if value is not None}


async def read_statuses(redis: Redis, *names: str) -> dict[str, QuotaStatus]:
    """Return the quotas of these names, or all, with what is taken. O(quotas + attempts that hold some)."""
    stored = await read_quotas(redis)
    wanted = {name: limits for name, limits in stored.limits.items() if not names or name in names}
    statuses = {name: QuotaStatus(limits, {}, 0.0, 0) for name, limits in wanted.items()}
    for level in stored.levels:
        if level.quota in statuses:
            statuses[level.quota].levels[level.period_s] = level.level
    for hold in stored.holds:
        for name, amount in hold.amounts.items():
            if name in statuses:
                one = statuses[name]
                statuses[name] = one._replace(held=one.held + amount, actions=one.actions + 1)
    return statuses


async def expire_levels(redis: Redis, epoch: Epoch, now: Seconds) -> list[StoredLevel]:
    """Remove the levels of deleted quotas and of changed periods that have refilled (`is_expired`); return them.
    One that changes meanwhile stays. The leader removes its own copy at a tick (`Quotas.forget_full`).

    `now`: Unix seconds by Valkey's clock. O(quotas + levels), with one round trip more if any is removed.

    Raises:
        Deposed: this leader's epoch is over; nothing was removed.
    """
    stored = await _pairs(redis, keys.QUOTA_LEVELS)
    if not stored:
        return []
    limits = {name.decode(): _decode_limits(value) for name, value in await _pairs(redis, keys.QUOTAS)}
    rates = {(name, rate.period_s) for name, one in limits.items() for rate in one.rates}
    expired: list[StoredLevel] = []
    arguments: list[bytes] = []
    for field, value in stored:
        level = _read_level(field.decode(), value.decode())
        if (level.quota, level.period_s) not in rates and level.is_expired(now):
            expired.append(level)
            arguments += (field, value)
    if expired:
        touched = (keys.epoch(Role.DISPATCHER), keys.QUOTA_LEVELS)
        await call(redis, "expire_levels_v1", touched, epoch, *arguments)
    return expired


async def _pairs(redis: Redis, key: str) -> list[tuple[bytes, bytes]]:
    flat = await command(redis, "HGETALL", key)
    return list(zip(flat[::2], flat[1::2], strict=True))


def _read_level(field: str, value: str) -> StoredLevel:
    period, _, name = field.partition(" ")
    return StoredLevel(name, float(period) if period else None, *(float(part) for part in value.split(" ")))


def _read_hold(value: bytes) -> QuotaHold:
    one = _decode_hold(value)
    return QuotaHold(one.action, one.stage, one.attempt, one.node, one.incarnation, one.at_s, one.amounts)
