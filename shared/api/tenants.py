"""Bodies of `/v1/tenants`: weights of tenants that share the mesh."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from shared.api.tasks import Model
from shared.policy.order.tenants import DEFAULT_WEIGHT

LEAST_WEIGHT: Final = 0.001
MOST_WEIGHT: Final = 1000.0


class TenantWeight(Model):
    """Weight of a tenant."""

    weight: Annotated[float, Field(ge=LEAST_WEIGHT, le=MOST_WEIGHT)]
    """Share of the mesh while several tenants have waiting work: a tenant of weight 2 gets twice the unit-seconds of a
    tenant of weight 1. From 0.001 to 1000."""


class TenantView(TenantWeight):
    """A tenant and its weight."""

    name: str
    weight: float = DEFAULT_WEIGHT
    """1 if none was set."""


class TenantList(Model):
    """Tenants whose weight was set, by name."""

    tenants: list[TenantView]
