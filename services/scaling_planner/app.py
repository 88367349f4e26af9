"""App of the scaling planner: its process, lease and lifespan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TypedDict

from fastapi import FastAPI
from redis.asyncio import Redis

from services.scaling_planner.capacity import Capacity
from services.scaling_planner.service import PlannerService
from services.scaling_planner.settings import ScalingPlannerSettings
from shared.bus import functions
from shared.bus.connection import TRANSIENT, ValkeyClock, connect, patiently
from shared.bus.consumer import Consumer
from shared.bus.lease import Lease
from shared.bus.tail import Tail
from shared.messages.batches import BATCHES
from shared.messages.nodes import NODES
from shared.messages.targets import PLANNER_LEASE
from shared.policy.scaling.planner import Planner
from shared.policy.scaling.simulation_kernel import warm
from shared.runtime import log
from shared.runtime.app import build_app
from shared.runtime.background import Background
from shared.runtime.settings import load
from shared.store import database
from shared.store.database import Sessions
from shared.store.stimulus_log import StimulusLog

_log = log.get(__name__)

GROUP = "planner"
LOGS_KEPT = 9
"""Number of older stimulus logs that are kept when a new one begins."""

DESCRIPTION = """
Keeps the history of batches and decides how many units each pool holds. The proxy shows its decisions at `/v1/plans`.
"""


class State(TypedDict):
    """State that the lifespan yields."""

    terms: Terms


class LeaseLost(Exception):
    """Another planner holds the lease."""


@dataclass
class Terms:
    """Runs the planner whenever it holds the lease: a new planner for each term, rebuilt from Postgres."""

    settings: ScalingPlannerSettings
    sessions: Sessions
    redis: Redis
    deliveries: Redis
    reader: Redis
    clock: ValkeyClock
    service: PlannerService | None = None
    """Service of the present term."""
    stands_by: bool = False
    """Another planner holds the lease."""
    lease: Lease = field(init=False)

    def __post_init__(self) -> None:
        self.lease = Lease(self.redis, PLANNER_LEASE, self.settings.lease_s)

    async def run(self) -> None:
        """Campaign and plan, forever."""
        await asyncio.to_thread(warm)
        while True:
            if await patiently(self.lease.hold, what="asking for the planner's lease", patience_s=None):
                self.stands_by = False
                await self._plan()
            else:
                self.stands_by = True
            await asyncio.sleep(self.settings.lease_s / 3)

    async def _plan(self) -> None:
        """Run one term. It ends when one of its tasks ends."""
        settings = self.settings
        planner = Planner(settings.ways, settings.floors, settings.ceilings, settings.seed)
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
                    loops.create_task(self._keep_lease(service), name="lease")
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
            loops.create_task(service.keep_time(), name="reviews")
            keeping = service.keep_house(settings.housekeeping_s, settings.keep_history_s, settings.keep_plans_s)
            loops.create_task(keeping, name="housekeeping")

    async def _keep_lease(self, service: PlannerService) -> None:
        """Renew the lease while turns finish. If one is stuck, the lease expires, so that no work waits for its
        targets.
        """
        while True:
            await asyncio.sleep(self.settings.lease_s / 3)
            try:
                if service.turn_s <= self.settings.stuck_s and not await self.lease.hold():
                    raise LeaseLost
            except TRANSIENT as error:
                _log.warning("valkey_away", what="renewing the planner's lease", error=str(error))

    async def stop(self) -> None:
        """Release the lease, so that the next planner need not wait until it expires."""
        try:
            async with asyncio.timeout(1.0):
                await self.lease.let_go()
        except (*TRANSIENT, TimeoutError) as error:
            _log.warning("planner_lease_kept", error=str(error))


def create_app(settings: ScalingPlannerSettings | None = None) -> FastAPI:
    """The planner's ASGI app. `uvicorn --factory services.scaling_planner.app:create_app`."""
    settings = settings or load(ScalingPlannerSettings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[State]:
        url = settings.treadle.redis_url
        async with (
            connect(url, name="planner") as redis,
            connect(url, name="planner-batches") as deliveries,
            connect(url, name="planner-nodes") as reader,
            database.connect(settings.treadle.database_url, name="scaling_planner") as sessions,
        ):
            await patiently(lambda: functions.load(redis), what="loading functions", patience_s=30.0)
            clock = await ValkeyClock.measure(redis)
            terms = Terms(settings, sessions, redis, deliveries, reader, clock)
            app.state.terms, app.state.sessions = terms, sessions
            async with Background() as background:
                background.start(terms.run(), name="planner")
                yield State(terms=terms)
            await terms.stop()

    return build_app("scaling planner", lifespan, ready=_ready, description=DESCRIPTION)


async def _ready(app: FastAPI) -> str | None:
    terms: Terms = app.state.terms
    if not terms.stands_by and (terms.service is None or not terms.service.restored):
        return "histories are not loaded yet: Postgres has not answered"
    return None if await database.answers(app.state.sessions) else "Postgres does not answer: histories wait"
