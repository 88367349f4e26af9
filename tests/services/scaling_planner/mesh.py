"""The planner's service, and the rest of the mesh on the bus, simulated by the test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
from fastapi import FastAPI
from redis.asyncio import Redis

from services.scaling_planner.app import create_app
from services.scaling_planner.settings import ScalingPlannerSettings
from services.scaling_planner.terms import GROUP
from shared.api.requests import Act, Answer, StageReport
from shared.bus import functions
from shared.bus.connection import command
from shared.messages.base import Message
from shared.messages.batches import (
    BATCHES,
    BatchEnded,
    BatchOpened,
    BatchState,
    FirstArrival,
    StagePlan,
)
from shared.messages.nodes import NODES, Hello
from shared.messages.targets import COMPLETIONS, TARGETS, CompletionExpected, TargetSet
from shared.runtime.settings import TreadleSettings
from shared.store.database import Sessions

POOL = "cores@default"
STAGES = [
    StagePlan(name="compile", pool=POOL, units=1, worker_cost=1.0, timeout_s=10.0),
    StagePlan(name="run", pool=POOL, units=1, worker_cost=1.0, timeout_s=5.0),
]
FIRST = float(int(time.time()))
"""Arrival of the first request of a batch that opened ten seconds before."""


def a_batch(name: str) -> BatchOpened:
    return BatchOpened(
        batch=name,
        tenant="ada",
        task="code",
        size=3,
        opened_at=FIRST - 10,
        stages=STAGES,
        max_extra_delay_s=1.5,
        resources=8,
    )


def its_end(name: str, state: BatchState = "complete") -> BatchEnded:
    return BatchEnded(
        batch=name,
        tenant="ada",
        task="code",
        state=state,
        opened_at=FIRST - 10,
        first_at=FIRST,
        ended_at=FIRST + 9,
        size=3,
    )


def an_answer(index: int, *executions: float) -> bytes:
    names = ("compile", "run")
    return msgspec.json.encode(
        Answer(
            id=f"a{index}",
            state="finished",
            index=index,
            arrived_at=FIRST + index,
            ended="ok",
            act=Act(queue_s=0.5, execution_s=sum(executions), overhead_s=0.01, total_s=1.0),
            stages=[
                StageReport(name=names[j], queue_s=0.25, execution_s=seconds, node="n", attempts=1, units=1)
                for j, seconds in enumerate(executions)
            ],
        )
    )


class Mesh:
    """The rest of the mesh on the bus, simulated by the test."""

    def __init__(self, redis: Redis, sessions: Sessions) -> None:
        self.redis = redis
        self.sessions = sessions

    async def publish(self, *messages: Message) -> None:
        for message in messages:
            topic = NODES if isinstance(message, Hello) else BATCHES
            await functions.publish(self.redis, topic.name, 1000, [topic.encode(message)])  # type: ignore[arg-type]

    async def open(self, name: str) -> None:
        """Open a batch as the server-side function does: the batch is in Valkey before its message is."""
        await command(self.redis, "HSET", f"batch:{name}", "state", "open", "submitted", 0, "answered", 0)
        await self.publish(a_batch(name))

    async def end(self, name: str) -> None:
        for answer in (an_answer(2, 3.0, 2.0), an_answer(0, 1.0, 1.0), an_answer(1, 2.0)):
            await command(self.redis, "XADD", f"results:{name}", "*", "a", answer)
        await self.publish(FirstArrival(batch=name, arrived_at=FIRST), its_end(name))

    async def published(self) -> list[TargetSet | CompletionExpected]:
        return [TARGETS.decode(fields[1]) for _, fields in await command(self.redis, "XRANGE", TARGETS.name, "-", "+")]

    async def completions(self, batch: str) -> list[float]:
        rows = await command(self.redis, "XRANGE", COMPLETIONS.name, "-", "+")
        messages = [COMPLETIONS.decode(fields[1]) for _, fields in rows]
        return [message.at for message in messages if message.batch == batch]

    async def targets(self) -> list[int]:
        return [message.units for message in await self.published() if isinstance(message, TargetSet)]

    async def unacknowledged(self) -> int:
        return int((await command(self.redis, "XPENDING", BATCHES.name, GROUP))[0])


async def soon(condition: Callable[[], Awaitable[bool]], *, within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110  # the other side is another process
            await asyncio.sleep(0.02)


@asynccontextmanager
async def running(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://planner") as http:
            yield http


def planner(redis_url: str, database_url: str, **settings: Any) -> FastAPI:
    treadle = TreadleSettings(redis_url=redis_url, database_url=database_url)
    settings = {"strictness": 0.0, "node_lost_s": 3600.0, "stabilization_s": 0.0, **settings}
    return create_app(ScalingPlannerSettings(treadle=treadle, **settings))


async def migrate(url: str) -> None:
    from shared.store.migrate import upgrade

    await upgrade(url)


async def is_ready(http: httpx.AsyncClient) -> bool:
    return (await http.get("/readyz")).status_code == 200


async def no_planner_leads(mesh: Mesh) -> bool:
    return bool(await command(mesh.redis, "EXISTS", "leader:planner") == 0)


async def our_planner_leads(mesh: Mesh) -> bool:
    return (await command(mesh.redis, "GET", "leader:planner")) not in (None, b"a third")


async def a_planner_leads(mesh: Mesh) -> bool:
    return not await no_planner_leads(mesh)


async def are(mesh: Mesh, targets: list[int]) -> bool:
    return await mesh.targets() == targets


async def last_is(mesh: Mesh, units: int) -> bool:
    targets = await mesh.targets()
    return bool(targets) and targets[-1] == units


async def all_acknowledged(mesh: Mesh, messages: int) -> bool:
    """Return whether so many messages were written, delivered and acknowledged."""
    groups = await command(mesh.redis, "XINFO", "GROUPS", BATCHES.name)
    if not groups:
        return False
    facts = dict(zip(groups[0][::2], groups[0][1::2], strict=True))
    length = await command(mesh.redis, "XLEN", BATCHES.name)
    return bool(length == messages and facts[b"pending"] == 0 and facts[b"lag"] == 0)
