"""The trajectory router as a process: one lifespan creates and closes all of its parts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from fastapi import FastAPI

from services.trajectory_router.admission import Admission
from services.trajectory_router.canaries import Canaries
from services.trajectory_router.detection import Detector
from services.trajectory_router.front import Front, put_in_front
from services.trajectory_router.leadership import RouterLeadership
from services.trajectory_router.own_trajectories import OwnTrajectories
from services.trajectory_router.recording.expiry import expire_records
from services.trajectory_router.recording.recorder import TokenRecorder
from services.trajectory_router.recording.writer import TokenWriter
from services.trajectory_router.relay import Relay
from services.trajectory_router.settings import TrajectoryRouterSettings
from services.trajectory_router.state import RouterLifespan, RouterState
from services.trajectory_router.worker_routes import router as worker_router
from services.trajectory_router.workers import Workers
from shared.bus import functions
from shared.bus.connection import ValkeyClock, connect, with_retries
from shared.bus.router_keys import ModelKeys
from shared.policy.routing.config import HealthConfig, RoutingConfig
from shared.policy.routing.router import Router
from shared.runtime import log
from shared.runtime.app import build_app
from shared.runtime.background import Background
from shared.runtime.http_streams import open_streams
from shared.runtime.settings import load
from shared.store import database

_log = log.get(__name__)

CANARY_GRACE_S = 1.0
"""Time after which a canary counts as failed although nothing has reported its end."""


def create_app(settings: TrajectoryRouterSettings | None = None) -> FastAPI:
    """The router's ASGI app. `uvicorn --factory services.trajectory_router.app:create_app`."""
    settings = settings or load(TrajectoryRouterSettings)
    config = RoutingConfig(
        most_waiting=settings.max_waiting,
        kv_idle_s=settings.kv_idle_s,
        pin_idle_s=settings.pin_idle_s,
        health=HealthConfig(stall_s=settings.stall_s, canary_s=settings.canary_s + CANARY_GRACE_S),
    )

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[RouterLifespan]:
        url = settings.treadle.redis_url
        async with (
            connect(url, name="trajectory_router") as redis,
            connect(url, name="trajectory_router-reader") as reader,
            database.connect(settings.treadle.database_url, name="trajectory_router") as sessions,
            open_streams(connect_s=settings.connect_s, key=settings.key()) as engines,
            Background() as background,
        ):
            await with_retries(lambda: functions.load(redis), what="loading functions", limit_s=30.0)
            clock = await ValkeyClock.measure(redis)
            replica, workers = uuid4().hex[:12], Workers()
            await workers.refresh(redis)
            admission = Admission(replica, most=settings.max_calls)
            canaries = Canaries(engines, workers, background, limit_s=settings.canary_s)
            leadership = RouterLeadership(redis, reader, admission, workers, lambda: Router(config), canaries, settings)
            writer = TokenWriter(sessions, clock, keep_s=settings.keep_tokens_s, most_ids=settings.max_tokens_recorded)
            app.state.front = Front(
                replica,
                Relay(admission, engines, workers),
                workers,
                clock,
                OwnTrajectories(redis, await ModelKeys.load(redis)),
                TokenRecorder(writer, engines, workers, background, clock),
                max_body_bytes=settings.max_body_bytes,
                max_bodies_bytes=settings.max_bodies_bytes,
                wait_s=settings.wait_s,
            )
            app.state.router = router = RouterState(
                settings=settings,
                redis=redis,
                clock=clock,
                workers=workers,
                detector=Detector(engines, limit_s=settings.canary_s),
                admission=admission,
                leadership=leadership,
            )
            background.start(writer.run(), name="token records")
            background.start(expire_records(sessions), name="expiry of token records")
            background.start(leadership.listen(), name="messages of routers")
            background.start(leadership.run(), name="leadership")
            background.start(leadership.watch_replicas(), name="replicas")
            background.start(leadership.publish_views(), name="views of workers")
            _log.info("router_started", replica=replica, workers=len(workers.by_id))
            yield RouterLifespan(router=router)
            await leadership.stop()

    app = build_app("trajectory_router", lifespan, worker_router, ready=readiness, description=__doc__ or "")
    put_in_front(app, "front")
    return app


def readiness(app: FastAPI) -> str | None:
    """Return the reason why calls are not admitted yet; None if they are."""
    state: RouterState = app.state.router
    return None if state.leadership.ready else "no router leads yet: calls wait"
