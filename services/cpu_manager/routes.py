"""HTTP side of the CPU manager: the routes of every service (`/healthz`, `/readyz`, `/metrics`; `shared.runtime.app`).

Clients use the proxy. This module supplies the state and the readiness check.
"""

from __future__ import annotations

from typing import TypedDict

from fastapi import FastAPI

from services.cpu_manager.node_executor import NodeExecutor
from services.cpu_manager.node_manager import NodeManager
from services.cpu_manager.outbox import Outbox


class CpuManagerState(TypedDict):
    """State of one process, which the lifespan yields."""

    node: NodeManager
    outbox: Outbox
    executor: NodeExecutor


def readiness(app: FastAPI) -> str | None:
    """Return the reason why this node cannot work yet; None if it can."""
    if not app.state.node.met_leader:
        return "no leader has requested this node's inventory yet"
    return None if app.state.outbox.ready() else "outcomes are waiting: Valkey does not store them"
