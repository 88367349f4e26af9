"""What the planner decides: stimulus in, commands out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.policy.planner import Planner
from shared.policy.stimuli import (
    Command,
    Ended,
    ExpectCompletion,
    FirstCame,
    Looked,
    NodesChanged,
    Opened,
    Progressed,
    PublishTarget,
    Restored,
    Sight,
    Woken,
)
from shared.policy.ways import Ways
from shared.policy.workload import BatchRecord, OpenedBatch, PastBatch, Stage

POOL = "cores@default"
RUN = (Stage("run", 1.0, 10.0, POOL),)
NOW = 1_763_700_000.0


def opened(
    batch: str, task: str = "code", *, size: int | None = 4, delay_s: float = 2.0, at: float = NOW
) -> OpenedBatch:
    return OpenedBatch(batch, "ada", task, size, RUN, delay_s, 64.0, at)


def past(
    executions: Sequence[float] = (4.0,) * 4,
    arrivals: Sequence[float] = (0.0,) * 4,
    *,
    task: str = "code",
    gap_s: float = 0.0,
    size: int | None = 4,
    tokens_per_s: float | None = None,
) -> PastBatch:
    before = replace(opened("before", task, size=size, at=NOW - 100), first_arrival_at=NOW - 100 + gap_s)
    return PastBatch(before, BatchRecord(tuple(arrivals), (tuple(executions),)), tokens_per_s)


class Told:
    """A planner, told things in short."""

    def __init__(
        self,
        *,
        cores: int | None = 8,
        floors: dict[str, int] | None = None,
        ceilings: dict[str, int] | None = None,
        cold_start_s: float = 0.0,
        **ways: Any,
    ) -> None:
        ways = {"strictness": 0.0, "hold_s": 0.0, "ahead_s": math.inf, **ways}
        self.planner = Planner(Ways(**ways), floors or {}, ceilings or {})
        self.cold_start_s = cold_start_s
        if cores is not None:
            self.has(cores)

    def has(self, cores: int, now: float = NOW) -> list[Command]:
        return self.planner.handle(now, NodesChanged({POOL: cores}, {POOL: self.cold_start_s}))

    def open(self, batch: OpenedBatch, *before: PastBatch, now: float = NOW) -> list[Command]:
        return self.planner.handle(now, Opened(batch, before))

    def first(self, batch: str, at: float = NOW) -> list[Command]:
        return self.planner.handle(at, FirstCame(batch, at))

    def end(self, batch: str, *before: PastBatch, now: float = NOW) -> list[Command]:
        return self.planner.handle(now, Ended(batch, before))

    def look(self, now: float, **sights: Sight) -> None:
        assert self.planner.handle(now, Looked(sights)) == []

    def wake(self) -> list[Command]:
        return self.planner.handle(self.planner.wake_s(), Woken())


def target(commands: Sequence[Command]) -> PublishTarget:
    (only,) = [command for command in commands if isinstance(command, PublishTarget)]
    return only


def test_a_pool_without_an_open_batch_falls_to_its_floor() -> None:
    said = target(Told(cores=None).has(8))
    assert (said.pool, said.previous, said.units) == (POOL, None, 0)
    assert said.reason.why == "idle"
    assert target(Told(cores=None, floors={POOL: 2}).has(8)).units == 2


def test_a_task_without_history_gets_every_unit() -> None:
    said = target(Told().open(opened("b1")))
    assert (said.previous, said.units, said.reason.why) == (0, 8, "no-history")
    assert said.reason.summary == "no history of task code yet: the ceiling of 8 cores, so that nothing queues"


def test_a_task_with_history_gets_the_fewest_units_that_keep_its_delay_and_the_reason_says_why() -> None:
    said = target(Told().open(opened("b7", delay_s=5.0), past()))
    assert (said.units, said.reason.why) == (2, "searched")
    assert said.reason.summary == (
        "4 requests of batch b7: 2 cores suffice: extra delay 4.0 s <= D 5.0 s; with 1, extra delay 12.0 s > D 5.0 s"
    )
    assert said.reason.document()["batches"] == (
        {"batch": "b7", "requests": 4, "extra_delay_s": 4.0, "max_extra_delay_s": 5.0},
    )


def test_the_timeout_aware_rule_is_named_where_it_decides() -> None:
    said = target(Told(strictness=1.0).open(opened("b7", delay_s=13.0), past()))
    assert said.units == 2
    assert said.reason.summary.endswith(  # the third would start at 8 s, and 8 + 10 > 4 + 13
        "with 1, a request that queues for stage run could end 1.0 s beyond T + D if it lasted its timeouts"
    )


def test_where_all_there_is_does_not_do_it_is_all_and_the_reason_says_so() -> None:
    said = target(Told(cores=1).open(opened("b7"), past()))
    assert (said.units, said.reason.why) == (1, "ceiling")
    assert said.reason.summary == (
        "4 requests of batch b7: even the ceiling of 1 core is not enough: extra delay 12.0 s > D 2.0 s"
    )


def test_where_one_unit_does_nobody_asks_what_none_would_do() -> None:
    said = target(Told().open(opened("b7", delay_s=12.0), past()))
    assert said.reason.summary == "4 requests of batch b7: 1 core suffices: extra delay 12.0 s <= D 12.0 s"


def test_a_ceiling_and_a_floor_set_by_hand_hold() -> None:
    assert target(Told(ceilings={POOL: 3}).open(opened("b1"))).units == 3
    floored = target(Told(floors={POOL: 5}).open(opened("b1", delay_s=5.0), past()))
    assert floored.units == 5
    assert floored.reason.summary.endswith("; floor 5")


def test_when_the_last_batch_has_ended_the_units_are_given_back() -> None:
    ready = Told()
    ready.open(opened("b1"))
    said = target(ready.end("b1", now=NOW + 60))
    assert (said.previous, said.units, said.reason.event) == (8, 0, "batch b1 ended")


def test_open_batches_of_several_tasks_are_planned_together() -> None:
    ready = Told()
    alone = target(ready.open(opened("b1", "code", delay_s=0.0), past()))
    both = target(ready.open(opened("b2", "proofs", delay_s=0.0), past(task="proofs")))
    assert (alone.units, both.units) == (4, 8)
    assert "8 requests of batches b1, b2" in both.reason.summary
    assert target(ready.end("b1", now=NOW + 9)).units == 4


def test_one_task_without_history_makes_a_shared_pool_whole() -> None:
    ready = Told()
    ready.open(opened("b1", "code", delay_s=5.0), past())
    said = target(ready.open(opened("b2", "new")))
    assert (said.units, said.reason.why) == (8, "no-history")
    assert "task new" in said.reason.summary


def test_the_first_arrival_tells_the_dispatcher_when_the_batch_should_be_complete() -> None:
    ready = Told()
    ready.open(opened("b1"), past((4.0, 1.0, 1.0, 9.0), (0.0, 1.0, 2.0, 3.0)))
    assert ready.first("b1", NOW + 30) == [ExpectCompletion("b1", NOW + 42)]


def test_without_history_nobody_tells_the_dispatcher_anything() -> None:
    ready = Told()
    ready.open(opened("b1"))
    assert ready.first("b1", NOW + 30) == []
    assert ready.first("never heard of", NOW + 30) == []


def test_the_gap_from_hint_to_first_arrival_keeps_apart_what_will_not_meet() -> None:
    ready = Told()
    ready.open(opened("b1", "code", delay_s=0.0), past())
    assert ready.open(opened("b2", "proofs", delay_s=0.0), past(task="proofs", gap_s=60.0)) == []
    assert ready.planner.targets == {POOL: 4}


def test_a_first_arrival_corrects_how_open_batches_overlap() -> None:
    ready = Told()
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
        assert target(Told().open(other, past())).reason.why == why


def test_an_open_batch_profits_from_one_of_its_task_that_ends_meanwhile() -> None:
    ready = Told()
    ready.open(opened("b1"))
    ready.open(opened("b2", delay_s=5.0))
    said = target(ready.end("b1", past(), now=NOW + 20))
    assert (said.units, said.reason.why) == (2, "searched")


def test_nodes_that_come_and_go_move_the_ceiling() -> None:
    ready = Told(cores=2)
    ready.open(opened("b1"))
    assert target(ready.has(6)).units == 6
    assert ready.has(6) == []
    assert target(ready.has(0)).units == 0


def test_a_pool_nobody_offers_gets_no_target() -> None:
    ready = Told(cores=None)
    assert ready.open(opened("b1")) == []
    assert target(ready.has(4)).units == 4


def test_what_was_decided_by_a_former_process_is_said_again_once() -> None:
    ready = Told(cores=None)
    assert ready.planner.handle(NOW, Restored({POOL: 3})) == []
    assert ready.planner.handle(NOW, Opened(opened("b1", delay_s=5.0), (past(),), restored=True)) == []
    said = target(ready.has(8))
    assert (said.previous, said.units) == (3, 2)


def test_the_end_of_a_batch_nobody_knows_changes_nothing() -> None:
    assert Told().end("never heard of", past()) == []


# ---- time ----------------------------------------------------------------------------------------------------------


def sight(arrived: int, answered: int, queuing: Sequence[float] = (), running: Sequence[float] = ()) -> Sight:
    """`queuing`: arrivals of those that wait; `running`: when those that run came and began."""
    waits = np.array([(at, at) for at in queuing])
    runs = np.array([(at, at, at) for at in running])
    return Sight(arrived, answered, (waits.tobytes(),), (runs.tobytes(),))


def test_a_batch_asks_for_nothing_until_its_requests_are_about_to_come() -> None:
    """The shortest gap of late was 20 s, a core takes 3 s to start: 17 s after the hint."""
    ready = Told(cold_start_s=3.0)
    assert ready.open(opened("b1", delay_s=0.0), past(gap_s=50.0), past(gap_s=20.0), past(gap_s=30.0)) == []
    assert ready.planner.wake_s() == NOW + 17.0
    said = target(ready.wake())
    assert (said.units, said.reason.event) == (4, "review")


def test_a_first_request_that_comes_early_does_not_wait_for_the_hint() -> None:
    ready = Told(cold_start_s=3.0)
    ready.open(opened("b1", delay_s=0.0), past(gap_s=50.0))
    commands = ready.first("b1", NOW + 1)
    assert commands[0] == ExpectCompletion("b1", NOW + 5)
    assert target(commands).units == 4


def test_held_is_what_the_next_look_ahead_needs() -> None:
    """Two come at once and last 4 s, six come together a minute later: two cores do until then."""
    record = past((4.0,) * 8, (0.0, 0.0, *(60.0,) * 6), size=8)
    ready = Told(ahead_s=15.0, review_s=10.0)
    said = target(ready.open(opened("b1", size=8, delay_s=0.0), record))
    assert said.units == 2
    assert said.reason.summary.startswith("8 requests of batch b1: 6 cores suffice: extra delay 0.0 s <= D 0.0 s")
    assert said.reason.summary.endswith("; 2 of them soon")
    ready.first("b1", NOW)
    held = []
    for _ in range(6):
        at = ready.planner.wake_s()
        ready.look(at, b1=sight(2, 2))
        commands = ready.wake()
        held.append((round(at - NOW), target(commands).units if commands else None))
    assert held == [(10, 0), (20, None), (30, None), (40, None), (50, 6), (60, None)]


def test_what_comes_up_within_a_cold_start_is_held_too() -> None:
    record = past((4.0,) * 8, (0.0, 0.0, *(60.0,) * 6), size=8)
    ready = Told(ahead_s=15.0, review_s=10.0, cold_start_s=50.0)
    assert target(ready.open(opened("b1", size=8, delay_s=0.0), record)).units == 6


def test_requests_that_come_earlier_than_was_expected_do_not_wait_for_the_next_review() -> None:
    record = past((4.0,) * 8, (0.0, 0.0, *(60.0,) * 6), size=8)
    ready = Told(ahead_s=15.0, review_s=10.0)
    ready.open(opened("b1", size=8, delay_s=0.0), record)
    ready.first("b1", NOW)
    assert ready.planner.targets == {POOL: 2}
    assert ready.planner.watches
    ready.look(NOW + 0.9, b1=sight(5, 0, queuing=[NOW] * 3, running=[NOW] * 2))
    commands = ready.planner.handle(NOW + 2, Looked({"b1": sight(8, 0, queuing=[NOW + 1] * 6, running=[NOW] * 2)}))
    said = target(commands)
    assert (said.units, said.reason.event) == (8, f"requests wait for {POOL}")
    assert not ready.planner.watches
    late = {"b1": sight(8, 0, queuing=[NOW + 1], running=[NOW] * 7)}
    assert ready.planner.handle(NOW + 4, Looked(late)) == [], "all that was planned is held: they queue as planned"


def test_nothing_is_given_back_that_was_wanted_just_now() -> None:
    ready = Told(hold_s=5.0)
    ready.open(opened("b1"))
    said = target(ready.end("b1", now=NOW + 60))
    assert (said.units, said.reason.why) == (8, "idle")
    assert said.reason.summary.endswith("; 8 stay, wanted just now")
    assert ready.planner.wake_s() == NOW + 65.0
    assert target(ready.wake()).units == 0
    assert ready.planner.wake_s() == math.inf


def test_a_cold_start_is_waited_for_before_anything_is_given_back() -> None:
    ready = Told(hold_s=5.0, cold_start_s=40.0)
    ready.open(opened("b1"))
    ready.end("b1", now=NOW + 60)
    assert ready.planner.wake_s() == NOW + 100.0


def test_it_looks_again_while_a_batch_with_history_is_open_and_not_before_it_wanted_to() -> None:
    ready = Told()
    ready.open(opened("b1"), past())
    assert ready.planner.wake_s() == NOW + 10.0
    assert ready.planner.handle(NOW + 9.0, Woken()) == []
    ready.wake()
    assert ready.planner.wake_s() == NOW + 20.0
    ready.end("b1", now=NOW + 21)
    assert ready.planner.wake_s() == math.inf


# ---- what the dispatcher sees ---------------------------------------------------------------------------------------


def test_what_is_answered_needs_nothing_and_what_runs_has_its_units_already() -> None:
    """One of four waits yet, and one core is found for it: those that run keep theirs, whatever the target."""
    for ahead_s in (15.0, math.inf):
        ready = Told(ahead_s=ahead_s)
        ready.open(opened("b1", delay_s=3.0), past())
        ready.first("b1", NOW)
        ready.look(NOW + 1, b1=sight(4, 1, queuing=[NOW + 1], running=[NOW, NOW]))
        assert target(ready.has(7, NOW + 1)).units == 1


def test_requests_that_the_dispatcher_has_not_seen_yet_wait_for_the_first_stage() -> None:
    ready = Told()
    ready.open(opened("b1", delay_s=0.0), past())
    ready.first("b1", NOW)
    ready.look(NOW, b1=sight(4, 3))
    assert target(ready.has(7)).units == 1
    ready.look(NOW, b1=sight(4, 0, running=[NOW]))
    assert target(ready.has(8)).units == 4


def test_nothing_more_is_expected_of_a_batch_that_was_sealed() -> None:
    ready = Told()
    ready.open(opened("b1", delay_s=0.0), past())
    ready.first("b1", NOW)
    assert ready.planner.targets == {POOL: 4}
    ready.look(NOW, b1=replace(sight(1, 0, queuing=[NOW]), closed=True))
    said = target(ready.has(6))
    assert (said.units, said.reason.batches[0].requests) == (1, 1)


def test_an_opening_that_is_told_again_takes_nothing_away() -> None:
    ready = Told(review_s=1.0)
    before = past(arrivals=(0.0, 1.0, 2.0, 3.0), gap_s=1.0, tokens_per_s=100.0)
    ready.open(opened("b1", delay_s=0.0), before)
    ready.first("b1", NOW + 4)
    ready.planner.handle(NOW + 4, Progressed("b1", NOW + 4, 3, tokens=100.0))
    ready.open(opened("b1", delay_s=0.0), before, now=NOW + 4)
    assert ready.planner.tokens_per_s("b1") == 25.0
    ready.look(NOW + 5, b1=sight(1, 0, running=[NOW + 4]))
    ready.wake()
    assert ready.planner.targets == {POOL: 1}


def test_a_look_in_the_midst_of_a_batch_grants_no_delay_twice() -> None:
    """D is 5 s; both have waited for 4 s already. One after the other they would be 8 s late."""
    ready = Told()
    ready.open(opened("b1", size=2, delay_s=5.0), past((4.0, 4.0), (0.0, 0.0), size=2))
    ready.first("b1", NOW)
    ready.planner.handle(NOW + 4, Looked({"b1": sight(2, 0, queuing=[NOW, NOW])}))
    assert target(ready.has(7, NOW + 4)).units == 2


def test_what_is_late_already_is_not_waited_for_by_holding_everything() -> None:
    ready = Told()
    ready.open(opened("b1", delay_s=1.0), past())
    ready.first("b1", NOW)
    ready.look(NOW + 60, b1=sight(4, 3, queuing=[NOW]))
    said = target(ready.has(7, NOW + 60))
    assert (said.units, said.reason.why) == (1, "searched")


# ---- history ---------------------------------------------------------------------------------------------------------


def test_one_strange_batch_does_not_move_the_arrivals() -> None:
    usual = past(arrivals=(0.0, 10.0, 20.0, 30.0))
    strange = past(arrivals=(0.0, 0.0, 0.0, 0.0))
    ready = Told()
    assert target(ready.open(opened("b1", delay_s=0.0), usual, usual, strange)).units == 1
    assert target(Told(window=1).open(opened("b1", delay_s=0.0), usual, usual, strange)).units == 4


def test_only_batches_as_large_as_the_last_are_learnt_from_where_the_trainer_declares_no_size() -> None:
    ready = Told()
    small, large = past((4.0,) * 3, (0.0,) * 3, size=None), past((4.0,) * 5, (0.0,) * 5, size=None)
    assert target(ready.open(opened("b1", size=None, delay_s=0.0), small, large)).units == 5
    ready.look(NOW, b1=sight(7, 0))
    assert target(ready.has(9)).units == 7


def test_a_batch_of_other_work_that_ends_takes_no_history_away() -> None:
    ready = Told()
    ready.open(opened("b1", delay_s=5.0), past())
    ready.open(opened("b2", size=9))
    said = target(ready.end("b2", past((4.0,) * 9, (0.0,) * 9, size=9)))
    assert (said.units, said.reason.why) == (2, "searched")


# ---- progress --------------------------------------------------------------------------------------------------------


def test_a_rollout_half_as_fast_is_expected_to_spread_its_requests() -> None:
    """Its task's batches came 1 s apart at 100 tokens/s. At 25 they will come 4 s apart, so none meets another."""
    before = past(arrivals=(0.0, 1.0, 2.0, 3.0), gap_s=1.0, tokens_per_s=100.0)
    held = []
    for heeds in (True, False):
        ready = Told(progress=heeds, review_s=1.0)
        assert ready.open(opened("b1", delay_s=0.0), before) == []
        assert target(ready.first("b1", NOW + 4)).units == 4
        assert ready.planner.handle(NOW + 4, Progressed("b1", NOW + 4, 3, tokens=100.0)) == []
        ready.look(NOW + 5, b1=sight(1, 0, running=[NOW + 4]))
        ready.wake()
        held.append((ready.planner.targets[POOL], ready.planner.tokens_per_s("b1")))
    assert held == [(1, 25.0), (4, None)]


