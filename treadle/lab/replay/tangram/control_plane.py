"""Pods that wait to be created: a control plane of bounded rate, room on nodes, and clients that give up and ask again.

Law: creations are worked off in the order in which they were asked for, at a bounded rate. One whose client has given
up meanwhile is worked off all the same, because it was created and deleted; so an overloaded control plane spends its
time on what nobody waits for any more. Before the next try it has worked off all of this one at the latest when the
waits between them have grown; so each try finds some a pod, and in the end all have one. What has been worked off waits
for a node with room, again in order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from treadle.lab.replay.tangram.assumptions import Cluster, PodRules


@dataclass(slots=True)
class ControlPlane:
    """Who waits for a pod, and how many stand on each node."""

    rules: PodRules
    cluster: Cluster
    trajectories: int
    most_backoff_s: float = field(init=False)
    free: list[int] = field(init=False)
    """By node: pods that it still has room for."""
    retries: int = 0
    _asked: deque[tuple[int, int]] = field(default_factory=deque)
    """(trajectory, try): to be worked off."""
    _pending: dict[int, None] = field(default_factory=dict)
    """Worked off, and no node has room; by order."""
    _waits: dict[int, int] = field(default_factory=dict)
    """Trajectory -> the try that it waits for."""
    _failed: dict[int, int] = field(default_factory=dict)
    """Trajectory -> tries that timed out."""

    def __post_init__(self) -> None:
        self.most_backoff_s = max(self.rules.most_backoff_s, self.trajectories / self.rules.creations_per_s)
        self.free = [int(self.cluster.cores / self.rules.request)] * self.cluster.nodes

    def ask(self, trajectory: int) -> int:
        """A trajectory wants a pod, perhaps anew. The number of this try."""
        number = self._waits[trajectory] = self._failed.get(trajectory, 0)
        self._asked.append((trajectory, number))
        return number

    @property
    def asked(self) -> int:
        """Creations to be worked off."""
        return len(self._asked)

    def work_off(self) -> None:
        """The first creation is done with: it waits for room, if somebody waits for it."""
        trajectory, number = self._asked.popleft()
        if self._waits.get(trajectory) == number:
            self._pending[trajectory] = None

    def point(self) -> tuple[int, int] | None:
        """(trajectory, node): the next pod that finds a node, the one with the most room; None when there is none."""
        node = max(range(len(self.free)), key=lambda number: (self.free[number], -number))
        if not self._pending or not self.free[node]:
            return None
        trajectory = next(iter(self._pending))
        del self._pending[trajectory], self._waits[trajectory]
        self.free[node] -= 1
        return trajectory, node

    def give_up(self, trajectory: int, number: int) -> float | None:
        """A try has lasted its timeout. Seconds until the next one; None: it was successful."""
        if self._waits.get(trajectory) != number:
            return None
        del self._waits[trajectory]
        self._pending.pop(trajectory, None)
        self._failed[trajectory] = number + 1
        self.retries += 1
        return float(min(self.rules.backoff_s * 2**number, self.most_backoff_s))

    def gone(self, node: int) -> None:
        """A pod has been deleted."""
        self.free[node] += 1
