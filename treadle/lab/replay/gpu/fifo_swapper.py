"""A FIFO swapper, like ServerlessLLM (§6.3): a pool of equal groups of GPUs, each with one engine.

The first waiting call gets a group: one that holds its service and has room, else the free one that was used least
recently, where its service is loaded. Nothing is batched, and nobody passes the head. An engine stays until its group
is needed (keep-alive, LRU).
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
class _Group:
    number: int
    service: str = ""
    ready_s: float = 0.0
    """End of its load."""
    running: int = 0
    used_s: float = field(default=-1.0)


@dataclass
class FifoSwapper:
    """Groups of `degree` GPUs."""

    time: VirtualTime
    services: Mapping[str, ModelService]
    groups: int
    degree: int
    load_s: Mapping[str, float]
    """Service -> seconds of a load."""
    action_s: float
    run: GpuRun
    _groups: list[_Group] = field(init=False)
    _waiting: deque[tuple[GpuCall, Done]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._groups = [_Group(number) for number in range(self.groups)]

    def call(self, call: GpuCall, done: Done) -> None:
        """Queue a call."""
        self._waiting.append((call, done))
        self._serve()

    def _serve(self) -> None:
        while self._waiting and (group := self._group(self._waiting[0][0].service)) is not None:
            self._start(group, *self._waiting.popleft())

    def _group(self, service: str) -> _Group | None:
        room = [
            one for one in self._groups if one.service == service and one.running < self.services[service].concurrency
        ]
        if room:
            return max(room, key=lambda one: (one.running, -one.number))
        return min(
            (one for one in self._groups if not one.running), key=lambda one: (one.used_s, one.number), default=None
        )

    def _start(self, group: _Group, call: GpuCall, done: Done) -> None:
        now, run = self.time.now, self.run
        if group.service != call.service:
            group.service, group.ready_s = call.service, now + self.load_s[call.service]
            run.restores += 1
        group.running += 1
        group.used_s = now
        execution_s = self.services[call.service].seconds(call.single_s, self.degree)
        overhead_s = max(0.0, group.ready_s - now) + self.action_s
        run.add(now - call.due_s, execution_s, overhead_s, self.degree)
        self.time.after(execution_s + overhead_s, partial(self._end, group, done))

    def _end(self, group: _Group, done: Done) -> None:
        group.running -= 1
        done()
        self._serve()
