"""Registered workers, and those of them that may get one call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shared.policy.routing.health import WorkerHealth
from shared.policy.routing.model import ModelCall, Worker, WorkerState
from shared.policy.routing.pins import Pins
from shared.policy.routing.placement import WorkerLoad
from shared.policy.routing.worker_queue import WorkerQueue


class WorkerActivity(NamedTuple):
    """What one worker does, for people."""

    worker: str
    state: WorkerState
    reason: str
    in_flight: int
    waiting: int
    trajectories: int
    kv_reserved: int


@dataclass(slots=True)
class Member:
    """A registered worker."""

    worker: Worker
    queue: WorkerQueue
    health: WorkerHealth
    state: WorkerState = "ready"
    """As last reported."""

    def activity(self, trajectories: int, now: float) -> WorkerActivity:
        """Return what it does. `trajectories`: pinned to it."""
        return WorkerActivity(
            self.worker.id,
            self.health.state(now),
            self.health.reason,
            len(self.queue.running),
            self.queue.waiting,
            trajectories,
            self.queue.reserved_tokens,
        )


class CandidateLoads(Mapping[str, WorkerLoad]):
    """Workers that may get one call. Nothing is computed before it is read."""

    def __init__(self, members: Mapping[str, Member], call: ModelCall, pins: Pins, now: float) -> None:
        self._members = members
        self._call = call
        self._avoid = call.avoid
        self._pins = pins
        self._now = now

    def with_avoided(self) -> CandidateLoads:
        """Return the same with the workers that have failed the call."""
        self._avoid = frozenset()
        return self

    def __getitem__(self, worker: str) -> WorkerLoad:
        one = self._members[worker]
        queue = one.queue
        return WorkerLoad(
            worker,
            len(queue.running) + queue.waiting,
            one.worker.most_calls,
            self._pins.counts.get(worker, 0),
            queue.reserved_tokens + queue.asked_tokens,
            one.worker.kv_tokens,
            one.health.doubtful(self._now),
        )

    def __contains__(self, worker: object) -> bool:
        one = self._members.get(worker) if isinstance(worker, str) else None
        if one is None or worker in self._avoid:
            return False
        return one.health.usable(self._now) and serves(one, self._call)

    def __iter__(self) -> Iterator[str]:
        return (worker for worker in self._members if worker in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return any(True for _ in self)


def serves(one: Member, call: ModelCall) -> bool:
    """Return whether a worker has the model of a call."""
    return not call.model or not one.worker.models or call.model in one.worker.models


def why_none(serving: Sequence[Member], now: float) -> str:
    """Return why no worker gets a call, for people."""
    states = [one.health.state(now) for one in serving]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return f"no worker is ready ({counts})"
