"""/v1/quotas: read, set and delete quotas. They concern all tenants, so they are the operator's.

There are no keys yet, so any caller may set them.
"""

from __future__ import annotations

import math
from typing import Annotated

from fastapi import APIRouter, Path, Response

from services.proxy.state import CurrentState
from shared.api.quotas import Quota, QuotaList, QuotaRateView, QuotaView, QuotaWaiting, Upstream
from shared.bus import brakes, quotas
from shared.bus.backlog import read_quota_backlogs
from shared.bus.quotas import MOST_QUOTAS, QuotaStatus
from shared.policy.model.brakes import Brake
from shared.policy.model.quotas import Rate
from shared.policy.model.waiting import QuotaBacklog
from shared.policy.resources.quotas import Quotas
from shared.runtime.app import problem_responses
from shared.runtime.errors import BadRequest, NotFound
from shared.runtime.patterns import NAME
from shared.runtime.units import Seconds

router = APIRouter(prefix="/v1/quotas", tags=["quotas"])

QuotaName = Annotated[str, Path(pattern=NAME, description="Name of the quota, as in `quotas` of actions and stages.")]


@router.get("", summary="All quotas", responses=problem_responses(503))
async def list_quotas(proxy: CurrentState) -> QuotaList:
    now = proxy.clock.unix()
    found, waiting = await quotas.read_statuses(proxy.redis), await read_quota_backlogs(proxy.redis)
    known = await brakes.read_brakes(proxy.redis)
    views = [_view(name, found[name], known.get(name), waiting.get(name), now) for name in sorted(found)]
    return QuotaList(quotas=views)


@router.put(
    "/{quota}",
    summary="Create or change a quota",
    responses=problem_responses(413, 422, 503),
    openapi_extra={"x-codegen-request-body-name": "body"},
)
async def put_quota(quota: QuotaName, body: Quota, proxy: CurrentState) -> QuotaView:
    """Actions name it in `quotas`. What is taken stays taken: after a lower limit nothing is granted until enough has
    ended or was refilled. A change applies to the grants after the leader has read it.
    """
    if not await quotas.set_quota(proxy.redis, quota, body.limits, most=MOST_QUOTAS):
        what = f"there are {MOST_QUOTAS} quotas, which is the most; delete one with DELETE /v1/quotas/NAME"
        raise BadRequest(what=what)
    return await get_quota(quota, proxy)


@router.get("/{quota}", summary="One quota", responses=problem_responses(404, 422, 503))
async def get_quota(quota: QuotaName, proxy: CurrentState) -> QuotaView:
    now = proxy.clock.unix()
    status = (await quotas.read_statuses(proxy.redis, quota)).get(quota)
    if status is None:
        raise NotFound("quota", quota, "create it with PUT /v1/quotas/NAME")
    brake = (await brakes.read_brakes(proxy.redis)).get(quota)
    return _view(quota, status, brake, (await read_quota_backlogs(proxy.redis)).get(quota), now)


@router.delete("/{quota}", status_code=204, summary="Delete a quota", responses=problem_responses(422, 503))
async def delete_quota(quota: QuotaName, proxy: CurrentState) -> Response:
    """Work that needs it is stuck until a quota of this name exists again. What was taken of its rates counts then."""
    await quotas.set_quota(proxy.redis, quota, None)
    return Response(status_code=204)


def _view(name: str, status: QuotaStatus, brake: Brake | None, backlog: QuotaBacklog | None, now: Seconds) -> QuotaView:
    limits = status.limits
    waiting = backlog.tenants if backlog is not None else {}
    return QuotaView(
        name=name,
        concurrency=min(limits.concurrency, default=None),
        held=status.held,
        actions=status.actions,
        rates=[_rate(rate, status, now) for rate in limits.rates],
        upstream=_upstream(brake or Brake(), now),
        weights=dict(limits.weights),
        waiting={tenant: QuotaWaiting(actions=one.actions, amount=one.amount) for tenant, one in waiting.items()},
        waiting_actions=backlog.actions if backlog is not None else 0,
        next_free_at=_next_free_at(status, brake or Brake(), now)
        if backlog is None
        else _not_before(backlog.free_s, now),
    )


def _upstream(brake: Brake, now: Seconds) -> Upstream:
    free_s = brake.free_s(now)
    return Upstream(
        state=brake.state(now),
        not_before=free_s if free_s > now else None,
        most=brake.most,
        reason=brake.reason if brake.state(now) != "ok" else "",
    )


def _next_free_at(status: QuotaStatus, brake: Brake, now: Seconds) -> Seconds | None:
    """Unix seconds at which 1 can be taken of a quota for which nothing waits; None: never."""
    ledger = Quotas({"": status.limits})
    for period_s, level in status.levels.items():
        ledger.restore_level("", period_s, level, now)
    at_s = max(ledger.free_at({"": 1.0}, now), brake.free_s(now))
    return None if at_s == math.inf else at_s


def _not_before(free_s: Seconds | None, now: Seconds) -> Seconds | None:
    return None if free_s is None else max(free_s, now)


def _rate(rate: Rate, status: QuotaStatus, now: Seconds) -> QuotaRateView:
    level = status.levels.get(rate.period_s)
    taken = level.at(now, rate) if level is not None else 0.0
    full_at = now + taken / rate.per_s if rate.per_s else None if taken else now
    return QuotaRateView(
        limit=rate.limit,
        period_s=rate.period_s,
        burst=rate.burst,
        unit=rate.unit,
        taken=taken,
        free=max(0.0, rate.most - taken),
        full_at=full_at,
    )
