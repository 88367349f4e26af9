"""HTTP side of the GPU manager: the routes of every service (`/healthz`, `/readyz`, `/metrics`), of
`shared.runtime.app`.

Clients use the proxy. This module supplies the state and the readiness check.
"""

from __future__ import annotations

from typing import TypedDict

from fastapi import FastAPI

from shared.node.agent import NodeAgent


class GpuManagerState(TypedDict):
    """State of one process, which the lifespan yields."""

    agent: NodeAgent


def readiness(app: FastAPI) -> str | None:
    """Return the reason why this node cannot work yet; None if it can."""
    agent: NodeAgent = app.state.agent
    return agent.unready()
