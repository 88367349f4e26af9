"""Learning of the planner: from its tasks' batches, and from reports of trainers."""

from __future__ import annotations

from shared.policy.scaling.stimuli import (
    ProgressReported,
)
from tests.shared.policy.scaling.planning import NOW, POOL, PlannerDriver, observed, opened, past, target


def test_one_strange_batch_does_not_move_the_arrivals() -> None:
    usual = past(arrivals=(0.0, 10.0, 20.0, 30.0))
    strange = past(arrivals=(0.0, 0.0, 0.0, 0.0))
    ready = PlannerDriver()
    assert target(ready.open(opened("b1", delay_s=0.0), usual, usual, strange)).units == 1
    assert target(PlannerDriver(window=1).open(opened("b1", delay_s=0.0), usual, usual, strange)).units == 4


def test_only_batches_as_large_as_the_last_are_learned_from_where_the_trainer_declares_no_size() -> None:
    ready = PlannerDriver()
    small, large = past((4.0,) * 3, (0.0,) * 3, size=None), past((4.0,) * 5, (0.0,) * 5, size=None)
    assert target(ready.open(opened("b1", size=None, delay_s=0.0), small, large)).units == 5
    ready.look(NOW, b1=observed(7, 0))
    assert target(ready.has(9)).units == 7


def test_a_batch_of_other_work_that_ends_takes_no_history_away() -> None:
    ready = PlannerDriver()
    ready.open(opened("b1", delay_s=5.0), past())
    ready.open(opened("b2", size=9))
    decision = target(ready.end("b2", past((4.0,) * 9, (0.0,) * 9, size=9)))
    assert (decision.units, decision.reason.why) == (2, "searched")


def test_a_rollout_half_as_fast_is_expected_to_spread_its_requests() -> None:
    """Its task's batches came 1 s apart at 100 tokens/s. At 25 they will come 4 s apart, so none meets another."""
    before = past(arrivals=(0.0, 1.0, 2.0, 3.0), gap_s=1.0, tokens_per_s=100.0)
    held = []
    for heeds in (True, False):
        ready = PlannerDriver(progress=heeds, review_s=1.0)
        assert ready.open(opened("b1", delay_s=0.0), before) == []
        assert target(ready.first("b1", NOW + 4)).units == 4
        assert ready.planner.handle(NOW + 4, ProgressReported("b1", NOW + 4, 3, tokens=100.0)) == []
        ready.look(NOW + 5, b1=observed(1, 0, running=[NOW + 4]))
        ready.wake()
        held.append((ready.planner.targets[POOL], ready.planner.tokens_per_s("b1")))
    assert held == [(1, 25.0), (4, None)]


def test_the_usual_pace_is_that_of_the_batches_whose_arrivals_are_expected() -> None:
    """Three fast batches, then two slow ones, which weigh more: a slow rollout is expected like those, no slower."""
    fast = past(arrivals=(0.0, 1.0, 2.0, 3.0), gap_s=1.0, tokens_per_s=100.0)
    slow = past(arrivals=(0.0, 4.0, 8.0, 12.0), gap_s=4.0, tokens_per_s=25.0)
    ready = PlannerDriver(review_s=1.0, window=5)
    ready.open(opened("b1", delay_s=0.0), fast, fast, fast, slow, slow)
    ready.first("b1", NOW + 4)
    ready.planner.handle(NOW + 4, ProgressReported("b1", NOW + 4, 3, tokens=100.0))
    ready.look(NOW + 5, b1=observed(1, 1))
    ready.wake()
    assert ready.planner.targets == {POOL: 1}
    (expected,) = ready.planner.expectations(NOW + 5)
    assert expected.requests.ready_s.tolist() == [3.0, 7.0, 11.0]


def test_samples_that_will_never_come_are_not_waited_for() -> None:
    ready = PlannerDriver()
    ready.open(opened("b1", delay_s=0.0), past())
    ready.planner.handle(NOW, ProgressReported("b1", NOW, 1, tokens=None))
    ready.look(NOW + 10, b1=observed(1, 0, running=[NOW + 10]))
    assert target(ready.wake()).units == 2


def test_a_report_on_an_unknown_batch_is_ignored() -> None:
    assert PlannerDriver().planner.handle(NOW, ProgressReported("never heard of", NOW, 1, tokens=None)) == []
