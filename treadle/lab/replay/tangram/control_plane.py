"""Queue of pod creations: a control plane with a bounded rate, room on nodes, and clients that time out and retry.

Law: creations are processed in the order of their requests, at a bounded rate. A creation whose client has timed out is
processed too, because the pod is created and deleted. So an overloaded control plane spends its time on creations that
no client awaits. The backoff grows until all creations of one try are processed before the next try. So each try
creates some pods, and in the end all trajectories have one. Processed creations wait for a node with room, in order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from treadle.lab.replay.tangram.assumptions import Cluster, PodRules


@dataclass(slots=True)
class ControlPlane:
    """Trajectories that wait for a pod, and the pods of each node."""

    rules: PodRules
    cluster: Cluster
    trajectories: int
    most_backoff_s: float = field(init=False)
    free: list[int] = field(init=False)
    """By node: further pods that fit."""
    retries: int = 0
    _asked: deque[tuple[int, int]] = field(default_factory=deque)
    """(trajectory, try): creations to process."""
    _pending: dict[int, None] = field(default_factory=dict)
    """Trajectories whose creation is processed and that no node has room for, in order."""
    _waits: dict[int, int] = field(default_factory=dict)
    """Trajectory -> its present try."""
    _failed: dict[int, int] = field(default_factory=dict)
    """Trajectory -> tries that timed out."""

    def __post_init__(self) -> None:
        self.most_backoff_s = max(self.rules.most_backoff_s, self.trajectories / self.rules.creations_per_s)
        self.free = [int(self.cluster.cores / self.rules.request)] * self.cluster.nodes

    def ask(self, trajectory: int) -> int:
        """Request a pod, or request it again; return the number of this try."""
        number = self._waits[trajectory] = self._failed.get(trajectory, 0)
        self._asked.append((trajectory, number))
        return number

    @property
    def asked(self) -> int:
        """Creations to process."""
        return len(self._asked)

    def work_off(self) -> None:
        """Process the first creation. It then waits for room, unless its client has timed out."""
        trajectory, number = self._asked.popleft()
        if self._waits.get(trajectory) == number:
            self._pending[trajectory] = None

    def place(self) -> tuple[int, int] | None:
        """Place the next pod on the node with the most room; return (trajectory, node). None: no pod waits or fits."""
        node = max(range(len(self.free)), key=lambda number: (self.free[number], -number))
        if not self._pending or not self.free[node]:
            return None
        trajectory = next(iter(self._pending))
        del self._pending[trajectory], self._waits[trajectory]
        self.free[node] -= 1
        return trajectory, node

    def give_up(self, trajectory: int, number: int) -> float | None:
        """Time out a try; return the seconds until the next one. None: the try was successful."""
        if self._waits.get(trajectory) != number:
            return None
        del self._waits[trajectory]
        self._pending.pop(trajectory, None)
        self._failed[trajectory] = number + 1
        self.retries += 1
        return float(min(self.rules.backoff_s * 2**number, self.most_backoff_s))

    def gone(self, node: int) -> None:
        """Release the room of a deleted pod."""
        self.free[node] += 1
