"""Writes of the leader, and which of them may leave in one flush."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from shared.bus.functions import Advancing, Answering, Granting
from shared.bus.granted_submissions import GrantedSubmission
from shared.bus.held_leases import LeaseAcquisition, LeaseGrant, LeaseRelease, LeaseRevocation
from shared.bus.holds import Taking
from shared.policy.model.quotas import QuotaHold, Settled


class Discard(NamedTuple):
    """A journal entry that is not a request (a cancellation) has been handled."""

    entry: str


class Forget(NamedTuple):
    """A trajectory's environment has ended, or was not created."""

    trajectory: str
    ended: str
    """Its end; `unmade`: it was not created, and the trajectory has not ended."""
    reason: str


class HoldsChanged(NamedTuple):
    """Attempts have ended without an answer, or a node reports one again: what they hold of quotas has changed."""

    settled: tuple[QuotaHold | Settled, ...]


class LeaseInventory(NamedTuple):
    """The inventory of the node of leases is needed."""


Write = (
    Granting
    | GrantedSubmission
    | Answering
    | Advancing
    | Discard
    | Forget
    | HoldsChanged
    | LeaseAcquisition
    | LeaseGrant
    | LeaseRelease
    | LeaseRevocation
    | LeaseInventory
)


GRANTS: Final = (Granting, LeaseGrant)
_ENDS: Final = (Answering, Advancing, HoldsChanged)


@dataclass(slots=True)
class HoldOrder:
    """Changes of holds in one flush, which does not write in the order of the writes."""

    taken: set[str] = field(default_factory=set)
    refunds: bool = False
    rated: set[bool] = field(default_factory=set)
    """Whether takings from rates are acquisitions. These and grants leave in no order between them."""

    def accepts(self, write: Write) -> bool:
        """Return whether a write may join the flush."""
        taking = _taking(write)
        if taking is not None:
            self.taken.add(taking.hold.key)
            if taking.rates:
                self.rated.add(isinstance(write, LeaseAcquisition))
            return not self.refunds and len(self.rated) < 2
        settled = _settled(write)
        if not settled:
            return True
        refunds = any(isinstance(change, Settled) and change.refunds for change in settled)
        self.refunds = self.refunds or refunds
        return self.taken.isdisjoint([change.key for change in settled]) and not (refunds and self.taken)


def levels(write: Write) -> Iterable[str]:
    """Names of the quotas whose levels a write changes."""
    taking = _taking(write)
    if taking is not None:
        return dict.fromkeys([_level(name) for name, _ in taking.rates])
    return () if isinstance(write, HoldsChanged) else levels_of(_settled(write))


def _taking(write: Write) -> Taking | None:
    if isinstance(write, LeaseAcquisition):
        return None if write.grant is None else write.grant.taking
    return write.taking if isinstance(write, GRANTS) else None


def _settled(write: Write) -> tuple[QuotaHold | Settled, ...]:
    if isinstance(write, LeaseRelease):
        return write.answering.settled
    return write.settled if isinstance(write, _ENDS) else ()


def levels_of(changes: Iterable[QuotaHold | Settled]) -> Iterable[str]:
    return dict.fromkeys(
        [_level(refund.quota) for one in changes if isinstance(one, Settled) for refund in one.refunds]
    )


def _level(quota: str) -> str:
    return f" level of {quota}"  # no id begins with a blank


def leave(batch: list[Write], gone: Sequence[Write]) -> None:
    """Remove these writes from a batch."""
    left = {id(write) for write in gone}
    batch[:] = [write for write in batch if id(write) not in left]
