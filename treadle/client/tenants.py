"""The client's tenants: their weights."""

from __future__ import annotations

from treadle.client.answers import TenantList, TenantView
from treadle.client.requests import TenantWeight
from treadle.client.transport import JSON, Transport, quoted


class AsyncTenants:
    """Weights of the tenants that share one mesh. They concern all tenants, so they are the operator's."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def weights(self) -> list[TenantView]:
        """Return the tenants whose weight was set, by name. All others have weight 1."""
        return (await self._transport.call(TenantList, "GET", "/v1/tenants")).tenants

    async def set_weight(self, tenant: str, weight: float) -> TenantView:
        """Set a tenant's weight. Idempotent.

        Args:
            tenant: its name.
            weight: share of the mesh while several tenants have waiting work, from 0.001 to 1000.
        Raises:
            BadRequest: it is no name or no weight, or too many tenants have one.
        """
        body = TenantWeight(weight=weight)
        return await self._transport.call(TenantView, "PUT", f"/v1/tenants/{quoted(tenant)}", body)

    async def reset_weight(self, tenant: str) -> None:
        """Reset a tenant's weight to 1. Idempotent; its work and answers stay."""
        await self._transport.send("DELETE", f"/v1/tenants/{quoted(tenant)}", None, JSON)
