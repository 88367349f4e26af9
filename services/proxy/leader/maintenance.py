"""Maintenance of a term: what a leader checks and removes at intervals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from redis.asyncio import Redis

from services.proxy.leader.interpreter import Interpreter
from services.proxy.leader.leader import Leader
from services.proxy.leader.tenant_weights import TenantWeights
from services.proxy.metrics import NODES, PARKED_NOW, UNANSWERED
from services.proxy.settings import ProxySettings
from shared.bus import batches, quotas, streams, trajectories
from shared.bus.connection import TRANSIENT, ValkeyClock
from shared.bus.functions import Deposed
from shared.bus.nodes import expire_hellos
from shared.bus.tail import Tail
from shared.messages.outcomes import OUTCOMES
from shared.runtime import log
from shared.runtime.units import Seconds

_log = log.get(__name__)

TRIM_BEHIND_S = 10.0
"""Seconds for which outcomes that no write has removed are kept after the leader has read them, for a successor that is
just taking over. They are small: the outputs of actions are removed with the answers based on them."""
SWEEP_S: Seconds = 10.0


@dataclass(slots=True)
class Maintenance:
    """Maintenance of one term."""

    redis: Redis
    leader: Leader
    interpreter: Interpreter
    tail: Tail
    weights: TenantWeights
    settings: ProxySettings
    check_planner: Callable[[Leader], Awaitable[None]]

    async def run(self) -> None:
        """Check the planner's lease and the tenants' weights, trim outcomes, and end abandoned batches."""
        leader, interpreter = self.leader, self.interpreter
        loop = asyncio.get_running_loop()
        swept = loop.time()  # not at once: after an outage of Valkey, nodes need some seconds to report
        while not interpreter.deposed:
            await asyncio.sleep(self.settings.lease_s / 3)
            UNANSWERED.set(len(leader.unanswered))
            PARKED_NOW.set(leader.dispatcher.parked)
            for state, count in leader.nodes.counts(leader.dispatcher.node_names()).items():
                NODES.labels(state).set(count)
            try:
                await self.check_planner(leader)
                await self.weights.refresh(leader)
                if loop.time() - swept > SWEEP_S:
                    swept = loop.time()
                    await self._sweep()
            except Deposed:
                interpreter.deposed = True
            except TRANSIENT as error:
                _log.warning("valkey_unavailable", what="maintenance", error=str(error))

    async def _sweep(self) -> None:
        leader, redis, settings = self.leader, self.redis, self.settings
        last = int(self.tail.last(OUTCOMES).partition("-")[0])
        if last and not leader.behind:  # else a successor may need what was read and not handled
            oldest = round(last - TRIM_BEHIND_S * 1000)
            await streams.trim_before(redis, OUTCOMES, oldest)
        for trajectory in await trajectories.expire_trajectories(redis, leader.epoch):
            _log.warning("trajectory_expired", trajectory=trajectory)
        for node in await expire_hellos(redis, leader.epoch, leader.dispatcher.node_names()):
            if leader.dispatcher.node(node) is None:  # else it has come back meanwhile
                leader.nodes.forget(node)
            _log.warning("silent_node_hello_deleted", node=node)
        now = (await ValkeyClock.measure(redis)).unix()
        await quotas.expire_levels(redis, leader.epoch, now)
        for batch in await batches.open_batches(redis):
            found = await batches.read_activity(redis, batch)
            if found is None:
                continue
            idle = found.submitted == found.answered and now - found.active_at > settings.batch_idle_s
            if idle or now - found.opened_at > settings.batch_lifetime_s:
                _log.warning("batch_abandoned", batch=batch, idle=idle)
                await batches.end_batch(redis, batch, "abandoned", keep_batch_s=settings.keep_batch_s)
