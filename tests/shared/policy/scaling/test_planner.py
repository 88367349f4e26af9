"""Decisions of the planner: stimulus in, commands out."""

from __future__ import annotations

from dataclasses import replace

from shared.policy.scaling.stimuli import (
    BatchAdded,
    ExpectCompletion,
    TargetsRestored,
)
from tests.shared.policy.scaling.planning import NOW, POOL, RUN, PlannerDriver, observed, opened, past, target


def test_a_pool_without_an_open_batch_falls_to_its_floor() -> None:
    decision = target(PlannerDriver(cores=None).has(8))
    assert (decision.pool, decision.previous, decision.units) == (POOL, None, 0)
    assert decision.reason.why == "idle"
    assert target(PlannerDriver(cores=None, floors={POOL: 2}).has(8)).units == 2


def test_a_task_without_history_gets_as_many_units_as_its_requests_can_use() -> None:
    decision = target(PlannerDriver().open(opened("b1")))
    assert (decision.previous, decision.units, decision.reason.why) == (0, 4, "no-history")
    assert decision.reason.summary == (
        "no history of task code yet: its requests can use 4 cores at once, so that nothing queues"
    )
    decision = target(PlannerDriver(cores=3).open(opened("b1")))
    assert decision.units == 3
    assert decision.reason.summary == "no history of task code yet: the ceiling of 3 cores, so that nothing queues"


def test_without_history_and_without_a_declared_size_a_pool_is_made_whole() -> None:
    assert target(PlannerDriver().open(opened("b1", size=None))).units == 8


def test_without_history_units_are_released_as_requests_are_answered() -> None:
    ready = PlannerDriver()
    ready.open(opened("b1"))
    ready.first("b1", NOW)
    held = []
    for answered in (0, 1, 3):
        ready.look(ready.planner.wake_s(), b1=observed(4, answered, running=[NOW] * (4 - answered)))
        ready.wake()
        held.append(ready.planner.targets[POOL])
    assert held == [4, 3, 1]


def test_a_task_with_history_gets_the_fewest_units_that_keep_its_delay_with_a_reason() -> None:
    decision = target(PlannerDriver().open(opened("b7", delay_s=5.0), past()))
    assert (decision.units, decision.reason.why) == (2, "searched")
    assert decision.reason.summary == (
        "4 requests of batch b7: 2 cores suffice: extra delay 4.0 s <= D 5.0 s; with 1, stage run delays batch b7 by "
        "12.0 s > D 5.0 s"
    )
    assert decision.reason.document()["batches"] == (
        {"batch": "b7", "requests": 4, "extra_delay_s": 4.0, "max_extra_delay_s": 5.0},
    )


def test_the_timeout_aware_rule_is_named_where_it_decides() -> None:
    decision = target(PlannerDriver(strictness=1.0).open(opened("b7", delay_s=13.0), past()))
    assert decision.units == 2
    assert decision.reason.summary.endswith(  # the third would start at 8 s, and 8 + 10 > 4 + 13
        "with 1, a request that queues for stage run could end 1.0 s beyond T + D if it lasted its timeouts"
    )


def test_if_all_units_are_too_few_all_are_planned_with_that_reason() -> None:
    decision = target(PlannerDriver(cores=1).open(opened("b7"), past()))
    assert (decision.units, decision.reason.why) == (1, "ceiling")
    assert decision.reason.summary == (
        "4 requests of batch b7: even the ceiling of 1 core is not enough: "
        "stage run delays batch b7 by 12.0 s > D 2.0 s"
    )


def test_if_one_unit_suffices_zero_is_not_simulated() -> None:
    decision = target(PlannerDriver().open(opened("b7", delay_s=12.0), past()))
    assert decision.reason.summary == "4 requests of batch b7: 1 core suffices: extra delay 12.0 s <= D 12.0 s"


def test_a_ceiling_and_a_floor_set_by_hand_hold() -> None:
    assert target(PlannerDriver(ceilings={POOL: 3}).open(opened("b1"))).units == 3
    floored = target(PlannerDriver(floors={POOL: 5}).open(opened("b1", delay_s=5.0), past()))
    assert floored.units == 5
    assert floored.reason.summary.endswith("; floor 5")


def test_after_the_last_batch_the_units_are_released() -> None:
    ready = PlannerDriver()
    ready.open(opened("b1"))
    decision = target(ready.end("b1", now=NOW + 60))
    assert (decision.previous, decision.units, decision.reason.event) == (4, 0, "batch b1 ended")


