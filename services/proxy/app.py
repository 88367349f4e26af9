"""The proxy as a process: its state is created and closed in one lifespan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response

from services.proxy.health import HealthMonitor, watch_restarts
from services.proxy.http.asgi import put_in_front
from services.proxy.http.bodies import Bodies
from services.proxy.http.held import HeldCalls
from services.proxy.http.openapi.document import extend_openapi
from services.proxy.http.retries import RunCodeRetries
from services.proxy.leader.leadership import Leadership
from services.proxy.leader.replicas import renew
from services.proxy.metrics import WAITING
from services.proxy.records.archiver import Archiver
from services.proxy.records.batch_service import BatchService
from services.proxy.records.disk import MEBIBYTE, StoreDisk, store_paths, watch_disk
from services.proxy.records.ids import Ids
from services.proxy.records.intake import Intake
from services.proxy.records.lease_service import LeaseService
from services.proxy.records.lease_waiters import LeaseWaiters
from services.proxy.records.memory import ValkeyMemory
from services.proxy.records.registries import Registries
from services.proxy.records.rollouts import Rollouts
from services.proxy.records.store import Store
from services.proxy.records.task_registry import TaskRegistry
from services.proxy.records.token_records import TokenRecords
from services.proxy.records.trajectory_service import TrajectoryService
from services.proxy.records.trajectory_traces import TrajectoryTraces
from services.proxy.records.waiters import Waiters
from services.proxy.routes import BARE_ROUTES, DESCRIPTION, ROUTERS, LifespanState, readiness
from services.proxy.settings import ProxySettings
from services.proxy.state import ProxyState
from shared.bus import functions
from shared.bus.connection import TRANSIENT, ValkeyClock, connect, with_retries
from shared.bus.router_keys import ModelKeys
from shared.policy.elastic import engine_plan, scheduling
from shared.runtime import log
from shared.runtime.app import build_app, problem_response
from shared.runtime.background import Background
from shared.runtime.coarse_timers import CoarseTimers
from shared.runtime.errors import Unavailable
from shared.runtime.settings import load
from shared.store import database
from shared.store.results import ArchiveReader

_log = log.get(__name__)


def create_app(settings: ProxySettings | None = None) -> FastAPI:
    """The proxy's ASGI app. `uvicorn --factory services.proxy.app:create_app`."""
    settings = settings or load(ProxySettings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[LifespanState]:
        for warm in (scheduling.warm, engine_plan.warm):
            await asyncio.to_thread(warm)  # so that a leader does not compile, or load compiled code, during a decision
        url = settings.treadle.redis_url
        async with (
            connect(url, name="proxy") as redis,
            connect(url, name="proxy-reader") as reader,
            connect(url, name="proxy-outcomes") as outcomes,
            database.connect(settings.treadle.database_url, name="proxy", connections=1) as sessions,
            database.connect(settings.treadle.database_url, name="proxy-archive") as archive,
            Background() as background,
        ):
            await with_retries(lambda: functions.load(redis), what="loading functions", limit_s=30.0)
            clock = await ValkeyClock.measure(redis)
            disk = StoreDisk(
                store_paths(settings.treadle.store_paths), reserve_bytes=settings.disk_reserve_mib * MEBIBYTE
            )
            registries = Registries(settings.image_registries)
            ids = await Ids.load(redis, clock)
            store = Store(redis, ArchiveReader(archive))
            memory = ValkeyMemory(redis)
            archiver = Archiver(redis, archive, clock, memory, settings)
            waiters = Waiters(store.answers)
            WAITING.set_function(lambda: len(waiters))
            health = HealthMonitor(redis, store, sessions, disk, clock, node_lost_s=settings.node_lost_s)
            task_book = TaskRegistry(redis)
            lease_waiters, timers = LeaseWaiters(redis), CoarseTimers()
            intake = Intake(
                redis, max_journal=settings.max_journal, limit_s=settings.submit_retry_s, disk=disk, memory=memory
            )
            leadership = Leadership(redis, reader, waiters, settings, background, lease_waiters, intake, outcomes)
            retries = RunCodeRetries(redis, background, settings)
            held = HeldCalls(settings, retries)
            trajectories = TrajectoryService(
                redis,
                ids,
                registries,
                await ModelKeys.load(redis),
                most=settings.max_trajectories,
                keep_s=settings.keep_trajectory_s,
                disk=disk,
            )
            proxy = ProxyState(
                settings=settings,
                redis=redis,
                clock=clock,
                health=health,
                ids=ids,
                intake=intake,
                disk=disk,
                waiters=waiters,
                store=store,
                tasks=task_book,
                batches=BatchService(
                    redis,
                    store,
                    task_book,
                    clock,
                    ids,
                    registries,
                    disk=disk,
                    keep_batch_s=settings.keep_batch_s,
                    keep_deleted_s=settings.keep_deleted_s,
                ),
                rollouts=Rollouts(redis, clock),
                trajectories=trajectories,
                tokens=(tokens := TokenRecords(archive, trajectories)),
                traces=TrajectoryTraces(redis, clock, trajectories, tokens),
                leadership=leadership,
                leases=LeaseService(
                    redis,
                    intake,
                    ids,
                    clock,
                    lease_waiters,
                    retries.cancel,
                    timers,
                    replica=held.replica,
                    limit_s=settings.submit_retry_s,
                    most_waiting=settings.max_waiting,
                ),
                timers=timers,
                bodies=Bodies(settings.max_bodies_bytes),
                retries=retries,
                held=held,
            )
            app.state.proxy = proxy
            background.start(leadership.run(), name="leadership")
            background.start(waiters.recheck(), name="recheck")
            background.start(lease_waiters.recheck(), name="recheck of leases")
            background.start(renew(redis, held.replica), name="lease of this replica")
            background.start(watch_disk(disk, redis), name="disk")
            background.start(health.watch_valkey(), name="health of valkey")
            background.start(health.watch_postgres(), name="health of postgres")
            background.start(watch_restarts(settings.treadle.home), name="restarts")
            background.start(memory.watch(), name="memory")
            background.start(archiver.run(), name="archiver")
            yield LifespanState(proxy=proxy)
            await archiver.stop()
            await leadership.stop()

    app = build_app("proxy", lifespan, *ROUTERS, ready=readiness, description=DESCRIPTION)
    put_in_front(app, BARE_ROUTES)
    for kind in TRANSIENT:
        app.add_exception_handler(kind, _on_valkey_away)
    extend_openapi(app, max_wait_s=settings.max_wait_s)
    return app


async def _on_valkey_away(_: Request, error: Exception) -> Response:
    _log.warning("valkey_unavailable", what="serving", error=str(error))
    return problem_response(Unavailable(what="Valkey does not answer"))
