"""HTTP side of the planner: the routes of every service (`/healthz`, `/readyz`, `/metrics`; `shared.runtime.app`).

The proxy shows the planner's decisions. This module supplies the state and the readiness check.
"""

from __future__ import annotations

from typing import TypedDict

from fastapi import FastAPI

from services.scaling_planner.terms import Terms
from shared.store import database

DESCRIPTION = """
Stores the history of batches and decides how many units each pool holds. The proxy shows its decisions at `/v1/plans`.
"""


class ScalingPlannerState(TypedDict):
    """State of one process, which the lifespan yields."""

    terms: Terms


async def readiness(app: FastAPI) -> str | None:
    """Return the reason why this planner cannot work yet; None if it can, or if another planner holds the lease."""
    terms: Terms = app.state.terms
    if not terms.standby and (terms.service is None or not terms.service.restored):
        return "histories are not loaded yet: Postgres has not answered"
    return None if await database.answers(app.state.sessions) else "Postgres does not answer: histories wait"
