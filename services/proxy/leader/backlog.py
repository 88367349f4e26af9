"""Backlog and batch snapshots: published by the leader periodically, read by any replica."""

from __future__ import annotations

import asyncio
import time

from redis.asyncio import Redis

from services.proxy.leader.requests import to_need, to_work
from services.proxy.metrics import QUEUED, STUCK
from services.proxy.records.store import Store, Stored
from shared.bus import backlog as bus_backlog
from shared.bus.connection import TRANSIENT, ValkeyClock
from shared.bus.functions import Deposed
from shared.messages.batch_snapshot import SNAPSHOT_INTERVAL_S, OpenBatchesSnapshot, UnansweredRequests, pack
from shared.policy.dispatch.backlog import Backlog, why_it_waits_to_begin, why_stuck
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.runtime import log
from shared.runtime.units import Epoch, Seconds

_log = log.get(__name__)

PUBLISH_EVERY_S: Seconds = SNAPSHOT_INTERVAL_S
PAUSE_FACTOR = 50
"""A survey of very many stuck actions takes at most 1/50 of the leader's time."""


async def publish_backlog(redis: Redis, epoch: Epoch, dispatcher: Dispatcher, clock: ValkeyClock) -> None:
    """Loop: publish the backlog and the batch snapshots whenever they have changed, until another leader has taken
    over.

    With 16,000 unanswered requests of batches, a turn takes the leader 2.6 ms (7 ms if the core is shared) and writes
    140 KiB. A new leader publishes its batch snapshots at once, also if there are none, to replace those of the former
    leader.
    """
    published: tuple[Backlog, dict[str, UnansweredRequests]] | None = None
    pause_s = 0.0
    while True:
        await asyncio.sleep(pause_s)
        before = time.monotonic()
        backlog, batches = dispatcher.survey(), _seen(dispatcher)
        changed = published is None or batches != published[1]
        pause_s = max(PUBLISH_EVERY_S, PAUSE_FACTOR * (time.monotonic() - before))
        if published == (backlog, batches):
            continue
        try:
            seen = OpenBatchesSnapshot(clock.unix(), batches) if changed else None
            await bus_backlog.publish_backlog(redis, epoch, backlog, seen)
            published = backlog, batches
            _publish(backlog)
        except Deposed:
            return
        except TRANSIENT as error:
            _log.warning("valkey_unavailable", what="publishing the backlog", error=str(error))


def _publish(backlog: Backlog) -> None:
    """Set the gauges. Pools in which nothing waits have no entry."""
    for gauge, counts in (
        (QUEUED, {pool.name: pool.waiting for pool in backlog.pools}),
        (STUCK, {pool.name: pool.stuck for pool in backlog.pools}),
    ):
        gauge.clear()
        for name, count in counts.items():
            gauge.labels(name).set(count)


def _seen(dispatcher: Dispatcher) -> dict[str, UnansweredRequests]:
    return {
        name: UnansweredRequests([pack(times) for times in batch.queuing], [pack(times) for times in batch.running])
        for name, batch in dispatcher.batch_snapshots().items()
    }


async def reason_of(store: Store, stored: Stored) -> str:
    """Return why an unanswered action waits: it is stuck, or its environment cannot be created, or not yet. Else empty.

    One small read if nothing is stuck or held up; else the action's journal entry is read too. For an action of a
    trajectory also the trajectory's record.
    """
    pools = [pool for pool in await store.pools() if pool.lacks or pool.held_up]
    submitted = await store.submitted(stored.entry) if pools else None
    work = to_work(submitted.stages[stored.stage]) if submitted is not None else None
    if submitted is not None and work is not None and (reason := why_stuck(work, pools, to_need(submitted))):
        return reason
    if not stored.trajectory:
        return ""
    trajectory = await store.environment_status(stored.trajectory)
    if trajectory.unmade or trajectory.placed or work is None:
        return trajectory.unmade
    return why_it_waits_to_begin(work, pools)
