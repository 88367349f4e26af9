"""Pins: the worker of each trajectory, from its first call until it ends or is idle for long.

Laws (tests/shared/policy/routing/test_pins.py): a pin with a call does not lapse; others lapse `pin_idle_s` after the
last call. Above `most_pins` those that are idle for the longest time go first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from math import inf


@dataclass(slots=True)
class PinnedTrajectory:
    """A trajectory and its worker. About 200 bytes."""

    worker: str
    tenant: str = ""
    group: str = ""
    tokens: int = 0
    """Most tokens that it has held."""
    calls: int = 0
    """Calls that wait or are in flight."""


@dataclass(slots=True)
class Pins:
    """Pins of all trajectories. Each method is O(1), amortised."""

    pin_idle_s: float
    most_pins: int
    by_trajectory: dict[str, PinnedTrajectory] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    """Worker -> its trajectories."""
    _idle: OrderedDict[str, float] = field(default_factory=OrderedDict)
    """Trajectory without a call -> time since when. The oldest is first."""

    def worker(self, trajectory: str) -> str:
        """Return the worker of a trajectory; empty: it has none."""
        known = self.by_trajectory.get(trajectory)
        return "" if known is None else known.worker

    def pin(self, trajectory: str, worker: str, tenant: str, group: str) -> bool:
        """Pin a trajectory. Return whether this changes its worker."""
        known = self.by_trajectory.get(trajectory)
        if known is None:
            known = self.by_trajectory[trajectory] = PinnedTrajectory(worker, tenant, group)
        elif known.worker == worker:
            return False
        else:
            self._count(known.worker, -1)
            known.worker = worker
        self._count(worker, 1)
        return True

    def began(self, trajectory: str) -> PinnedTrajectory:
        """Note a call that waits or is in flight. Return its pin, for `ended`."""
        self._idle.pop(trajectory, None)
        known = self.by_trajectory[trajectory]
        known.calls += 1
        return known

    def ended(self, trajectory: str, pin: PinnedTrajectory | None, tokens: int | None, now: float) -> None:
        """Note the end of a call. No effect if its trajectory has ended, also if it has begun again."""
        known = self.by_trajectory.get(trajectory)
        if known is None or known is not pin or not known.calls:
            return
        known.calls -= 1
        known.tokens = max(known.tokens, tokens or 0)
        if not known.calls:
            self._idle[trajectory] = now

    def restore(self, trajectory: str, worker: str, at_s: float) -> None:
        """Add a pin of a former leader."""
        if self.pin(trajectory, worker, "", ""):
            self._idle[trajectory] = at_s

    def remove(self, trajectory: str) -> PinnedTrajectory | None:
        """Remove a pin; None: there is none."""
        known = self.by_trajectory.pop(trajectory, None)
        if known is not None:
            self._idle.pop(trajectory, None)
            self._count(known.worker, -1)
        return known

    def lapsed(self, now: float) -> list[str]:
        """Remove the pins that have been idle for too long, or that are too many. Return their trajectories."""
        gone: list[str] = []
        while self._idle:
            trajectory, since_s = next(iter(self._idle.items()))
            if since_s + self.pin_idle_s > now and len(self.by_trajectory) <= self.most_pins:
                break
            self.remove(trajectory)
            gone.append(trajectory)
        return gone

    def due_s(self) -> float:
        """Return when the next pin lapses; infinity: none does."""
        return next(iter(self._idle.values())) + self.pin_idle_s if self._idle else inf

    def _count(self, worker: str, change: int) -> None:
        count = self.counts.get(worker, 0) + change
        if count:
            self.counts[worker] = count
        else:
            self.counts.pop(worker, None)

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        counts: dict[str, int] = {}
        for known in self.by_trajectory.values():
            counts[known.worker] = counts.get(known.worker, 0) + 1
        assert counts == self.counts, "trajectories by worker"
        idle = {name for name, known in self.by_trajectory.items() if not known.calls}
        assert idle == self._idle.keys(), "idle without a call, and only then"