def test_the_usual_pace_is_that_of_the_batches_whose_arrivals_are_expected() -> None:
    """Three fast batches, then two slow ones, which weigh more: a slow rollout comes as those did, no slower."""
    fast = past(arrivals=(0.0, 1.0, 2.0, 3.0), gap_s=1.0, tokens_per_s=100.0)
    slow = past(arrivals=(0.0, 4.0, 8.0, 12.0), gap_s=4.0, tokens_per_s=25.0)
    ready = Told(review_s=1.0, window=5)
    ready.open(opened("b1", delay_s=0.0), fast, fast, fast, slow, slow)
    ready.first("b1", NOW + 4)
    ready.planner.handle(NOW + 4, Progressed("b1", NOW + 4, 3, tokens=100.0))
    ready.look(NOW + 5, b1=sight(1, 1))
    ready.wake()
    assert ready.planner.targets == {POOL: 1}
    (expected,) = ready.planner.expectations(NOW + 5)
    assert expected.requests.ready_s.tolist() == [3.0, 7.0, 11.0]


def test_samples_that_will_never_come_are_not_waited_for() -> None:
    ready = Told()
    ready.open(opened("b1", delay_s=0.0), past())
    ready.planner.handle(NOW, Progressed("b1", NOW, 1, tokens=None))
    ready.look(NOW + 10, b1=sight(1, 0, running=[NOW + 10]))
    assert target(ready.wake()).units == 2


