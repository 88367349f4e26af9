"""The CPU manager as a process: its world is made and buried in one lifespan."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypedDict

from fastapi import FastAPI

from services.cpu_manager.attempts import Attempts
from services.cpu_manager.cores import Cores, usable_cores
from services.cpu_manager.execution import Execution, open_execution
from services.cpu_manager.holding import Holding
from services.cpu_manager.metrics import observe
from services.cpu_manager.node import Node
from services.cpu_manager.outbox import Outbox
from services.cpu_manager.settings import CpuManagerSettings
from shared import log
from shared.app import build_app
from shared.background import Background
from shared.bus import functions
from shared.bus.connection import connect, patiently
from shared.clock import SYSTEM_CLOCK, Clock
from shared.messages.nodes import Hello
from shared.settings import load

_log = log.get(__name__)


class State(TypedDict):
    """What the lifespan yields."""

    node: Node
    outbox: Outbox
    execution: Execution


def _hello(settings: CpuManagerSettings, cores: frozenset[int], execution: Execution) -> Hello:
    return Hello(
        node=settings.node,
        incarnation=uuid.uuid4().hex[:12],
        node_class=settings.node_class,
        capacity={"cores": len(cores), "slots": settings.slots},
        lines_up=["cores"],
        kinds=sorted(execution.graders),
        labels=execution.labels,
    )


def create_app(settings: CpuManagerSettings | None = None, *, clock: Clock = SYSTEM_CLOCK) -> FastAPI:
    """The CPU manager's ASGI app. `uvicorn --factory services.cpu_manager.app:create_app`."""
    settings = settings or load(CpuManagerSettings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[State]:
        mine = frozenset(sorted(usable_cores())[: settings.cores or None])
        url = settings.treadle.redis_url
        async with (
            open_execution(settings, mine) as execution,
            connect(url, name="cpu_manager") as redis,
            connect(url, name="cpu_manager-reader") as reader,
            Background() as background,
        ):
            await patiently(lambda: functions.load(redis), what="loading functions", patience_s=30.0)
            cores, slots = Cores(mine), Holding(settings.slots, owned=settings.slots)
            outbox = Outbox(redis)
            hello = _hello(settings, mine, execution)
            attempts = Attempts(
                node=hello.node,
                incarnation=hello.incarnation,
                cores=cores,
                slots=slots,
                sandbox=execution.sandbox,
                graders=execution.graders,
                report=observe(outbox.put),
                clock=clock,
                output_bytes=settings.output_bytes,
                guard_s=settings.guard_s,
            )
            outbox.may_gather = attempts.busy
            holdings = {"cores": cores.holding, "slots": slots}
            node = Node(redis, reader, hello, attempts, outbox, holdings, clock, execution.cold_start_s)
            background.start(outbox.run(), name="outbox")
            background.start(node.run(), name="grants")
            background.start(node.heartbeats(settings.heartbeat_s), name="heartbeats")
            _log.info("node_started", node=hello.node, capacity=hello.capacity, **hello.labels)
            app.state.node, app.state.outbox = node, outbox
            yield State(node=node, outbox=outbox, execution=execution)
            await node.leave()

    return build_app("cpu_manager", lifespan, ready=_ready, description=__doc__ or "")


def _ready(app: FastAPI) -> str | None:
    if not app.state.node.met_leader:
        return "no leader has asked for this node's inventory yet"
    return None if app.state.outbox.ready() else "outcomes pile up: Valkey does not take them"
