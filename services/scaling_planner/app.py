"""The scaling planner as a process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypedDict

from fastapi import FastAPI

from services.scaling_planner.capacity import Capacity
from services.scaling_planner.planner import Planner
from services.scaling_planner.service import PlannerService
from services.scaling_planner.settings import ScalingPlannerSettings
from shared.app import build_app
from shared.background import Background
from shared.bus import functions
from shared.bus.connection import ValkeyClock, connect, patiently
from shared.bus.consumer import Consumer
from shared.bus.tail import Tail
from shared.messages.batches import BATCHES
from shared.messages.nodes import NODES
from shared.settings import load
from shared.store import database

GROUP = "planner"

DESCRIPTION = """
Keeps the history of batches and decides how many units each pool holds. The proxy shows its decisions at `/v1/plans`.
"""


class State(TypedDict):
    """What the lifespan yields."""

    service: PlannerService


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
            Background() as background,
        ):
            await patiently(lambda: functions.load(redis), what="loading functions", patience_s=30.0)
            planner = Planner(settings.strictness, settings.floors, settings.ceilings)
            clock = await ValkeyClock.measure(redis)
            service = PlannerService(planner, Capacity(settings.node_lost_s), sessions, redis, clock)
            consumer = Consumer(deliveries, BATCHES, group=GROUP, member=GROUP)
            nodes = Tail(reader, {NODES: "0"})
            app.state.service, app.state.sessions = service, sessions
            background.start(_run(service, consumer, nodes, settings), name="planner")
            yield State(service=service)
            consumer.stopping = nodes.stopping = True

    return build_app("scaling planner", lifespan, ready=_ready, description=DESCRIPTION)


async def _run(service: PlannerService, consumer: Consumer[Any], nodes: Tail, settings: ScalingPlannerSettings) -> None:
    """Everything the planner does; the end of one part is the end of all."""
    await service.restore()
    async with asyncio.TaskGroup() as loops:
        loops.create_task(consumer.run(service.on_batch), name="batches")
        loops.create_task(service.follow_nodes(nodes), name="nodes")
        loops.create_task(service.keep_house(settings.housekeeping_s, settings.keep_history_s), name="housekeeping")


async def _ready(app: FastAPI) -> str | None:
    if not app.state.service.restored:
        return "histories are not loaded yet: Postgres has not answered"
    return None if await database.answers(app.state.sessions) else "Postgres does not answer: histories wait"
