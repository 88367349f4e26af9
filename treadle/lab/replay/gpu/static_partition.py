"""The static baseline (§6.1): each service owns GPUs, with replicas behind a least-loaded queue.

A replica runs as many calls at once as its service may, first come first served. It never waits for weights.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from treadle.lab.replay.gpu.measures import GpuRun
from treadle.lab.replay.gpu.rollout import Done
from treadle.lab.replay.gpu.trace import GpuCall, ModelService
from treadle.lab.replay.search.virtual_time import VirtualTime


@dataclass
class _Replica:
    running: int = 0
    waiting: deque[tuple[GpuCall, Done]] = field(default_factory=deque)

    @property
    def load(self) -> int:
        return self.running + len(self.waiting)


class StaticPartition:
    """Services with fixed replicas."""

    def __init__(
        self, time: VirtualTime, services: Mapping[str, ModelService], replicas: int, degree: int, action_s: float,
        run: GpuRun,
    ) -> None:  # fmt: skip
        self._time, self._services, self._degree, self._action_s, self._run = time, services, degree, action_s, run
        self._replicas = {name: [_Replica() for _ in range(replicas)] for name in services}

    def call(self, call: GpuCall, done: Done) -> None:
        """Queue a call at the least-loaded replica of its service; the first of equal ones."""
        replica = min(self._replicas[call.service], key=lambda one: one.load)
        replica.waiting.append((call, done))
        self._serve(replica)

    def _serve(self, replica: _Replica) -> None:
        while replica.waiting and replica.running < self._services[replica.waiting[0][0].service].concurrency:
            call, done = replica.waiting.popleft()
            replica.running += 1
            execution_s = self._services[call.service].seconds(call.single_s, self._degree)
            self._run.add(self._time.now - call.due_s, execution_s, self._action_s, self._degree)
            self._time.after(execution_s + self._action_s, partial(self._end, replica, done))

    def _end(self, replica: _Replica, done: Done) -> None:
        replica.running -= 1
        done()
        self._serve(replica)
