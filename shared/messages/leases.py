"""Leases of callers: amounts of quotas that a caller outside the mesh holds until it releases them.

A lease is an action of kind `lease`. The leader grants it on a node of its own, `NODE`, which has no host; the store
plays the part of that node's manager (`shared.bus.held_leases`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from shared.messages.base import Message

KIND: Final = "lease"
NODE: Final = ":leases"
"""Node of all leases. No host has a name that begins with a colon."""
NODE_CLASS: Final = ":leases"
INCARNATION: Final = "store"
"""The node exists as long as the store, so it has one incarnation."""
RESOURCE: Final = "leases"
POOL: Final = f"{RESOURCE}@{NODE_CLASS}"
GONE: Final = "its caller has gone"
"""Reason of a cancellation whose caller never learned that it had the lease."""
MOST_HELD: Final = 100_000
"""Leases that are held at once. Others wait."""


class GrantedLease(msgspec.Struct, frozen=True, array_like=True):
    """A lease that its caller holds from now on."""

    action: str
    fence: int
    """Grows with each grant. A release or renewal with another one is rejected."""
    expires_ms: int
    """Unix milliseconds by Valkey's clock."""
    ttl_ms: int
    limits: str = ""
    """Values of the headers `RateLimit-Policy` and `RateLimit`, with a line feed between them."""


class LeasesGranted(Message, frozen=True, kw_only=True, tag="leases-granted.v1"):
    """These leases have been granted: for the replicas whose callers wait."""

    leases: list[GrantedLease]
