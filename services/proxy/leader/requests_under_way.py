"""Requests about actions in the journal whose effects are under way: cancellations, closed trajectories, parking.

Law: the entry of a request is discarded after the last of its effects is written. A successor finds the entry again if
this leader stops before, and repeats what is left. A large batch is cancelled in parts, so that may take seconds.
"""

from __future__ import annotations

from collections.abc import Mapping

from services.proxy.leader.arrivals import ActionOwner, names_of
from services.proxy.leader.interpreter import Interpreter
from services.proxy.leader.unanswered import Unanswered
from shared.bus.tail import Entry
from shared.messages.actions import ActionSubmitted, CancelRequested, CloseRequested, PriorityRequested, Request
from shared.policy.dispatch.dispatcher import Dispatcher


class RequestsUnderWay:
    """Entries of requests by the batch, trajectory or action that each is about."""

    def __init__(self, interpreter: Interpreter, unanswered: Mapping[str, Unanswered]) -> None:
        self._interpreter = interpreter
        self._unanswered = unanswered
        self._entries: dict[str, list[str]] = {}
        """Name -> entries, oldest first."""
        self._changed: set[str] = set()
        """Names whose requests may have ended since they were examined."""

    def begin(self, entry: Entry[Request]) -> None:
        """Add a request that is handled now."""
        name = _name_of(entry.message)
        self._entries.setdefault(name, []).append(entry.id)
        self._changed.add(name)

    def owner(self, action: str) -> ActionOwner:
        """Return the tenant and the names of writes about an action; without a tenant if it is not unanswered."""
        kept = self._unanswered.get(action)
        if kept is None:
            return ActionOwner(names=(action,))
        return ActionOwner(kept.submitted.tenant, self.names_of(kept.submitted))

    def names_of(self, submitted: ActionSubmitted) -> tuple[str, ...]:
        """Names of a write about an action. While its batch is being cancelled, the batch's is one of them, so that
        the discard follows.
        """
        if not submitted.batch or submitted.batch not in self._entries:
            return names_of(submitted)
        self._changed.add(submitted.batch)
        return (*names_of(submitted), submitted.batch)

    def discard_handled(self, dispatcher: Dispatcher) -> None:
        """Discard the entries of requests that have ended. Call it after their effects are put.

        The cancellation of a batch ends with the answer of its last action, also of one that was revoked.
        """
        for name in list(self._changed):
            if not dispatcher.cancels(name):
                self._changed.discard(name)
                if not dispatcher.has_unanswered(name):
                    for entry in self._entries.pop(name):
                        self._interpreter.discard(entry, name)


def _name_of(asked: Request) -> str:
    match asked:
        case CloseRequested() | PriorityRequested():
            return asked.trajectory
        case CancelRequested() if asked.batch:
            return asked.batch
        case _:
            return asked.action
