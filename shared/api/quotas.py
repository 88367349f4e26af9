"""Bodies of `/v1/quotas`: resources that belong to no node, such as slots and rates of an external API."""

from __future__ import annotations

from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from shared.api.tasks import Model, Name
from shared.policy.model.brakes import UpstreamState
from shared.policy.model.quotas import QuotaLimits, Rate
from shared.runtime.numbers import number
from shared.runtime.patterns import PRINTABLE

MOST_RATES: Final = 8
"""Most rates of one quota."""
MOST_LIMIT: Final = 1e12
MOST_PERIOD_S: Final = 366 * 86_400.0
MOST_REFILL_S: Final = 1e10
"""Most seconds for which an empty rate is refilled, 317 years: so that times of refills are dates."""

MOST_WEIGHTS: Final = 1_000
"""Most tenants with a weight in one quota."""

Weight = Annotated[float, Field(gt=0, le=1e6)]
Limit = Annotated[float, Field(ge=0, le=MOST_LIMIT)]


class QuotaRate(Model):
    """Limit of the amount that is taken over time."""

    limit: Limit
    """Amount per period. 0 gives nothing, so work waits, or is stuck with that reason."""
    period_s: Annotated[float, Field(gt=0, le=MOST_PERIOD_S)] | None = None
    """Seconds. What was taken is refilled evenly, `limit` in each period. Null: never refilled, as for money."""
    burst: Limit | None = None
    """Most that is given at once after a pause. Default: `limit`. In every window of w seconds the rate gives at most
    burst + limit * w / period_s."""
    unit: Annotated[str, Field(max_length=32, pattern=PRINTABLE)] = ""
    """Name of what is counted, for people: `usd`, `tokens`."""

    @model_validator(mode="after")
    def _refilled(self) -> Self:
        burst = self.limit if self.burst is None else self.burst
        if self.period_s is not None and 0 < self.limit * MOST_REFILL_S < burst * self.period_s:
            least = burst * self.period_s / MOST_REFILL_S
            raise ValueError(
                f"`limit` refills the burst in more than 317 years; at least {number(least, 3)}, or 0 for no refill"
            )
        return self


class Quota(Model):
    """Limits of a quota. All of them hold at once, and an action takes the same amount from each."""

    concurrency: Limit | None = None
    """Most that granted actions hold together, from the grant to the end of the attempt."""
    rates: Annotated[list[QuotaRate], Field(max_length=MOST_RATES)] = []
    """Limits over time, one for each period."""
    weights: Annotated[dict[Name, Weight], Field(max_length=MOST_WEIGHTS)] = {}
    """Tenant -> weight. While several tenants wait for the quota, they are granted amounts of it in proportion to their
    weights; a tenant that is not named has 1. Empty: the weights of tenants decide (`PUT /v1/tenants/{tenant}`)."""

    @property
    def limits(self) -> QuotaLimits:
        """Its limits for the leader's ledger."""
        return QuotaLimits(
            () if self.concurrency is None else (self.concurrency,),
            tuple(Rate(rate.limit, rate.period_s, rate.burst, rate.unit) for rate in self.rates),
            dict(self.weights),
        )

    @model_validator(mode="after")
    def _limited(self) -> Self:
        if self.concurrency is None and not self.rates:
            raise ValueError('a quota has `concurrency`, `rates` or both: {"rates": [{"limit": 10, "period_s": 1}]}')
        periods = [rate.period_s for rate in self.rates]
        if len(set(periods)) < len(periods):
            raise ValueError("two rates have the same `period_s`; keep the lower one")
        return self


class QuotaRateView(QuotaRate):
    """A rate and what was taken of it."""

    unit: str = ""
    """Name of what is counted, for people. A quota of a former release may have control characters."""
    taken: float
    """Amount that is missing from the full rate now."""
    free: float
    """Amount that could be taken now."""
    full_at: float | None
    """Unix seconds at which nothing will be missing if nothing more is taken; null: never."""


class Upstream(Model):
    """External service behind a quota, as its answers to calls of the mesh show it."""

    state: UpstreamState
    """`ok`. `slowed`: it has asked for fewer calls. `open`: it fails, and no call is made. `half-open`: it has failed,
    and one call is made to see whether it answers. `exhausted`: its account has no credit; one call is made from time
    to time, and work continues when one succeeds or the quota is set again."""
    not_before: float | None = None
    """Unix seconds before which no call is made; null: it is not limited."""
    most: int | None = None
    """Most calls at once, because of the service's answers; null: they do not limit it."""
    reason: str = ""


class QuotaWaiting(Model):
    """Work of one tenant that waits and takes from a quota."""

    actions: int
    """Number of actions."""
    amount: float
    """Sum of the amounts that they need."""


class QuotaView(Model):
    """A quota, and what granted actions have taken of it."""

    name: Name
    concurrency: float | None
    held: float
    """Amount that granted actions hold now."""
    actions: int
    """Number of these actions."""
    rates: list[QuotaRateView]
    upstream: Upstream
    weights: dict[str, float]
    """Tenant -> weight."""
    waiting: dict[str, QuotaWaiting]
    """Tenant -> its waiting work, at most a second old; the 64 tenants with the most."""
    waiting_actions: int
    """Number of waiting actions of all tenants."""
    next_free_at: float | None
    """Unix seconds at which the smallest waiting amount, or 1, can be taken; null: never with the present limits. It is
    exact for rates. For concurrency it is when attempts are expected to end."""


class QuotaList(Model):
    """All quotas, by name."""

    quotas: list[QuotaView]
