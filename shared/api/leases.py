"""Bodies of `/v1/acquire` and `/v1/leases`: amounts of quotas that a caller holds while it calls an API itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

import msgspec

from shared.api.requests import Closed, RequestId
from shared.kinds.formulation import MOST_AMOUNT, MOST_QUOTAS, Name, QuotaAmounts

LEAST_TTL_S: Final = 1.0
MOST_TTL_S: Final = 3600.0
MOST_WAIT_S: Final = 600.0


class AcquireRequest(Closed, frozen=True, kw_only=True):
    """Amounts of quotas to hold, all or none."""

    quotas: QuotaAmounts
    """Quota (`PUT /v1/quotas/{quota}`) -> amount."""
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=MOST_WAIT_S)] = 20.0
    """Seconds within which the lease must be granted. It is refused earlier if rates cannot be refilled in time."""
    ttl_s: Annotated[float, msgspec.Meta(ge=LEAST_TTL_S, le=MOST_TTL_S)] = 20.0
    """Seconds after which the lease expires, unless it is renewed."""
    request_id: RequestId | None = None
    """A repeat with the same id returns the same lease, until a minute after its end."""
    priority: Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)] = 0.0
    """Seconds by which it goes later in the order, negative for earlier."""


class LeaseFence(Closed, frozen=True, kw_only=True):
    """Proof that the caller holds the lease."""

    fence: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    """As in the answer to the acquire."""


UsedAmount = Annotated[float, msgspec.Meta(ge=0, le=MOST_AMOUNT)]
UsedAmounts = Annotated[
    Mapping[Name, UsedAmount],
    msgspec.Meta(max_length=MOST_QUOTAS, examples=[{"judge-tokens": 712}]),
]


class LeaseSettlement(Closed, frozen=True, kw_only=True):
    """Release of a lease with the amounts that were really used."""

    fence: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    """As in the answer to the acquire."""
    used: UsedAmounts
    """Quota -> amount. Rates are corrected by the difference; quotas that are not named keep what was taken."""


class QuotaLease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease that the caller holds."""

    lease: str
    """Its id."""
    fence: int
    """Number that grows with each lease. Renewal and release need it."""
    expires_in_s: float
    """Seconds until it expires, unless it is renewed."""
    expires_at: float
    """The same time, Unix seconds by the mesh's clock."""


LeaseState = Literal["waiting", "held", "released", "expired", "revoked", "refused"]


class LeaseView(msgspec.Struct, frozen=True, kw_only=True):
    """State of a lease."""

    lease: str
    state: LeaseState
    """`revoked`: the mesh has ended it. `refused`: it was not granted."""
    fence: int | None = None
    """Null: it was not granted."""
    expires_in_s: float | None = None
    """Null: it is not held."""


class LeaseNews(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """End of a lease's action, as the store keeps it: also readable as an `Answer`."""

    id: str
    state: Literal["finished"]
    ended: str = ""
    """As in `Answer`; empty: it was released."""
    reason: str = ""
    retry_after_s: float | None = None
    """For one that was not granted: seconds until its quotas could give its amounts; null: not known."""
    limits: str = ""
    """As `GrantedLease.limits`, at its refusal."""


LEASE_TYPES: Final = (AcquireRequest, LeaseFence, LeaseSettlement, QuotaLease, LeaseView)
"""Types of bodies, for the OpenAPI document."""
