"""The planner (`shared.policy.scaling`) as a policy of the simulated cluster: the same object as in the service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shared.policy.scaling.config import PlannerConfig
from shared.policy.scaling.list_scheduling import Counts
from shared.policy.scaling.planner import Planner
from shared.policy.scaling.stimuli import (
    BatchAdded,
    BatchesObserved,
    BatchRemoved,
    Command,
    ExpectCompletion,
    FirstRequestArrived,
    NodesChanged,
    ObservedBatch,
    ProgressReported,
    PublishTarget,
    TimerFired,
)
from shared.policy.scaling.workload import OpenedBatch, PastBatch, Stage
from treadle.lab.replay.distrs.policy import Decision, Event, OpenBatchView
from treadle.lab.replay.distrs.trace import RewardTrace

_PLENTY = 2**31
"""Units of every pool. The ceiling of the planner is the number of requests that can run at once."""


@dataclass
class PlannerPolicy:
    """A planner as a policy. Every stage has a pool of its own, without bound.

    Args:
        name: of the policy.
        trace: with the workflow, D, the cold starts, and the pace of the first batches.
        config: of the planner.
        seed: of its random draws.
    """

    name: str
    trace: RewardTrace
    config: PlannerConfig
    seed: int
    knows_all: bool = False
    dedicated: bool = False
    by_arrival: bool = False
    _planner: Planner = field(init=False)
    _numbers: dict[str, int] = field(init=False)
    """Pool to its number."""
    _ceilings: dict[str, int] = field(default_factory=dict)
    _open: dict[str, OpenBatchView] = field(default_factory=dict)
    _tokens_per_s: dict[tuple[int, int], float | None] = field(default_factory=dict)
    """By task and batch, as last reported."""

    def __post_init__(self) -> None:
        self._planner = Planner(self.config, ceilings=self._ceilings, seed=self.seed)
        pools = [stage.drawn_from for stage in self._stages]
        self._numbers = {pool: number for number, pool in enumerate(pools)}
        cold_starts_s = dict(zip(pools, self.trace.cold_starts_s, strict=True))
        self._planner.handle(0.0, NodesChanged(dict.fromkeys(pools, _PLENTY), cold_starts_s))

    @property
    def _stages(self) -> tuple[Stage, ...]:
        return self.trace.stages

    def decide(self, now: float, event: Event, open_batches: Sequence[OpenBatchView], busy: Counts) -> Decision:  # noqa: ARG002
        current = {f"{one.task}:{one.index}": one for one in open_batches}
        room = sum(view.seen.size for view in open_batches)
        self._ceilings.update({pool: max(room, self._planner.targets.get(pool, 0)) for pool in self._numbers})
        looked = BatchesObserved({name: _sight(one) for name, one in current.items()})
        commands: list[Command] = self._planner.handle(now, looked)
        for name, view in self._open.items():
            if name not in current:
                self._tokens_per_s[view.task, view.index] = self._planner.tokens_per_s(name)
                commands += self._planner.handle(now, BatchRemoved(name))
        for name, view in current.items():
            before = self._open.get(name)
            if before is None:
                commands += self._planner.handle(now, BatchAdded(self._batch_added(name, view), self._past(view)))
            if view.report is not None:
                commands += self._planner.handle(now, ProgressReported(name, now, *view.report))
            first = view.seen.first_arrival_s
            if first is not None and (before is None or before.seen.first_arrival_s is None):
                commands += self._planner.handle(now, FirstRequestArrived(name, first))
        if event == "timer":
            commands += self._planner.handle(now, TimerFired())
        self._open = current
        targets = {self._numbers[one.pool]: one.units for one in commands if isinstance(one, PublishTarget)}
        due_s = {
            (current[one.batch].task, current[one.batch].index): one.at
            for one in commands
            if isinstance(one, ExpectCompletion) and one.batch in current
        }
        return Decision(targets, min(self._planner.wake_s(), self._planner.next_observation_s(now)), due_s)

    def _batch_added(self, name: str, view: OpenBatchView) -> OpenedBatch:
        seen, most_late_s = view.seen, self.trace.max_extra_delay_s
        return OpenedBatch(name, "", str(view.task), seen.size, self._stages, most_late_s, 1.0, seen.opened_s)

    def _past(self, view: OpenBatchView) -> tuple[PastBatch, ...]:
        first = max(0, len(view.past) - self.config.window)
        if (view.task, 0) not in self._tokens_per_s:  # it was complete before the first decision
            self._tokens_per_s[view.task, 0] = self.trace.tasks[view.task].batches[0].tokens_per_s
        opened = replace(self._batch_added("before", view), opened_at=0.0)
        return tuple(
            PastBatch(
                replace(opened, size=view.past[index].size, first_arrival_at=view.gaps_s[index]),
                view.past[index],
                self._tokens_per_s.get((view.task, index)),
            )
            for index in range(first, len(view.past))
        )


def _sight(view: OpenBatchView) -> ObservedBatch:
    seen = view.seen
    here = sum(map(len, [*seen.queuing, *seen.running]))
    queuing = tuple(table.tobytes() for table in seen.queuing)
    running = tuple(table.tobytes() for table in seen.running)
    return ObservedBatch(seen.arrived, seen.arrived - here, queuing, running, unqueued_end_at=seen.unqueued_end_s)
