"""The backlog: what waits and where, as the leader last published it."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.connection import command
from shared.bus.functions import call
from shared.bus.keys import Role
from shared.messages import batch_snapshot
from shared.messages.batch_snapshot import OpenBatchesSnapshot
from shared.policy.dispatch.backlog import Backlog, PoolBacklog
from shared.policy.model.waiting import QuotaBacklog, WaitingReason, WaitingReasons
from shared.runtime.units import Epoch

T = TypeVar("T")

_packed = msgspec.msgpack.Encoder().encode
_pools = msgspec.msgpack.Decoder(list[PoolBacklog])
_stuck = msgspec.msgpack.Decoder(dict[str, int])
_quotas = msgspec.msgpack.Decoder(dict[str, QuotaBacklog])
_reason = msgspec.msgpack.Decoder(WaitingReason)
_classes = msgspec.msgpack.Decoder(dict[str, WaitingReason])
_CLASSES = "classes"


async def publish_backlog(
    redis: Redis, epoch: Epoch, backlog: Backlog, batches: OpenBatchesSnapshot | None = None
) -> None:
    """Publish the backlog for every replica, and where the requests of open batches are.

    `batches` None: the last published value stays.

    Raises:
        Deposed: this leader's epoch is over; nothing was written.
    """
    args: list[Any] = [epoch, _packed(backlog.pools), _packed(backlog.stuck), _packed(backlog.quotas)]
    if batches is not None:
        args.append(batch_snapshot.encode(batches))
    await call(redis, "publish_backlog_v3", (keys.epoch(Role.DISPATCHER), keys.BACKLOG), *args)


async def publish_reasons(redis: Redis, epoch: Epoch, reasons: WaitingReasons) -> None:
    """Publish why actions wait, for every replica, instead of what was published before. O(reasons).

    Raises:
        Deposed: this leader's epoch is over; nothing was written.
    """
    args: list[Any] = [epoch]
    for (action, stage), reason in reasons.actions.items():
        args += (f"{action}:{stage}", _packed(reason))
    if reasons.classes:
        args += (_CLASSES, _packed(reasons.classes))
    await call(redis, "publish_reasons_v1", (keys.epoch(Role.DISPATCHER), keys.REASONS), *args)


async def read_reason(redis: Redis, action: str, stage: int) -> tuple[WaitingReason, dict[str, WaitingReason]]:
    """Return why an action waits in a stage, as last published; and the reasons of classes if it is not named."""
    named, classes = await command(redis, "HMGET", keys.REASONS, f"{action}:{stage}", _CLASSES)
    try:
        if named is not None:
            return _reason.decode(named), {}
        return WaitingReason(), _classes.decode(classes) if classes is not None else {}
    except msgspec.MsgspecError:  # of another version
        return WaitingReason(), {}


async def read_pools(redis: Redis) -> list[PoolBacklog]:
    """Return the pools with waiting work, most first, as last published."""
    return await _read(redis, "pools", _pools) or []


async def read_stuck(redis: Redis) -> dict[str, int]:
    """Return {batch: actions that no present node can execute}, as last published."""
    return await _read(redis, "stuck", _stuck) or {}


async def read_quota_backlogs(redis: Redis) -> dict[str, QuotaBacklog]:
    """Return what waits for quotas that are held or waited for, as last published."""
    return await _read(redis, "quotas", _quotas) or {}


async def _read(redis: Redis, field: str, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
    """None if no leader has published yet, or one of another version has published another format."""
    packed: bytes | None = await command(redis, "HGET", keys.BACKLOG, field)
    try:
        return decoder.decode(packed) if packed is not None else None
    except msgspec.MsgspecError:
        return None
