"""Works of which one action cannot start, in a walk over a lane: others like it are passed over."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.quota_turns import QuotaTurns


@dataclass(slots=True)
class RefusedWork:
    """Works by why they cannot start. A walk only takes, so only turns can change during it. O(1) for each action."""

    turns: QuotaTurns
    joins: bool
    """The nodes have structured resources: if they have no place for one action, they have none for others like it."""
    unplaced: set[int] = field(default_factory=set)
    """Works without a place."""
    others: set[int] = field(default_factory=set)
    """Works that lack a quota, or of which a tenant waits for others' turns."""
    _held_back: dict[int, set[str]] = field(default_factory=dict)
    """Work -> tenants that wait for others' turns, since the last grant."""
    _joined: set[tuple[int, str]] = field(default_factory=set)
    """(Work, tenant that waits with an action of it), since the last grant."""

    def __contains__(self, action: ActionState) -> bool:
        """Return whether an action of one of the `others` cannot start."""
        work, tenant = id(action.work), action.request.tenant
        tenants = self._held_back.get(work)
        if tenants is not None:
            return tenant in tenants
        if (work, tenant) not in self._joined:
            self._joined.add((work, tenant))
            self.turns.join(action)
        return True

    def add(self, action: ActionState) -> None:
        """Add an action that was looked at, and cannot start now."""
        work = id(action.work)
        if not action.is_like_others:
            return
        if action.request.id in self.turns.held_back:
            self.others.add(work)
            self._held_back.setdefault(work, set()).add(action.request.tenant)
        elif action.work.quotas and self.turns.lack(action):
            self.others.add(work)
            self._held_back.pop(work, None)
        elif self.joins:
            self.unplaced.add(work)

    def granted(self) -> None:
        """Note a grant: it ends a turn."""
        for work in self._held_back:
            self.others.discard(work)
        self._held_back.clear()
        self._joined.clear()
