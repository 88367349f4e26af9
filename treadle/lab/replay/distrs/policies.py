"""Policies of the evaluation (DistRS §6.1), the paper's and ours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shared.policy.scaling.config import PAPER, PlannerConfig
from shared.policy.scaling.list_scheduling import Counts
from shared.policy.scaling.search import ExpectedBatch, search
from shared.policy.scaling.simulation import schedule
from shared.policy.scaling.simulation_input import SimulationInput
from shared.policy.scaling.workload import BatchRecord, Stage, repeating
from treadle.lab.replay.distrs.planner_policy import PlannerPolicy
from treadle.lab.replay.distrs.policy import Decision, Event, OpenBatchView, Policy
from treadle.lab.replay.distrs.trace import RewardTrace

_ENDLESS = 2**40


@dataclass
class ZeroQueue:
    """ZQ-Dedicated (§6.1): for each task alone, the workers with which nothing of its last batch would have queued.

    At least one worker of each stage, because the last batch may not have reached the stage. Batches of a task that are
    open together (open loop) may have their peaks at once, so their workers are added.
    """

    stages: tuple[Stage, ...]
    name: str = "zq-dedicated"
    dedicated: bool = True
    by_arrival: bool = False
    knows_all: bool = False
    _widths: dict[int, tuple[BatchRecord, list[int]]] = field(default_factory=dict)
    """By task: its last batch, and the most workers of each stage that it used at once."""

    def decide(self, now: float, event: Event, open_batches: Sequence[OpenBatchView], busy: Counts) -> Decision:  # noqa: ARG002
        targets = dict.fromkeys(range(len(busy)), 0)
        for view in open_batches:
            if view.seen.first_arrival_s is not None:
                for number, width in enumerate(self._width(view)):
                    targets[view.task * len(self.stages) + number] += width
        return Decision(targets)

    def _width(self, view: OpenBatchView) -> list[int]:
        last, width = self._widths.get(view.task, (None, []))
        if last is not view.past[-1]:
            inputs = SimulationInput([repeating("last", self.stages, view.past[-1], 0.0)], 0.0)
            used = dict(zip(inputs.pools, schedule(inputs.complete, [_ENDLESS] * len(inputs.pools)).used, strict=True))
            width = [max(1, used[stage.drawn_from]) for stage in self.stages]
            self._widths[view.task] = (view.past[-1], width)
        return width


@dataclass
class Autoscaler:
    """Utilisation-driven, by the rule of Kubernetes' horizontal pod autoscaler with its defaults.

    Every 15 s: desired = ceil(held * utilisation / 0.8), unless within a tenth; at most doubled, or 4 more; down to the
    largest of the last five minutes; one at least.
    """

    stages: tuple[Stage, ...]
    name: str = "autoscaler"
    dedicated: bool = False
    by_arrival: bool = True
    knows_all: bool = False
    goal: float = 0.8
    every_s: float = 15.0
    window_s: float = 300.0
    _held: list[int] = field(default_factory=list)
    _proposals: list[tuple[float, list[int]]] = field(default_factory=list)
    _next_s: float = -math.inf

    def decide(self, now: float, event: Event, open_batches: Sequence[OpenBatchView], busy: Counts) -> Decision:  # noqa: ARG002
        if not self._held:
            self._held = [1] * len(busy)
        if now < self._next_s:
            return Decision({}, self._next_s)
        self._next_s = now + self.every_s
        proposals = []
        for held, used in zip(self._held, busy, strict=True):
            ratio = min(int(used), held) / held / self.goal
            proposal = held if abs(ratio - 1) <= 0.1 else math.ceil(held * ratio)
            proposals.append(max(1, min(proposal, max(2 * held, held + 4))))
        self._proposals = [one for one in self._proposals if now - one[0] < self.window_s] + [(now, proposals)]
        self._held = [
            max(proposal, min(held, max(past[pool] for _, past in self._proposals)))
            for pool, (proposal, held) in enumerate(zip(proposals, self._held, strict=True))
        ]
        return Decision(dict(enumerate(self._held)), self._next_s)


@dataclass
class Ideal:
    """Algorithm 1 at batch boundaries, over the actual remaining work of open batches."""

    stages: tuple[Stage, ...]
    max_extra_delay_s: float
    name: str = "ideal"
    dedicated: bool = False
    by_arrival: bool = False
    knows_all: bool = True

    def decide(self, now: float, event: Event, open_batches: Sequence[OpenBatchView], busy: Counts) -> Decision:  # noqa: ARG002
        if event == "opened":
            return Decision({})
        active = [one for one in open_batches if one.seen.first_arrival_s is not None]
        ceilings = {stage.drawn_from: sum(one.seen.size for one in active) for stage in self.stages}
        plan = search([self._truth(one) for one in active], ceilings, strictness=0.0, trade=False)
        return Decision({number: plan.units.get(stage.drawn_from, 0) for number, stage in enumerate(self.stages)})

    def _truth(self, view: OpenBatchView) -> ExpectedBatch:
        assert view.truth is not None, "only a policy with `knows_all` has the truth"
        completion = max(view.truth.completion_s, 0.0)
        name = f"{view.task}:{view.index}"
        return ExpectedBatch(name, self.stages, view.truth, self.max_extra_delay_s, completion)


HISTORY = replace(PAPER, strictness=0.0)
"""The paper's history-based variant (§6.3): no timeout-aware rule."""
OURS = PlannerConfig(explains=False)


def lineup(trace: RewardTrace, seed: int) -> list[Policy]:
    """Return the policies of the evaluation, each with its own random draws."""
    return [
        ZeroQueue(trace.stages),
        PlannerPolicy("history", trace, HISTORY, seed),
        Autoscaler(trace.stages),
        PlannerPolicy("distrs", trace, PAPER, seed),
        PlannerPolicy("treadle", trace, OURS, seed),
        Ideal(trace.stages, trace.max_extra_delay_s),
    ]
