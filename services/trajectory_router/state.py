"""State of one replica, created by its lifespan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from fastapi import Request
from redis.asyncio import Redis

from services.trajectory_router.admission import Admission
from services.trajectory_router.detection import Detector
from services.trajectory_router.leadership import RouterLeadership
from services.trajectory_router.settings import TrajectoryRouterSettings
from services.trajectory_router.workers import Workers
from shared.bus.connection import ValkeyClock


@dataclass(frozen=True, slots=True)
class RouterState:
    """Parts that routes need."""

    settings: TrajectoryRouterSettings
    redis: Redis
    clock: ValkeyClock
    workers: Workers
    detector: Detector
    admission: Admission
    leadership: RouterLeadership


class RouterLifespan(TypedDict):
    """What the lifespan yields."""

    router: RouterState


def state_of(request: Request) -> RouterState:
    """Return the state of the service that answers a request."""
    state: RouterState = request.state.router
    return state
