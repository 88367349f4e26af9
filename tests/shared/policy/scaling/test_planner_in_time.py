"""Reviews of the planner, its look-ahead, and its use of snapshots of requests."""

from __future__ import annotations

import math
from dataclasses import replace

from shared.policy.scaling.stimuli import (
    BatchesObserved,
    ExpectCompletion,
    ProgressReported,
    TimerFired,
)
from tests.shared.policy.scaling.planning import NOW, POOL, PlannerDriver, observed, opened, past, target


def test_a_batch_asks_for_nothing_until_its_requests_are_about_to_come() -> None:
    """The shortest gap of late was 20 s, a core takes 3 s to start: 17 s after the hint."""
    ready = PlannerDriver(cold_start_s=3.0)
    assert ready.open(opened("b1", delay_s=0.0), past(gap_s=50.0), past(gap_s=20.0), past(gap_s=30.0)) == []
    assert ready.planner.wake_s() == NOW + 17.0
    decision = target(ready.wake())
    assert (decision.units, decision.reason.event) == (4, "review")


def test_a_first_request_that_comes_early_does_not_wait_for_the_hint() -> None:
    ready = PlannerDriver(cold_start_s=3.0)
    ready.open(opened("b1", delay_s=0.0), past(gap_s=50.0))
    commands = ready.first("b1", NOW + 1)
    assert commands[0] == ExpectCompletion("b1", NOW + 5)
    assert target(commands).units == 4


def test_held_is_what_the_next_look_ahead_needs() -> None:
    """Two come at once and last 4 s, six come together a minute later: two cores do until then."""
    record = past((4.0,) * 8, (0.0, 0.0, *(60.0,) * 6), size=8)
    ready = PlannerDriver(look_ahead_s=15.0, review_s=10.0)
    decision = target(ready.open(opened("b1", size=8, delay_s=0.0), record))
    assert decision.units == 2
    assert decision.reason.summary.startswith("8 requests of batch b1: 6 cores suffice: extra delay 0.0 s <= D 0.0 s")
    assert decision.reason.summary.endswith("; 2 of them soon")
    ready.first("b1", NOW)
    held = []
    for _ in range(6):
        at = ready.planner.wake_s()
        ready.look(at, b1=observed(2, 2))
        commands = ready.wake()
        held.append((round(at - NOW), target(commands).units if commands else None))
    assert held == [(10, 1), (20, None), (30, None), (40, None), (50, 6), (60, None)]


def test_units_needed_within_a_cold_start_are_held_too() -> None:
    record = past((4.0,) * 8, (0.0, 0.0, *(60.0,) * 6), size=8)
    ready = PlannerDriver(look_ahead_s=15.0, review_s=10.0, cold_start_s=50.0)
    assert target(ready.open(opened("b1", size=8, delay_s=0.0), record)).units == 6


def test_requests_that_come_earlier_than_was_expected_do_not_wait_for_the_next_review() -> None:
    record = past((4.0,) * 8, (0.0, 0.0, *(60.0,) * 6), size=8)
    ready = PlannerDriver(look_ahead_s=15.0, review_s=10.0)
    ready.open(opened("b1", size=8, delay_s=0.0), record)
    ready.first("b1", NOW)
    assert ready.planner.targets == {POOL: 2}
    assert ready.planner.next_observation_s(NOW) == NOW + 1.0
    ready.look(NOW + 0.9, b1=observed(5, 0, queuing=[NOW] * 3, running=[NOW] * 2))
    commands = ready.planner.handle(
        NOW + 2, BatchesObserved({"b1": observed(8, 0, queuing=[NOW + 1] * 6, running=[NOW] * 2)})
    )
    decision = target(commands)
    assert (decision.units, decision.reason.event) == (8, f"requests wait for {POOL}")
    assert ready.planner.next_observation_s(NOW + 2) == math.inf
    late = {"b1": observed(8, 0, queuing=[NOW + 1], running=[NOW] * 7)}
    assert ready.planner.handle(NOW + 4, BatchesObserved(late)) == [], (
        "all that was planned is held: they queue as planned"
    )


def test_a_request_that_the_plan_lets_wait_no_longer_does_not_wait_for_the_next_review() -> None:
    """T is 34 s, D 2 s, the timeout 10 s: no request may wait beyond 26 s. All that was planned is held."""
    ready = PlannerDriver(strictness=1.0, paced=False)
    ready.open(opened("b1"), past(arrivals=(0.0, 10.0, 20.0, 30.0)))
    ready.first("b1", NOW)
    ready.look(NOW + 20, b1=observed(3, 2, running=[NOW + 20]))
    ready.has(7, NOW + 20)
    assert ready.planner.targets == {POOL: 1}
    assert ready.planner.next_observation_s(NOW + 20) == NOW + 26.0
    waits = observed(4, 2, queuing=[NOW + 25], running=[NOW + 20])
    ready.look(NOW + 25.5, b1=waits)
    decision = target(ready.planner.handle(NOW + 26.5, BatchesObserved({"b1": waits})))
    assert (decision.units, decision.reason.event) == (2, f"requests wait for {POOL}")