def test_open_batches_of_several_tasks_are_planned_together() -> None:
    ready = PlannerDriver()
    alone = target(ready.open(opened("b1", "code", delay_s=0.0), past()))
    both = target(ready.open(opened("b2", "proofs", delay_s=0.0), past(task="proofs")))
    assert (alone.units, both.units) == (4, 8)
    assert "8 requests of batches b1, b2" in both.reason.summary
    assert target(ready.end("b1", now=NOW + 9)).units == 4


def test_units_for_a_task_without_history_are_added_to_the_searched_ones() -> None:
    ready = PlannerDriver()
    ready.open(opened("b1", "code", delay_s=5.0), past())
    decision = target(ready.open(opened("b2", "new")))
    assert (decision.units, decision.reason.why) == (6, "no-history")
    assert decision.reason.summary == (
        "no history of task new yet: its requests can use 4 cores at once, so that nothing queues; "
        "2 more for batches of other tasks"
    )


def test_the_first_arrival_gives_the_dispatcher_the_expected_completion() -> None:
    ready = PlannerDriver()
    ready.open(opened("b1"), past((4.0, 1.0, 1.0, 9.0), (0.0, 1.0, 2.0, 3.0)))
    assert ready.first("b1", NOW + 30) == [ExpectCompletion("b1", NOW + 42)]


def test_without_history_no_expected_completion_is_published() -> None:
    ready = PlannerDriver()
    ready.open(opened("b1"))
    assert ready.first("b1", NOW + 30) == []
    assert ready.first("never heard of", NOW + 30) == []


def test_the_gap_from_hint_to_first_arrival_keeps_apart_what_will_not_meet() -> None:
    ready = PlannerDriver()
    ready.open(opened("b1", "code", delay_s=0.0), past())
    assert ready.open(opened("b2", "proofs", delay_s=0.0), past(task="proofs", gap_s=60.0)) == []
    assert ready.planner.targets == {POOL: 4}


def test_a_first_arrival_corrects_how_open_batches_overlap() -> None:
    ready = PlannerDriver()
    ready.open(opened("b1", "code", delay_s=0.0), past())
    ready.open(opened("b2", "proofs", delay_s=0.0), past(task="proofs", gap_s=60.0))
    ready.first("b1", NOW + 1)
    assert target(ready.first("b2", NOW + 1)).units == 8


def test_another_batch_size_or_workflow_is_no_history_and_another_price_is() -> None:
    fresh = opened("b1", delay_s=5.0)
    for other, why in (
        (replace(fresh, size=5), "no-history"),
        (replace(fresh, stages=(replace(RUN[0], timeout_s=11.0),)), "no-history"),
        (replace(fresh, stages=(replace(RUN[0], worker_cost=3.0),)), "searched"),
    ):
        assert target(PlannerDriver().open(other, past())).reason.why == why


def test_an_open_batch_profits_from_one_of_its_task_that_ends_meanwhile() -> None:
    ready = PlannerDriver()
    ready.open(opened("b1"))
    ready.open(opened("b2", delay_s=5.0))
    decision = target(ready.end("b1", past(), now=NOW + 20))
    assert (decision.units, decision.reason.why) == (2, "searched")


def test_nodes_that_come_and_go_move_the_ceiling() -> None:
    ready = PlannerDriver(cores=2)
    ready.open(opened("b1", size=9))
    assert target(ready.has(6)).units == 6
    assert ready.has(6) == []
    assert target(ready.has(0)).units == 0


def test_a_pool_without_nodes_gets_no_target() -> None:
    ready = PlannerDriver(cores=None)
    assert ready.open(opened("b1")) == []
    assert target(ready.has(4)).units == 4


def test_restored_targets_are_revised_once_capacity_is_known() -> None:
    ready = PlannerDriver(cores=None)
    assert ready.planner.handle(NOW, TargetsRestored({POOL: 3})) == []
    assert ready.planner.handle(NOW, BatchAdded(opened("b1", delay_s=5.0), (past(),), restored=True)) == []
    decision = target(ready.has(8))
    assert (decision.previous, decision.units) == (3, 2)


def test_the_end_of_an_unknown_batch_changes_nothing() -> None:
    assert PlannerDriver().end("never heard of", past()) == []
