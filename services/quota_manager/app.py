"""The quota manager as a process: one lifespan creates and closes all of its parts."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from fastapi import FastAPI

from services.quota_manager.calling import Calling
from services.quota_manager.executor import CallExecutor
from services.quota_manager.metrics import CallMetrics, observe
from services.quota_manager.outgoing.client import open_outgoing
from services.quota_manager.routes import QuotaManagerState, readiness
from services.quota_manager.secrets import load_secrets
from services.quota_manager.settings import QuotaManagerSettings
from shared.node.agent import NodeAgent
from shared.node.connection import open_node
from shared.runtime import log
from shared.runtime.app import build_app
from shared.runtime.clock import SYSTEM_CLOCK, Clock
from shared.runtime.settings import load

_log = log.get(__name__)


def create_app(settings: QuotaManagerSettings | None = None, *, clock: Clock = SYSTEM_CLOCK) -> FastAPI:
    """The quota manager's ASGI app. `uvicorn --factory services.quota_manager.app:create_app`.

    Raises:
        WrongSetting: a setting or a secret cannot be used. The message says why, without a value of a secret.
    """
    settings = settings or load(QuotaManagerSettings)
    secrets = load_secrets(settings.secrets, os.environ)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[QuotaManagerState]:
        redis_url, allowed = settings.treadle.redis_url, [str(each) for each in settings.allow_addresses]
        async with (
            open_node(redis_url, name="quota_manager", node=settings.node, node_class=settings.node_class) as node,
            open_outgoing(secrets=secrets, allow_addresses=allowed, connections=settings.calls) as outgoing,
        ):
            calling = Calling(outgoing, clock, Random(), settings.output_bytes, CallMetrics(), settings.bodies())
            executor = CallExecutor(calling.attempt, calls=settings.calls, grace_s=settings.grace_s)
            agent = NodeAgent(node, executor, clock=clock, report=observe(node.outbox.put))
            async with agent.running(heartbeat_s=settings.heartbeat_s):
                app.state.agent = agent
                _log.info("node_started", node=node.identity.node, calls=settings.calls, secrets=len(secrets))
                yield QuotaManagerState(agent=agent)
                executor.stop()

    return build_app("quota_manager", lifespan, ready=readiness, description=__doc__ or "")