def test_requests_that_waited_too_long_at_the_last_decision_are_no_surprise() -> None:
    """Nor are any where the pool holds all it can."""
    ready = PlannerDriver(strictness=1.0, paced=False)
    ready.open(opened("b1"), past(arrivals=(0.0, 10.0, 20.0, 30.0)))
    ready.first("b1", NOW)
    two, three = (observed(4, 4 - n, queuing=[NOW + 28] * (n - 1), running=[NOW + 24]) for n in (2, 3))
    assert target(ready.planner.handle(NOW + 28, BatchesObserved({"b1": two}))).units == 2
    ready.look(NOW + 29.5, b1=two)
    assert target(ready.planner.handle(NOW + 29.6, BatchesObserved({"b1": three}))).units == 3
    ready.has(3, NOW + 29.6)
    ready.look(NOW + 31, b1=observed(4, 0, queuing=[NOW + 28] * 3, running=[NOW + 24]))


def test_units_wanted_recently_are_kept() -> None:
    ready = PlannerDriver(stabilization_s=5.0)
    ready.open(opened("b1"))
    decision = target(ready.end("b1", now=NOW + 60))
    assert (decision.units, decision.reason.why) == (4, "idle")
    assert decision.reason.summary.endswith("; 4 stay held, needed recently")
    assert ready.planner.wake_s() == NOW + 65.0
    assert target(ready.wake()).units == 0
    assert ready.planner.wake_s() == math.inf


def test_units_are_released_only_after_a_cold_start() -> None:
    ready = PlannerDriver(stabilization_s=5.0, cold_start_s=40.0)
    ready.open(opened("b1"))
    ready.end("b1", now=NOW + 60)
    assert ready.planner.wake_s() == NOW + 100.0


def test_a_batch_with_history_is_reviewed_until_it_ends_and_not_early() -> None:
    ready = PlannerDriver()
    ready.open(opened("b1"), past())
    assert ready.planner.wake_s() == NOW + 10.0
    assert ready.planner.handle(NOW + 9.0, TimerFired()) == []
    ready.wake()
    assert ready.planner.wake_s() == NOW + 20.0
    ready.end("b1", now=NOW + 21)
    assert ready.planner.wake_s() == math.inf


def test_answered_requests_need_nothing_and_running_ones_have_their_units() -> None:
    """One of four waits, and one core is planned for it: running ones keep theirs, whatever the target."""
    for look_ahead_s in (15.0, math.inf):
        ready = PlannerDriver(look_ahead_s=look_ahead_s)
        ready.open(opened("b1", delay_s=3.0), past())
        ready.first("b1", NOW)
        ready.look(NOW + 1, b1=observed(4, 1, queuing=[NOW + 1], running=[NOW, NOW]))
        assert target(ready.has(7, NOW + 1)).units == 1


def test_requests_that_the_dispatcher_has_not_seen_yet_wait_for_the_first_stage() -> None:
    ready = PlannerDriver()
    ready.open(opened("b1", delay_s=0.0), past())
    ready.first("b1", NOW)
    ready.look(NOW, b1=observed(4, 3))
    assert target(ready.has(7)).units == 1
    ready.look(NOW, b1=observed(4, 0, running=[NOW]))
    assert target(ready.has(8)).units == 4


def test_nothing_more_is_expected_of_a_batch_that_was_sealed() -> None:
    ready = PlannerDriver()
    ready.open(opened("b1", delay_s=0.0), past())
    ready.first("b1", NOW)
    assert ready.planner.targets == {POOL: 4}
    ready.look(NOW, b1=replace(observed(1, 0, queuing=[NOW]), closed=True))
    decision = target(ready.has(6))
    assert (decision.units, decision.reason.batches[0].requests) == (1, 1)


def test_a_repeated_opening_removes_nothing() -> None:
    ready = PlannerDriver(review_s=1.0)
    before = past(arrivals=(0.0, 1.0, 2.0, 3.0), gap_s=1.0, tokens_per_s=100.0)
    ready.open(opened("b1", delay_s=0.0), before)
    ready.first("b1", NOW + 4)
    ready.planner.handle(NOW + 4, ProgressReported("b1", NOW + 4, 3, tokens=100.0))
    ready.open(opened("b1", delay_s=0.0), before, now=NOW + 4)
    assert ready.planner.tokens_per_s("b1") == 25.0
    ready.look(NOW + 5, b1=observed(1, 0, running=[NOW + 4]))
    ready.wake()
    assert ready.planner.targets == {POOL: 1}


def test_a_decision_during_a_batch_allows_no_delay_twice() -> None:
    """D is 5 s; both have waited for 4 s already. One after the other they would be 8 s late."""
    ready = PlannerDriver()
    ready.open(opened("b1", size=2, delay_s=5.0), past((4.0, 4.0), (0.0, 0.0), size=2))
    ready.first("b1", NOW)
    ready.planner.handle(NOW + 4, BatchesObserved({"b1": observed(2, 0, queuing=[NOW, NOW])}))
    assert target(ready.has(7, NOW + 4)).units == 2


def test_a_batch_that_is_late_already_does_not_hold_all_units() -> None:
    ready = PlannerDriver()
    ready.open(opened("b1", delay_s=1.0), past())
    ready.first("b1", NOW)
    decision = target(ready.planner.handle(NOW + 60, BatchesObserved({"b1": observed(4, 3, queuing=[NOW])})))
    assert (decision.units, decision.reason.why) == (1, "searched")
