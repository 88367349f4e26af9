"""What callers learn about their leases: states, and the errors of calls that a lease's state does not allow."""

from __future__ import annotations

from typing import Final

from shared.api.leases import LeaseNews, LeaseView
from shared.bus.held_leases import LeaseCode, LeaseRecord
from shared.runtime.errors import Conflict, Fenced, LeaseExpired, NotFound, QuotaNever
from shared.runtime.units import Seconds

RELEASED: Final = ("held", "released")
"""Codes of a release whose caller held the lease, or has released it before."""


def check_refused(news: LeaseNews) -> None:
    """Raise what is no refusal by time.

    Raises:
        QuotaNever, Conflict
    """
    if news.ended == "refused":
        raise QuotaNever(what=news.reason)
    if news.ended != "expired":
        how = "was cancelled" if news.ended == "cancelled" else "has ended"
        raise Conflict(what=f"the lease of this request {how}; acquire with a new request_id")


def check_held(lease: str, code: LeaseCode) -> None:
    """Raise unless the caller holds the lease, or has released it.

    Raises:
        NotFound, Fenced, LeaseExpired, Conflict
    """
    match code:
        case "held" | "released":
            return
        case "unknown":
            raise unknown_lease(lease)
        case "fenced":
            raise Fenced(what=f"lease {lease} has another fence: it is another caller's")
        case "over":
            raise LeaseExpired(what=f"lease {lease} has expired, or was ended: what it held is free")
        case "waits":
            raise Conflict(what=f"lease {lease} is not granted")
        case "other-amounts":
            raise Conflict(what=f"lease {lease} has ended with other amounts; its amounts cannot be changed any more")


def unknown_lease(lease: str) -> NotFound:
    """Return the error for a lease that the store does not have."""
    return NotFound(kind="lease", name=lease, hint="it was never acquired, or ended more than a minute ago")


def view_of(lease: str, record: LeaseRecord, now: Seconds) -> LeaseView:
    """Return the state of a lease for its caller."""
    if record.ended:
        return LeaseView(lease=lease, state=record.ended, fence=record.fence)
    if not record.fence:
        return LeaseView(lease=lease, state="waiting" if record.answer is None else "refused")
    if not record.is_held:
        return LeaseView(lease=lease, state="revoked", fence=record.fence)
    left_s = record.expires_s - now
    if left_s <= 0:
        return LeaseView(lease=lease, state="expired", fence=record.fence)
    return LeaseView(lease=lease, state="held", fence=record.fence, expires_in_s=left_s)
