"""Turns and ends of trajectories.

Laws:
  - a trajectory runs one action at a time, in the order of their arrival;
  - a trajectory that has ended never begins again: its later actions are answered, not executed in a new environment.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from shared.policy.model.formulation import EnvironmentNeed

MOST_ENDED = 65_536
"""Most ended trajectories that are remembered: for longer than any of their actions can be unanswered."""


@dataclass(slots=True)
class TrajectoryTurns:
    """Unanswered actions of each trajectory in their order, and ended trajectories."""

    turns: dict[str, deque[str]] = field(default_factory=dict)
    """Trajectory -> its unanswered actions by arrival; the first one runs, or waits for units."""
    ended: dict[str, str] = field(default_factory=dict)
    """Trajectory -> reason of its end; the newest ones only."""

    def end(self, trajectory: str, reason: str) -> None:
        """Record that a trajectory has ended."""
        self.ended.pop(trajectory, None)
        self.ended[trajectory] = reason
        if len(self.ended) > MOST_ENDED:
            del self.ended[next(iter(self.ended))]

    def end_of(self, need: EnvironmentNeed | None) -> str | None:
        """Reason of the end of the trajectory with this need; None if it has not ended, or there is none."""
        return self.ended.get(need.trajectory) if need is not None else None

    def add(self, trajectory: str, action_id: str) -> None:
        """Add an action after all earlier ones."""
        self.turns.setdefault(trajectory, deque()).append(action_id)

    def remove(self, trajectory: str, action_id: str) -> str | None:
        """Remove an answered action. Returns the next one in turn if the turn has changed, else None."""
        turn = self.turns[trajectory]
        first = turn[0] == action_id
        turn.remove(action_id)
        if not turn:
            del self.turns[trajectory]
            return None
        return turn[0] if first else None

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        assert all(self.turns.values()), "a trajectory without unanswered actions has no turn"
