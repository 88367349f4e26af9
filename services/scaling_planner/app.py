"""App of the scaling planner: its connections and lifespan."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from services.scaling_planner.routes import DESCRIPTION, ScalingPlannerState, readiness
from services.scaling_planner.settings import ScalingPlannerSettings
from services.scaling_planner.terms import Terms
from shared.bus import functions
from shared.bus.connection import ValkeyClock, connect, with_retries
from shared.runtime.app import build_app
from shared.runtime.background import Background
from shared.runtime.settings import load
from shared.store import database


def create_app(settings: ScalingPlannerSettings | None = None) -> FastAPI:
    """Return the planner's ASGI app. `uvicorn --factory services.scaling_planner.app:create_app`."""
    settings = settings or load(ScalingPlannerSettings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[ScalingPlannerState]:
        url = settings.treadle.redis_url
        async with (
            connect(url, name="planner") as redis,
            connect(url, name="planner-batches") as deliveries,
            connect(url, name="planner-nodes") as reader,
            database.connect(settings.treadle.database_url, name="scaling_planner") as sessions,
        ):
            await with_retries(lambda: functions.load(redis), what="loading functions", limit_s=30.0)
            clock = await ValkeyClock.measure(redis)
            terms = Terms(settings, sessions, redis, deliveries, reader, clock)
            app.state.terms, app.state.sessions = terms, sessions
            async with Background() as background:
                background.start(terms.run(), name="planner")
                yield ScalingPlannerState(terms=terms)
            await terms.stop()

    return build_app("scaling planner", lifespan, ready=readiness, description=DESCRIPTION)
