"""Backlog, batch snapshots, reasons of waiting and brakes of quotas: published by the leader periodically, read by any
replica.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from redis.asyncio import Redis

from services.proxy.metrics import QUEUED, QUOTA_HELD, QUOTA_WAITING, STUCK, show_upstreams
from shared.bus import backlog as bus_backlog
from shared.bus.brakes import publish_brakes
from shared.bus.connection import TRANSIENT, ValkeyClock
from shared.bus.functions import Deposed
from shared.messages import leases
from shared.messages.batch_snapshot import SNAPSHOT_INTERVAL_S, OpenBatchesSnapshot, UnansweredRequests, pack
from shared.policy.dispatch.backlog import Backlog
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.model.brakes import Brake
from shared.policy.model.waiting import WaitingReasons
from shared.runtime import log
from shared.runtime.units import Epoch, Seconds

_log = log.get(__name__)

PUBLISH_EVERY_S: Seconds = SNAPSHOT_INTERVAL_S
PAUSE_FACTOR = 50
"""Turns over very many waiting or stuck actions take at most 1/50 of the leader's time."""


async def publish_backlog(redis: Redis, epoch: Epoch, dispatcher: Dispatcher, clock: ValkeyClock) -> None:
    """Loop: publish the backlog, the batch snapshots, why actions wait and the brakes of quotas, whenever they have
    changed, until another leader has taken over.

    A turn costs O(unanswered actions) on the leader's loop. A new leader publishes its batch snapshots at once, also if
    there are none, to replace those of the former leader.
    """
    published: tuple[Backlog, dict[str, UnansweredRequests]] | None = None
    published_reasons: WaitingReasons | None = None
    published_brakes: dict[str, Brake] | None = None
    pause_s = 0.0
    while True:
        await asyncio.sleep(pause_s)
        before = time.monotonic()
        now = clock.unix()
        backlog, batches = _of_hosts(dispatcher.survey(now)), _seen(dispatcher)
        reasons, brakes = dispatcher.waiting_reasons(now), dispatcher.brakes()
        changed = published is None or batches != published[1]
        pause_s = max(PUBLISH_EVERY_S, PAUSE_FACTOR * (time.monotonic() - before))
        try:
            if published_reasons != reasons:
                await bus_backlog.publish_reasons(redis, epoch, reasons)
                published_reasons = reasons
            if published_brakes != brakes:
                await publish_brakes(redis, epoch, brakes)
                published_brakes = brakes
            show_upstreams(brakes, clock.unix())
            if published != (backlog, batches):
                seen = OpenBatchesSnapshot(clock.unix(), batches) if changed else None
                await bus_backlog.publish_backlog(redis, epoch, backlog, seen)
                published = backlog, batches
                _publish(backlog)
        except Deposed:
            return
        except TRANSIENT as error:
            _log.warning("valkey_unavailable", what="publishing the backlog", error=str(error))


def _of_hosts(backlog: Backlog) -> Backlog:
    """Return the backlog without the pool of leases, which has no host: callers wait there for quotas only."""
    return replace(backlog, pools=[pool for pool in backlog.pools if pool.name != leases.POOL])


def _publish(backlog: Backlog) -> None:
    """Set the gauges. Pools in which nothing waits have no entry."""
    for gauge, counts in (
        (QUEUED, {pool.name: pool.waiting for pool in backlog.pools}),
        (STUCK, {pool.name: pool.stuck for pool in backlog.pools}),
    ):
        gauge.clear()
        for name, count in counts.items():
            gauge.labels(name).set(count)
    QUOTA_WAITING.clear()
    QUOTA_HELD.clear()
    for name, one in backlog.quotas.items():
        QUOTA_WAITING.labels(name).set(one.actions)
        QUOTA_HELD.labels(name).set(one.held)


def _seen(dispatcher: Dispatcher) -> dict[str, UnansweredRequests]:
    return {
        name: UnansweredRequests([pack(times) for times in batch.queuing], [pack(times) for times in batch.running])
        for name, batch in dispatcher.batch_snapshots().items()
    }
