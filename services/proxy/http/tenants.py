"""/v1/tenants: read and set the weights of tenants. They concern all tenants, so they are the operator's.

There are no keys yet, so any caller may set them.
"""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Path, Response

from services.proxy.state import CurrentState
from shared.api.tenants import TenantList, TenantView, TenantWeight
from shared.bus import tenants
from shared.policy.order.tenants import DEFAULT_WEIGHT
from shared.runtime.app import problem_responses
from shared.runtime.errors import BadRequest
from shared.runtime.patterns import NAME

router = APIRouter(prefix="/v1/tenants", tags=["tenants"])

MOST_WEIGHTS: Final = 10_000
"""Most tenants whose weight is set. The leader reads all of them after a change."""

TenantName = Annotated[str, Path(pattern=NAME, description="Name of the tenant, as in the header Treadle-Tenant.")]


@router.get("", summary="Tenants whose weight was set", responses=problem_responses(503))
async def list_tenants(proxy: CurrentState) -> TenantList:
    weights = await tenants.read_weights(proxy.redis)
    return TenantList(tenants=[TenantView(name=name, weight=weight) for name, weight in weights.items()])


@router.put(
    "/{tenant}",
    summary="Set a tenant's weight",
    responses=problem_responses(413, 422, 503),
    openapi_extra={"x-codegen-request-body-name": "body"},
)
async def put_tenant(tenant: TenantName, body: TenantWeight, proxy: CurrentState) -> TenantView:
    """While several tenants have waiting work, each gets unit-seconds in proportion to its weight. A change applies to
    grants after it, within a few seconds.
    """
    is_new = await tenants.read_weight(proxy.redis, tenant) is None
    if is_new and await tenants.count_weights(proxy.redis) >= MOST_WEIGHTS:
        what = f"{MOST_WEIGHTS} tenants have a weight, which is the most; delete one with DELETE /v1/tenants/NAME"
        raise BadRequest(what=what)
    await tenants.set_weight(proxy.redis, tenant, body.weight)
    return TenantView(name=tenant, weight=body.weight)


@router.get("/{tenant}", summary="One tenant", responses=problem_responses(422, 503))
async def get_tenant(tenant: TenantName, proxy: CurrentState) -> TenantView:
    """Tenants are not declared, so every name has a weight: 1 if none was set."""
    weight = await tenants.read_weight(proxy.redis, tenant)
    return TenantView(name=tenant, weight=DEFAULT_WEIGHT if weight is None else weight)


@router.delete(
    "/{tenant}", status_code=204, summary="Reset a tenant's weight to 1", responses=problem_responses(422, 503)
)
async def delete_tenant(tenant: TenantName, proxy: CurrentState) -> Response:
    """Its work and answers stay."""
    await tenants.delete_weight(proxy.redis, tenant)
    return Response(status_code=204)
