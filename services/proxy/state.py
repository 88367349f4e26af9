"""The proxy's state, which its handlers use. The lifespan creates it; each request's scope refers to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Header, Request
from redis.asyncio import Redis

from services.proxy.health import HealthMonitor
from services.proxy.http.bodies import Bodies
from services.proxy.leader.leadership import Leadership
from services.proxy.records.batch_service import BatchService
from services.proxy.records.disk import StoreDisk
from services.proxy.records.ids import Ids
from services.proxy.records.intake import Intake
from services.proxy.records.lease_service import LeaseService
from services.proxy.records.rollouts import Rollouts
from services.proxy.records.store import Store
from services.proxy.records.task_registry import TaskRegistry
from services.proxy.records.token_records import TokenRecords
from services.proxy.records.trajectory_service import TrajectoryService
from services.proxy.records.trajectory_traces import TrajectoryTraces
from services.proxy.records.waiters import Waiters
from services.proxy.settings import ProxySettings
from shared.bus.connection import ValkeyClock
from shared.runtime.coarse_timers import CoarseTimers
from shared.runtime.patterns import NAME

if TYPE_CHECKING:
    from services.proxy.http.held import HeldCalls
    from services.proxy.http.retries import RunCodeRetries

DEFAULT_TENANT = "default"
"""Tenant of calls without a `Treadle-Tenant` header. There are no keys yet."""


@dataclass(frozen=True, slots=True)
class ProxyState:
    """One replica's parts."""

    settings: ProxySettings
    redis: Redis
    clock: ValkeyClock
    health: HealthMonitor
    ids: Ids
    intake: Intake
    disk: StoreDisk
    waiters: Waiters
    store: Store
    tasks: TaskRegistry
    batches: BatchService
    rollouts: Rollouts
    trajectories: TrajectoryService
    tokens: TokenRecords
    traces: TrajectoryTraces
    leadership: Leadership
    leases: LeaseService
    timers: CoarseTimers
    bodies: Bodies
    retries: RunCodeRetries
    held: HeldCalls


def state_of(state: Any) -> ProxyState:
    """Return the proxy's state from a scope."""
    proxy: ProxyState = state["proxy"]
    return proxy


def _proxy(request: Request) -> ProxyState:
    return state_of(request.scope["state"])


def _tenant(
    treadle_tenant: Annotated[
        str,
        Header(
            pattern=NAME, description="The caller's tenant. There are no keys yet, so one default tenant is enough."
        ),
    ] = DEFAULT_TENANT,
) -> str:
    return treadle_tenant


CurrentState = Annotated[ProxyState, Depends(_proxy)]
Tenant = Annotated[str, Depends(_tenant)]
