"""The backlog: what waits and where, as the leader last published it."""

from __future__ import annotations

from typing import Any

import msgspec
from redis.asyncio import Redis

from shared.bus import keys
from shared.bus.functions import call
from shared.bus.keys import Role
from shared.messages import batch_snapshot
from shared.messages.batch_snapshot import OpenBatchesSnapshot
from shared.policy.dispatch.backlog import Backlog
from shared.runtime.units import Epoch

_packed = msgspec.msgpack.Encoder().encode


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
