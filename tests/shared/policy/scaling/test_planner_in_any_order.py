"""The planner under events in any order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.policy.scaling.config import PlannerConfig
from shared.policy.scaling.planner import Planner
from shared.policy.scaling.stimuli import (
    BatchAdded,
    BatchesObserved,
    BatchRemoved,
    FirstRequestArrived,
    NodesChanged,
    ObservedBatch,
    ProgressReported,
    TimerFired,
)
from tests.shared.policy.scaling.planning import NOW, POOL, observed, opened, past


class AnyOrder(RuleBasedStateMachine):
    """In any order of events, targets are between floor and ceiling, and idle pools at the floor."""

    def __init__(self) -> None:
        super().__init__()
        self.planner = Planner(PlannerConfig(), floors={POOL: 1}, ceilings={POOL: 6})
        self.now = NOW
        self.batches: list[str] = []
        self.serial = 0

    @rule(task=st.sampled_from(["code", "proofs"]), known=st.booleans(), delay_s=st.sampled_from([0.0, 3.0, 60.0]))
    def open(self, task: str, known: bool, delay_s: float) -> None:
        self.serial += 1
        self.batches.append(f"b{self.serial}")
        batch = opened(self.batches[-1], task, delay_s=delay_s, at=self.now)
        self.planner.handle(self.now, BatchAdded(batch, (past(task=task),) if known else ()))

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        self.planner.handle(self.now, FirstRequestArrived(data.draw(st.sampled_from(self.batches)), self.now))

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), arrived=st.integers(0, 6), generating=st.integers(0, 6), tokens=st.none() | st.floats(0, 1e6))
    def look(self, data: st.DataObject, arrived: int, generating: int, tokens: float | None) -> None:
        batch = data.draw(st.sampled_from(self.batches))
        here = data.draw(st.lists(st.sampled_from(["waits", "runs"]), max_size=arrived))
        came = [self.now - data.draw(st.integers(0, 50)) for _ in here]
        waits = [at for at, where in zip(came, here, strict=True) if where == "waits"]
        runs = [at for at, where in zip(came, here, strict=True) if where == "runs"]
        self.planner.handle(
            self.now,
            BatchesObserved({batch: observed(arrived, arrived - len(here), waits, runs), "gone": ObservedBatch(1, 1)}),
        )
        self.planner.handle(self.now, ProgressReported(batch, self.now, generating, tokens))

    @rule()
    def wake(self) -> None:
        self.now = max(self.now, min(self.planner.wake_s(), self.now + 100))
        self.planner.handle(self.now, TimerFired())
        assert self.planner.wake_s() > self.now, "it would be woken for ever"

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), learned=st.booleans())
    def end(self, data: st.DataObject, learned: bool) -> None:
        batch = data.draw(st.sampled_from(self.batches))
        self.batches.remove(batch)
        self.planner.handle(self.now, BatchRemoved(batch, (past(),) if learned else ()))

    @rule(cores=st.integers(0, 9), cold_start_s=st.sampled_from([0.0, 2.0, 30.0]))
    def change_nodes(self, cores: int, cold_start_s: float) -> None:
        self.planner.handle(self.now, NodesChanged({POOL: cores}, {POOL: cold_start_s}))

    @rule(seconds=st.floats(0, 100))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def in_bounds(self) -> None:
        self.planner.check()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
