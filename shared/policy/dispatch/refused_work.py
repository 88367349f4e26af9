"""Works of which one action cannot start, in a walk over a lane: others like it are passed over."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.quota_turns import QuotaTurns
from shared.policy.resources.pools import BACKFILL_DEPTH


@dataclass(slots=True)
class RefusedWork:
    """Works by why they cannot start. A walk only takes, so only turns can change during it. O(1) for each action."""

    turns: QuotaTurns
    joins: bool
    """The nodes have structured resources: if they have no place for one action, they have none for others like it."""
    _lacking: set[int] = field(default_factory=set)
    """Works that lack a quota."""
    _unplaced: set[int] = field(default_factory=set)
    _held_back: set[tuple[int, str]] = field(default_factory=set)
    """Works and tenants that wait for others' turns."""
    _tried: int = 0

    def tries_next(self) -> bool:
        """Count an action that is tried. False: enough were tried."""
        self._tried += 1
        return self._tried <= BACKFILL_DEPTH

    def __contains__(self, action: ActionState) -> bool:
        """Return whether an action cannot start, because one like it could not."""
        work = id(action.work)
        if work in self._lacking:
            self.turns.join(action)
            return True
        return work in self._unplaced or (work, action.request.tenant) in self._held_back

    def add(self, action: ActionState) -> None:
        """Add an action that was looked at, and cannot start now."""
        work = id(action.work)
        if not action.is_like_others:
            return
        if action.request.id in self.turns.held_back:
            self._held_back.add((work, action.request.tenant))
        elif action.work.quotas and self.turns.lack(action):
            self._lacking.add(work)
        elif self.joins:
            self._unplaced.add(work)

    def granted(self) -> None:
        """Note a grant: it ends a turn."""
        self._held_back.clear()
