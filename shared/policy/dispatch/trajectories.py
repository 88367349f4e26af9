"""Placements of trajectories: one environment each, on one node, from first action to end (ARL-Tangram §5.2).

Laws:
  - a trajectory runs one action at a time, in the order of their arrival;
  - the units of an environment stay taken on its node until the node reports its end;
  - a trajectory that has ended never begins again: its later actions are answered, not executed in a new environment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shared.policy.model.formulation import EnvironmentNeed

MOST_ENDED = 65_536
"""Most ended trajectories that are remembered: for longer than any of their actions can be unanswered."""


@dataclass(slots=True)
class Placement:
    """Placement of one trajectory's environment, as the leader knows it."""

    node: str
    units: Mapping[str, int]
    """Units it holds of its node."""
    serial: int = 0
    """Serial of the grant that begins it; orders it against inventories. 0: granted by a former leader."""
    booked: bool = False
    """Its units are taken on that node. False while a node that came back has not reported what it still has."""
    closing: bool = False
    """Its trainer has closed it, or it is unknown: the node is asked to end it."""
    away_s: float | None = None
    """Time since which its node has been silent."""


@dataclass(slots=True)
class Trajectories:
    """Placements, turns and ends of trajectories."""

    placements: dict[str, Placement] = field(default_factory=dict)
    on: dict[str, set[str]] = field(default_factory=dict)
    """Node -> trajectories placed there."""
    turns: dict[str, deque[str]] = field(default_factory=dict)
    """Trajectory -> its unanswered actions by arrival; the first one runs, or waits for units."""
    ended: dict[str, str] = field(default_factory=dict)
    """Trajectory -> reason of its end; the newest ones only."""
    orphans: dict[tuple[str, str], Mapping[str, int]] = field(default_factory=dict)
    """(Node, trajectory) -> units of an environment on a node where its trajectory is not placed; the node is asked to
    end it."""

    def begins(self, need: EnvironmentNeed | None) -> bool:
        """Return whether an action that needs it, granted now, would begin an environment."""
        return need is not None and need.trajectory not in self.placements

    def settle(self, trajectory: str, placement: Placement) -> None:
        """Place a trajectory on a node."""
        self.placements[trajectory] = placement
        self.on.setdefault(placement.node, set()).add(trajectory)

    def leave(self, trajectory: str) -> Placement | None:
        """Remove the placement of a trajectory and return it."""
        placement = self.placements.pop(trajectory, None)
        if placement is not None:
            mine = self.on[placement.node]
            mine.discard(trajectory)
            if not mine:
                del self.on[placement.node]
        return placement

    def end(self, trajectory: str, reason: str) -> None:
        """Record that a trajectory has ended."""
        self.ended.pop(trajectory, None)
        self.ended[trajectory] = reason
        if len(self.ended) > MOST_ENDED:
            del self.ended[next(iter(self.ended))]

    def queue_up(self, trajectory: str, action_id: str) -> bool:
        """Add an action. Returns whether it is first in turn."""
        turn = self.turns.setdefault(trajectory, deque())
        turn.append(action_id)
        return len(turn) == 1

    def answered(self, trajectory: str, action_id: str) -> str | None:
        """Remove an answered action. Returns the next one in turn if the turn has changed, else None."""
        turn = self.turns[trajectory]
        first = turn[0] == action_id
        turn.remove(action_id)
        if not turn:
            del self.turns[trajectory]
            return None
        return turn[0] if first else None

    def away(self, nodes: Mapping[str, object], now: float, grace_s: float) -> Iterator[tuple[str, Placement]]:
        """Yield placements whose node has been away for longer than `grace_s`."""
        for node in [node for node in self.on if node not in nodes]:
            for trajectory in sorted(self.on[node]):
                placement = self.placements[trajectory]
                if placement.away_s is None:
                    placement.away_s = now
                elif now - placement.away_s > grace_s:
                    yield trajectory, placement

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        assert {(placement.node, name) for name, placement in self.placements.items()} == {
            (node, name) for node, mine in self.on.items() for name in mine
        }, "homes by node"
        assert all(self.turns.values()), "who has no unanswered action has no turn"
