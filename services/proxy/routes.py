"""HTTP side of the proxy: its routes, the state that they use, and the readiness check."""

from __future__ import annotations

from typing import Final, TypedDict

from fastapi import FastAPI

from services.proxy.http import batches, mesh, model_services, quotas, tasks, tenants, tokens, traces
from services.proxy.http.hot import HOT_ROUTES
from services.proxy.http.leases import LEASE_ROUTES
from services.proxy.http.parking import PARKING_ROUTES
from services.proxy.http.retrieval import RETRIEVE_ROUTES
from services.proxy.http.sandbox_fusion import RUN_CODE_ROUTES
from services.proxy.http.swerex.routes import SWEREX_ROUTES
from services.proxy.http.trajectories import TRAJECTORY_ROUTES
from services.proxy.state import ProxyState

DESCRIPTION = """
Post reward requests and tool actions. Treadle queues them by the urgency of their batch, executes them in sandboxes on
pooled resources, and answers each exactly once. Errors are problem+json (RFC 9457) with an instruction.
"""

ROUTERS: Final = (
    tasks.router,
    batches.router,
    mesh.router,
    tenants.router,
    quotas.router,
    model_services.router,
    tokens.router,
    traces.router,
)
"""Routes behind FastAPI."""
BARE_ROUTES: Final = [
    *HOT_ROUTES,
    *LEASE_ROUTES,
    *PARKING_ROUTES,
    *TRAJECTORY_ROUTES,
    *RUN_CODE_ROUTES,
    *RETRIEVE_ROUTES,
    *SWEREX_ROUTES,
]
"""Routes in front of FastAPI, as bare ASGI: thousands of calls a second, or bodies that are streamed."""


class LifespanState(TypedDict):
    """State of one process, which the lifespan yields."""

    proxy: ProxyState


async def readiness(app: FastAPI) -> str | None:
    """Return the reason why this replica cannot serve; None if it can."""
    proxy: ProxyState = app.state.proxy
    return await proxy.health.unready()
