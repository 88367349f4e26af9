"""The Kubernetes baseline (ARL-Tangram §6.1): one pod for each trajectory, from its beginning to its end.

The wait for the pod is queueing of the environment. The duration of an action then depends on its share of the node's
cores, and all of it is execution.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import Literal

from treadle.lab.replay.tangram.assumptions import Cluster, PodRules
from treadle.lab.replay.tangram.control_plane import ControlPlane
from treadle.lab.replay.tangram.measures import ENVIRONMENT, EXECUTION, QUEUEING, REWARD, SystemRun
from treadle.lab.replay.tangram.sharing import SharedCores
from treadle.lab.replay.tangram.trace import Batch, TrajectoryStep

Event = Literal["ask", "worked off", "timeout", "ready", "act", "end"]


class SimulatedPods:
    """Simulation of one batch. All trajectories begin at 0."""

    def __init__(self, name: str, batch: Batch, cluster: Cluster, rules: PodRules) -> None:
        self._batch, self._rules = batch, rules
        self._plane = ControlPlane(rules, cluster, len(batch))
        self._nodes = [SharedCores(cluster.cores) for _ in range(cluster.nodes)]
        self._changes = [0] * cluster.nodes
        """By node: number of changes. A predicted end is valid only if no change followed it."""
        self._node_of = [0] * len(batch)
        self._step = [0] * len(batch)
        self._began_s = [0.0] * len(batch)
        """By trajectory: its action."""
        self._events: list[tuple[float, int, Event, int, int]] = []
        self._serials = count()
        self._run = SystemRun.of(name, cluster.all_cores, batch)

    def run(self) -> SystemRun:
        """Run until the last trajectory has its reward."""
        for number in range(len(self._batch)):
            self._push(0.0, "ask", number)
        while self._events:
            now, _, event, number, detail = heapq.heappop(self._events)
            match event:
                case "ask":
                    self._ask(now, number)
                case "worked off":
                    self._plane.work_off()
                    if self._plane.asked:
                        self._push(now + 1.0 / self._rules.creations_per_s, "worked off")
                    self._place(now)
                case "timeout":
                    retry_s = self._plane.give_up(number, detail)
                    if retry_s is not None:
                        self._push(now + retry_s, "ask", number)
                case "ready":
                    self._run.spent_s[number, ENVIRONMENT, QUEUEING] = now
                    self._think(now, number)
                case "act":
                    self._act(now, number)
                case "end":
                    self._end(now, number, detail)
        self._run.core_s = sum(node.used_core_s for node in self._nodes)
        self._run.retries = self._plane.retries
        return self._run

    def _push(self, at_s: float, event: Event, number: int = 0, detail: int = 0) -> None:
        heapq.heappush(self._events, (at_s, next(self._serials), event, number, detail))

    def _ask(self, now: float, trajectory: int) -> None:
        self._push(now + self._rules.timeout_s, "timeout", trajectory, self._plane.ask(trajectory))
        if self._plane.asked == 1:
            self._push(now + 1.0 / self._rules.creations_per_s, "worked off")

    def _place(self, now: float) -> None:
        while (placed := self._plane.place()) is not None:
            trajectory, self._node_of[trajectory] = placed
            self._push(now + self._rules.start_s, "ready", trajectory)

    def _think(self, now: float, trajectory: int) -> None:
        """Start the next step, or end the trajectory."""
        steps = self._batch[trajectory].steps
        if self._step[trajectory] < len(steps):
            self._push(now + steps[self._step[trajectory]].think_s, "act", trajectory)
        else:
            self._run.done_s[trajectory] = now
            self._plane.gone(self._node_of[trajectory])
            self._place(now)

    def _act(self, now: float, trajectory: int) -> None:
        step, node = self._batch[trajectory].steps[self._step[trajectory]], self._node_of[trajectory]
        width = self._width(step)
        if step.is_elastic:
            self._run.widths.append(width)
        self._began_s[trajectory] = now
        self._nodes[node].join(now, trajectory, min(width, self._rules.limit), step.seconds(width) * width)
        self._predict_end(node)

    def _width(self, step: TrajectoryStep) -> int:
        return max(step.least, min(step.most, self._rules.width)) if step.is_elastic else step.least

    def _predict_end(self, node: int) -> None:
        self._changes[node] += 1
        end_s = self._nodes[node].next_end_s()
        if end_s is not None:
            self._push(end_s, "end", node, self._changes[node])

    def _end(self, now: float, node: int, change: int) -> None:
        if change != self._changes[node]:
            return
        trajectory = self._nodes[node].leave(now)
        step = self._batch[trajectory].steps[self._step[trajectory]]
        phase = REWARD if step.is_elastic else ENVIRONMENT
        self._run.spent_s[trajectory, phase, EXECUTION] += now - self._began_s[trajectory]
        self._step[trajectory] += 1
        self._predict_end(node)
        self._think(now, trajectory)
