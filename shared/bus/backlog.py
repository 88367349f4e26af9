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
from shared.runtime.units import Epoch

T = TypeVar("T")

_packed = msgspec.msgpack.Encoder().encode
_pools = msgspec.msgpack.Decoder(list[PoolBacklog])
_stuck = msgspec.msgpack.Decoder(dict[str, int])


async def publish_backlog(
    redis: Redis, epoch: Epoch, backlog: Backlog, batches: OpenBatchesSnapshot | None = None
) -> None:
    """Publish the backlog for every replica, and where the requests of open batches are.

    `batches` None: the last published value stays.

    Raises:
        Deposed: this leader's epoch is over; nothing was written.
    """
    args: list[Any] = [epoch, _packed(backlog.pools), _packed(backlog.stuck)]
    if batches is not None:
        args.append(batch_snapshot.encode(batches))
    await call(redis, "publish_backlog_v2", (keys.epoch(Role.DISPATCHER), keys.BACKLOG), *args)


async def read_pools(redis: Redis) -> list[PoolBacklog]:
    """Return the pools with waiting work, most first, as last published."""
    return await _read(redis, "pools", _pools) or []


async def read_stuck(redis: Redis) -> dict[str, int]:
    """Return {batch: actions that no present node can execute}, as last published."""
    return await _read(redis, "stuck", _stuck) or {}


async def _read(redis: Redis, field: str, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
    """None if no leader has published yet, or one of another version has published another format."""
    packed: bytes | None = await command(redis, "HGET", keys.BACKLOG, field)
    try:
        return decoder.decode(packed) if packed is not None else None
    except msgspec.MsgspecError:
        return None
