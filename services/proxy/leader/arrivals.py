"""Entries that the leader has read and not handled yet: handled in parts, tenants in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from shared.bus.tail import Entry
from shared.messages.actions import (
    ACTIONS,
    ActionSubmitted,
    CancelRequested,
    CloseRequested,
    ParkActionRequested,
    PriorityRequested,
    ResumeActionRequested,
)
from shared.messages.nodes import Bye, Hello
from shared.messages.outcomes import OUTCOMES, EnvironmentCreated, EnvironmentEnded, Finished, Parked, Started
from shared.policy.order.turns import NO_FLOW, TurnQueue

HANDLED_SHARED = 16
"""Submissions, or outcomes, that are handled together while several tenants have any: about 1 ms. A new entry waits
for those that are being handled. Of one tenant, all that were read are handled together, which costs less."""


class ActionOwner(NamedTuple):
    """Tenant of an action, and the names by which writes about it keep their order."""

    tenant: str = NO_FLOW
    names: tuple[str, ...] = ()


def names_of(submitted: ActionSubmitted) -> tuple[str, ...]:
    """Return an action's name, and its trajectory's."""
    return (submitted.action, submitted.trajectory) if submitted.trajectory else (submitted.action,)


class Arrivals:
    """Entries read and not handled yet. At most as many as there are unanswered actions and their outcomes.

    Submissions and outcomes wait in two queues, so that outcomes free units while many submissions wait. Messages of
    other streams do not wait. The order stays between entries about the same action, batch or trajectory. An inventory
    comes after all earlier outcomes.

    The end of an incarnation (a Bye, or the hello of the next one) comes after all outcomes that were published before,
    although it is on another stream. Otherwise finished work would count as lost: it would run again, or be answered
    `unknown-outcome`.
    """

    def __init__(self, owner: Callable[[str], ActionOwner], has_node: Callable[[str, str], bool]) -> None:
        """Begin without entries.

        Args:
            owner: owner of an unanswered action; without a tenant if the action is unknown.
            has_node: whether an incarnation of a node is the present one. Its repeated hello does not wait.
        """
        self._owner = owner
        self._has_node = has_node
        self._submissions: TurnQueue[Entry[Any]] = TurnQueue()
        self._outcomes: TurnQueue[Entry[Any]] = TurnQueue()
        self._others: list[Entry[Any]] = []
        """Entries that do not wait."""
        self._ends: deque[Entry[Any]] = deque()
        """Ends of incarnations. Earlier outcomes may not have been read."""
        self._outcomes_next = False
        """The next part is one of outcomes, if there are any."""

    def __bool__(self) -> bool:
        return bool(self._submissions or self._outcomes or self._others or self._ends)

    def put(self, entries: Sequence[Entry[Any]], *, drained: bool = True) -> None:
        """Add the entries of one read, in their order.

        Args:
            entries: of all streams; those of nodes before outcomes.
            drained: the read has returned all outcomes that there were.
        """
        if self._pass(entries):
            self._others += entries
            return
        for entry in entries:
            if entry.topic == ACTIONS.name:
                self._put_journaled(entry)
            elif entry.topic == OUTCOMES.name:
                while self._ends and self._ends[0].at < entry.at:
                    self._outcomes.put_after_all(self._ends.popleft())
                self._put_outcome(entry)
            elif self._ends_incarnation(entry.message):
                self._ends.append(entry)
            else:
                self._others.append(entry)
        while drained and self._ends:
            self._outcomes.put_after_all(self._ends.popleft())

    def _ends_incarnation(self, message: Any) -> bool:
        if isinstance(message, Hello):
            return not self._has_node(message.node, message.incarnation)
        return isinstance(message, Bye)

    def _pass(self, entries: Sequence[Entry[Any]]) -> bool:
        """Return whether nothing waits and one tenant at most is present. Then no entry needs a turn."""
        tenants = {entry.message.tenant for entry in entries if isinstance(entry.message, ActionSubmitted)}
        if len(tenants) > 1 or self or self._outcomes.shared:
            return False
        if any(self._ends_incarnation(entry.message) for entry in entries):
            return False
        return self._submissions.skip(next(iter(tenants), NO_FLOW), len(entries))

    def take(self) -> list[Entry[Any]]:
        """Remove the entries to be handled next: submissions before outcomes; while several tenants have any, a part
        of either in turn.
        """
        others, self._others = self._others, []
        submissions, outcomes = self._submissions, self._outcomes
        if not (submissions.shared or outcomes.shared):
            return submissions.take(len(submissions)) + others + outcomes.take(len(outcomes))
        self._outcomes_next = bool(outcomes) and (self._outcomes_next or not submissions)
        part = (outcomes if self._outcomes_next else submissions).take(HANDLED_SHARED)
        self._outcomes_next = not self._outcomes_next
        return others + part

    def _put_journaled(self, entry: Entry[Any]) -> None:
        match entry.message:
            case ActionSubmitted() as submitted:
                names = names_of(submitted)
                self._submissions.put(submitted.tenant, entry, (*names, submitted.batch) if submitted.batch else names)
            case ParkActionRequested(action=action) | ResumeActionRequested(action=action):
                self._submissions.put(NO_FLOW, entry, (action,))
            case CancelRequested(action=action, batch=batch):
                self._submissions.put(NO_FLOW, entry, (action or batch,))
            case CloseRequested(trajectory=trajectory) | PriorityRequested(trajectory=trajectory):
                self._submissions.put(NO_FLOW, entry, (trajectory,))
            case unreadable:
                named = (unreadable.action, unreadable.batch, unreadable.trajectory)
                self._submissions.put(NO_FLOW, entry, tuple(name for name in named if name))

    def _put_outcome(self, entry: Entry[Any]) -> None:
        match entry.message:
            case Started(action=action) | Parked(action=action) | Finished(action=action):
                tenant, names = self._owner(action)
                self._outcomes.put(tenant, entry, names or (action,))
            case EnvironmentCreated(trajectory=trajectory) | EnvironmentEnded(trajectory=trajectory):
                self._outcomes.put(NO_FLOW, entry, (trajectory,))
            case _:
                self._outcomes.put_after_all(entry)
