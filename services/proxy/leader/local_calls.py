"""Calls of the leader's own callers that the interpreter lets be decided before each flush, and their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shared.bus.functions import Receipt
from shared.bus.granted_submissions import GrantedSubmission
from shared.bus.held_leases import Acquired, LeaseAcquisition, LeaseCode, LeaseRelease
from shared.messages.leases import GrantedLease
from shared.runtime.errors import Overloaded


class LeaseCalls(Protocol):
    """Calls about leases that are decided at the leader's own replica (`local_leases`)."""

    def decide(self) -> None:
        """Decide about the calls that came during the last flush, and put their writes."""
        ...

    def granted(self, leases: Sequence[GrantedLease]) -> None:
        """Note the fences of leases that were granted."""
        ...

    def acquired(self, acquisitions: Sequence[LeaseAcquisition], replies: Sequence[Acquired]) -> None:
        """Note that leases are journaled."""
        ...

    def rejected(self, acquisitions: Sequence[LeaseAcquisition], error: Overloaded) -> None:
        """Note that leases were not journaled: nothing of them was written."""
        ...

    def released(self, releases: Sequence[LeaseRelease], codes: Sequence[LeaseCode]) -> None:
        """Note that leases have ended."""
        ...


class ActionCalls(Protocol):
    """Calls that submit actions, and that are decided at the leader's own replica (`local_actions`)."""

    def decide(self) -> None:
        """Decide about the calls that came during the last flush, and put their writes."""
        ...

    def begin_write(self, submissions: Sequence[GrantedSubmission]) -> tuple[list[GrantedSubmission], bool]:
        """Withdraw the actions whose callers have gone before the first try. Returns them, and whether the others may
        have been written before.
        """
        ...

    def journaled(self, submissions: Sequence[GrantedSubmission], receipts: Sequence[Receipt]) -> None:
        """Apply the journal's receipts of actions that were granted before."""
        ...

    def rejected(self, submissions: Sequence[GrantedSubmission], error: Overloaded) -> None:
        """Note that actions were not journaled: nothing of them was written."""
        ...
