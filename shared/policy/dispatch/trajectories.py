"""Where trajectories live: one environment each, on one node, from the first action to the end (ARL-Tangram §5.2).

Laws:
  - a trajectory acts one action at a time, in the order of their arrival;
  - what an environment holds of its node is booked there until the node says that it has ended, as units are;
  - a trajectory that has ended never begins anew: its later actions are answered, not executed in a fresh environment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shared.policy.model.formulation import EnvironmentNeed

MOST_ENDED = 65_536
"""Ended trajectories that are remembered: longer than anything of theirs can be under way."""


@dataclass(slots=True)
class Placement:
    """One trajectory's environment, as far as its leader knows."""

    node: str
    units: Mapping[str, int]
    """What it holds of its node."""
    serial: int = 0
    """Of the grant it begins with; orders it against inventories. 0: a former leader's."""
    booked: bool = False
    """Its units are taken on that node. Not so while a node that came back has not told what it still has."""
    closing: bool = False
    """Its trainer has closed it, or nobody knows it: the node is told to end it."""
    away_s: float | None = None
    """Since when its node has not been heard of."""


@dataclass(slots=True)
class Trajectories:
    """Homes, turns and ends."""

    placements: dict[str, Placement] = field(default_factory=dict)
    on: dict[str, set[str]] = field(default_factory=dict)
    """Node -> trajectories at home there."""
    turns: dict[str, deque[str]] = field(default_factory=dict)
    """Trajectory -> its unanswered actions by arrival; the first one acts, or waits for units."""
    ended: dict[str, str] = field(default_factory=dict)
    """Trajectory -> why it has ended; the newest."""
    orphans: dict[tuple[str, str], Mapping[str, int]] = field(default_factory=dict)
    """(Node, trajectory) -> units of an environment that stands there though its trajectory does not live there: its
    node is told to end it."""

    def begins(self, need: EnvironmentNeed | None) -> bool:
        """Would an action of it, granted now, begin an environment?"""
        return need is not None and need.trajectory not in self.placements

    def settle(self, trajectory: str, placement: Placement) -> None:
        """It lives there from now on."""
        self.placements[trajectory] = placement
        self.on.setdefault(placement.node, set()).add(trajectory)

    def leave(self, trajectory: str) -> Placement | None:
        """It lives nowhere any more. Returns where it did."""
        placement = self.placements.pop(trajectory, None)
        if placement is not None:
            mine = self.on[placement.node]
            mine.discard(trajectory)
            if not mine:
                del self.on[placement.node]
        return placement

    def end(self, trajectory: str, reason: str) -> None:
        """It will never begin anew."""
        self.ended.pop(trajectory, None)
        self.ended[trajectory] = reason
        if len(self.ended) > MOST_ENDED:
            del self.ended[next(iter(self.ended))]

    def queue_up(self, trajectory: str, action: str) -> bool:
        """An action has come. Is it its turn?"""
        turn = self.turns.setdefault(trajectory, deque())
        turn.append(action)
        return len(turn) == 1

    def answered(self, trajectory: str, action: str) -> str | None:
        """An action is over. Returns the one whose turn it is now, if that is news."""
        turn = self.turns[trajectory]
        first = turn[0] == action
        turn.remove(action)
        if not turn:
            del self.turns[trajectory]
            return None
        return turn[0] if first else None

    def away(self, nodes: Mapping[str, object], now: float, grace_s: float) -> Iterator[tuple[str, Placement]]:
        """Homes whose node has not been heard of for so long."""
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
