"""Terms of a planner: it plans for as long as it holds the lease, each term with a new planner and service."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from redis.asyncio import Redis

from services.scaling_planner.capacity import Capacity
from services.scaling_planner.service import PlannerService
from services.scaling_planner.settings import ScalingPlannerSettings
from shared.bus.connection import TRANSIENT, ValkeyClock, with_retries
from shared.bus.consumer import Consumer
from shared.bus.keys import Role
from shared.bus.lease import Lease
from shared.bus.tail import Tail
from shared.messages.batches import BATCHES
from shared.messages.nodes import NODES
from shared.policy.scaling.planner import Planner
from shared.policy.scaling.simulation_kernel import warm
from shared.runtime import log
from shared.store.database import Sessions
from shared.store.stimulus_log import StimulusLog

_log = log.get(__name__)

GROUP = "planner"
LOGS_KEPT = 9
"""Number of older stimulus logs that are kept when a new one begins."""


class LeaseLost(Exception):
    """Another planner holds the lease."""


@dataclass
class Terms:
    """Loop that plans whenever this process holds the lease. Each term rebuilds a new planner from Postgres."""

    settings: ScalingPlannerSettings
    sessions: Sessions
    redis: Redis
    deliveries: Redis
    reader: Redis
    clock: ValkeyClock
    service: PlannerService | None = None
    """Service of the present term."""
    standby: bool = False
    """Another planner holds the lease."""
    lease: Lease = field(init=False)

    def __post_init__(self) -> None:
        self.lease = Lease(self.redis, Role.PLANNER, self.settings.lease_s)

    async def run(self) -> None:
        """Loop: acquire the lease and plan."""
        await asyncio.to_thread(warm)
        while True:
            if await with_retries(self.lease.hold, what="acquiring the planner's lease", limit_s=None):
                self.standby = False
                await self._run_term()
            else:
                self.standby = True
            await asyncio.sleep(self.settings.lease_s / 3)

    async def _run_term(self) -> None:
        """Run one term, until one of its tasks ends."""
        settings = self.settings
        planner = Planner(settings.planner_config, settings.floors, settings.ceilings, settings.seed)
        async with AsyncExitStack() as open_files:
            stimulus_log = None
            if settings.stimulus_logs is not None:
                stimulus_log = StimulusLog.begin(
                    settings.stimulus_logs,
                    planner,
                    at=self.clock.unix(),
                    most_bytes=settings.stimulus_log_bytes,
                    kept=LOGS_KEPT,
                )
                open_files.callback(stimulus_log.close)
            capacity = Capacity(settings.node_lost_s)
            service = PlannerService(planner, capacity, self.sessions, self.redis, self.clock, stimulus_log)
            self.service = service
            try:
                async with asyncio.TaskGroup() as loops:
                    loops.create_task(self._renew_lease(service), name="lease")
                    loops.create_task(self._serve(service), name="planning")
            except* LeaseLost:
                _log.warning("planner_lease_lost")
            finally:
                self.service = None

    async def _serve(self, service: PlannerService) -> None:
        settings = self.settings
        await service.restore()
        consumer = Consumer(self.deliveries, BATCHES, group=GROUP, member=GROUP)
        nodes = Tail(self.reader, {NODES: "0"})
        async with asyncio.TaskGroup() as loops:
            loops.create_task(consumer.run(service.on_batch), name="batches")
            loops.create_task(service.follow_nodes(nodes), name="nodes")
            loops.create_task(service.wake_planner(), name="reviews")
            deletion = service.delete_old_rows(settings.housekeeping_s, settings.keep_history_s, settings.keep_plans_s)
            loops.create_task(deletion, name="housekeeping")

    async def _renew_lease(self, service: PlannerService) -> None:
        """Renew the lease while turns finish. If one is stuck, the lease expires, so that no work waits for its
        targets.
        """
        while True:
            await asyncio.sleep(self.settings.lease_s / 3)
            try:
                if service.turn_s <= self.settings.stuck_s and not await self.lease.hold():
                    raise LeaseLost
            except TRANSIENT as error:
                _log.warning("valkey_unavailable", what="renewing the planner's lease", error=str(error))

    async def stop(self) -> None:
        """Release the lease, so that the next planner need not wait until it expires."""
        try:
            async with asyncio.timeout(1.0):
                await self.lease.release()
        except (*TRANSIENT, TimeoutError) as error:
            _log.warning("planner_lease_not_released", error=str(error))
