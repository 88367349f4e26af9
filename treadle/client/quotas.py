"""The client's quotas: limits of what all actions take together, such as slots and rates of an external API."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from treadle.client.answers import QuotaList, QuotaView
from treadle.client.errors import BadRequest
from treadle.client.requests import Quota, QuotaRate
from treadle.client.transport import JSON, Transport, quoted

NO_WEIGHTS: Final[Mapping[str, float]] = {}


class AsyncQuotas:
    """Quotas of the mesh. They concern all tenants, so they are the operator's."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def all(self) -> list[QuotaView]:
        """Return all quotas, by name."""
        return (await self._transport.call(QuotaList, "GET", "/v1/quotas")).quotas

    async def view(self, quota: str) -> QuotaView:
        """Return one quota and what is taken of it.

        Raises:
            NotFound: there is no quota of this name.
        """
        return await self._transport.call(QuotaView, "GET", f"/v1/quotas/{quoted(quota)}")

    async def set(
        self,
        quota: str,
        *,
        concurrency: float | None = None,
        rates: Sequence[QuotaRate] = (),
        weights: Mapping[str, float] = NO_WEIGHTS,
    ) -> QuotaView:
        """Create a quota, or replace its limits. Idempotent; what is taken stays taken.

        Args:
            quota: its name, as in `quotas` of actions and stages.
            concurrency: most that granted actions hold together; None: no such limit.
            rates: limits over time, one for each period; all hold at once.
            weights: tenant -> weight of its share while several tenants wait; others have 1.
        Raises:
            BadRequest: it is no name, it has no limit, or there are too many quotas.
            TypeError: `rates` has other items than `QuotaRate`.
        """
        rates = _checked(rates)
        numbers = [concurrency, *(one for rate in rates for one in (rate.limit, rate.period_s, rate.burst))]
        if not all(math.isfinite(one) for one in numbers if one is not None):  # JSON null would mean: no such limit
            raise BadRequest("limits, periods and bursts must be finite numbers")
        body = Quota(concurrency=concurrency, rates=rates, weights=weights)
        return await self._transport.call(QuotaView, "PUT", f"/v1/quotas/{quoted(quota)}", body)

    async def delete(self, quota: str) -> None:
        """Delete a quota. Idempotent; work that needs it is stuck until a quota of this name exists again."""
        await self._transport.send("DELETE", f"/v1/quotas/{quoted(quota)}", None, JSON)


def _checked(rates: object) -> list[QuotaRate]:
    """Return the rates.

    Raises:
        TypeError: an item is none.
    """
    example = "rates=[treadle.QuotaRate(limit=10, period_s=1)]"
    if not isinstance(rates, Iterable) or isinstance(rates, str | Mapping):
        raise TypeError(f"rates must be a list of treadle.QuotaRate, not {rates!r:.200}; write {example}")
    checked: list[QuotaRate] = []
    for rate in rates:
        if not isinstance(rate, QuotaRate):
            raise TypeError(f"a rate must be a treadle.QuotaRate, not {rate!r:.200}; write {example}")
        checked.append(rate)
    return checked