def test_a_report_on_a_batch_that_nobody_knows_is_passed_over() -> None:
    assert Told().planner.handle(NOW, Progressed("never heard of", NOW, 1, tokens=None)) == []


# ---- any order -------------------------------------------------------------------------------------------------------


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens in whatever order, targets lie between floor and ceiling, and idle pools at the floor."""

    def __init__(self) -> None:
        super().__init__()
        self.planner = Planner(Ways(), floors={POOL: 1}, ceilings={POOL: 6})
        self.now = NOW
        self.batches: list[str] = []
        self.serial = 0

    @rule(task=st.sampled_from(["code", "proofs"]), known=st.booleans(), delay_s=st.sampled_from([0.0, 3.0, 60.0]))
    def open(self, task: str, known: bool, delay_s: float) -> None:
        self.serial += 1
        self.batches.append(f"b{self.serial}")
        batch = opened(self.batches[-1], task, delay_s=delay_s, at=self.now)
        self.planner.handle(self.now, Opened(batch, (past(task=task),) if known else ()))

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        self.planner.handle(self.now, FirstCame(data.draw(st.sampled_from(self.batches)), self.now))

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), arrived=st.integers(0, 6), generating=st.integers(0, 6), tokens=st.none() | st.floats(0, 1e6))
    def look(self, data: st.DataObject, arrived: int, generating: int, tokens: float | None) -> None:
        batch = data.draw(st.sampled_from(self.batches))
        here = data.draw(st.lists(st.sampled_from(["waits", "runs"]), max_size=arrived))
        came = [self.now - data.draw(st.integers(0, 50)) for _ in here]
        waits = [at for at, where in zip(came, here, strict=True) if where == "waits"]
        runs = [at for at, where in zip(came, here, strict=True) if where == "runs"]
        self.planner.handle(
            self.now, Looked({batch: sight(arrived, arrived - len(here), waits, runs), "gone": Sight(1, 1)})
        )
        self.planner.handle(self.now, Progressed(batch, self.now, generating, tokens))

    @rule()
    def wake(self) -> None:
        self.now = max(self.now, min(self.planner.wake_s(), self.now + 100))
        self.planner.handle(self.now, Woken())
        assert self.planner.wake_s() > self.now, "it would be woken for ever"

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), learnt=st.booleans())
    def end(self, data: st.DataObject, learnt: bool) -> None:
        batch = data.draw(st.sampled_from(self.batches))
        self.batches.remove(batch)
        self.planner.handle(self.now, Ended(batch, (past(),) if learnt else ()))

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
