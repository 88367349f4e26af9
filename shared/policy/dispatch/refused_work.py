"""Works of which one action cannot start, in a walk over a lane: others like it are passed over."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.quota_turns import QuotaTurns


@dataclass(slots=True)
class RefusedWork:
    """Actions that cannot start, by why, as keys of what is like them (`ActionState.like_key`). A walk only takes, so
    only turns can change during it. O(1) for each action.
    """

    turns: QuotaTurns
    joins: bool
    """The nodes have structured resources: if they have no place for one action, they have none for others like it."""
    _unplaced: set[object] = field(default_factory=set)
    """Those without a place."""
    _shortest_s: dict[tuple[str, str, int], float] = field(default_factory=dict)
    """Shape of calls without a place -> shortest expected duration of one. Longer ones are passed over."""
    _lacking: set[object] = field(default_factory=set)
    """Those that lack a quota."""
    _held_back: set[tuple[object, tuple[str, str, str]]] = field(default_factory=set)
    """Those that wait for others' turns, each with the key of its duration, since the last grant."""
    _joined: set[tuple[object, str]] = field(default_factory=set)
    """Those that lack a quota, each with a tenant that waits for it, since the last grant."""

    def __contains__(self, action: ActionState) -> bool:
        """Return whether an action is like one that cannot start. Its tenant waits for quotas that both lack."""
        like = action.like_key
        if like in self._unplaced or (like, action.duration_key) in self._held_back:
            return True
        if like not in self._lacking:
            return self._is_longer(action)
        joined = (like, action.request.tenant)
        if joined not in self._joined:
            self._joined.add(joined)
            self.turns.join(action)
        return True

    def add(self, action: ActionState) -> None:
        """Add an action that was looked at, and cannot start now."""
        like = action.like_key
        if not action.is_like_others:
            return
        if action.request.id in self.turns.held_back:
            self._held_back.add((like, action.duration_key))
        elif action.work.quotas and self.turns.lack(action):
            self._lacking.add(like)
            self._joined.add((like, action.request.tenant))
        elif self.joins:
            self._unplaced.add(like)
            if (shape := _shape(action)) is not None:  # if its shape has an entry, this call is shorter
                self._shortest_s[shape] = self.turns.cluster.durations.expect_at_most(action)

    def _is_longer(self, action: ActionState) -> bool:
        """Return whether a call without a place needs the same of nodes, for as long at most."""
        if not self._shortest_s or not action.is_like_others or (shape := _shape(action)) not in self._shortest_s:
            return False
        return self.turns.cluster.durations.expect_at_most(action) >= self._shortest_s[shape]

    def granted(self) -> None:
        """Note a grant: it ends a turn."""
        self._held_back.clear()
        self._joined.clear()


def _shape(action: ActionState) -> tuple[str, str, int] | None:
    """Return what a call needs of nodes apart from its duration; None: more than one resource, or quotas."""
    work = action.work
    return None if work.quotas or len(work.units) > 1 else (work.kind, work.service, action.pool_units)
