"""What the planner decides: stimulus in, commands out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.scaling_planner.planner import Command, ExpectCompletion, Planner, PublishTarget
from shared.policy.workload import Stage
from shared.store.records import BatchRequests, LastBatch, OpenedBatch

POOL = "cores@default"
RUN = (Stage("run", 1.0, 10.0, POOL),)
NOW = 1_763_700_000.0


def opened(
    batch: str, task: str = "code", *, size: int | None = 4, delay_s: float = 2.0, at: float = NOW
) -> OpenedBatch:
    return OpenedBatch(batch, "ada", task, size, RUN, delay_s, 64.0, at)


def last(
    executions: Sequence[float] = (4.0,) * 4,
    arrivals: Sequence[float] = (0.0,) * 4,
    *,
    task: str = "code",
    gap_s: float = 0.0,
    size: int | None = 4,
) -> LastBatch:
    n = len(executions)
    ones, zeros = (1,) * n, (0.0,) * n
    requests = BatchRequests(tuple(arrivals), (zeros,), (tuple(executions),), (ones,), zeros)
    before = replace(opened("before", task, size=size, at=NOW - 100), first_arrival_at=NOW - 100 + gap_s)
    return LastBatch(before, NOW - 50, requests)


def planner(
    strictness: float = 0.0,
    *,
    cores: int = 8,
    floors: dict[str, int] | None = None,
    ceilings: dict[str, int] | None = None,
) -> Planner:
    ready = Planner(strictness, floors or {}, ceilings or {})
    ready.capacities(NOW, {POOL: cores})
    return ready


def target(commands: Sequence[Command]) -> PublishTarget:
    (only,) = [command for command in commands if isinstance(command, PublishTarget)]
    return only


def test_a_pool_without_an_open_batch_falls_to_its_floor() -> None:
    said = target(Planner().capacities(NOW, {POOL: 8}))
    assert (said.pool, said.previous, said.units) == (POOL, None, 0)
    assert said.reason.why == "idle"
    assert target(Planner(floors={POOL: 2}).capacities(NOW, {POOL: 8})).units == 2


def test_a_task_without_history_gets_every_unit() -> None:
    said = target(planner().opened(NOW, opened("b1"), None))
    assert (said.previous, said.units, said.reason.why) == (0, 8, "no-history")
    assert said.reason.summary == "no history of task code yet: the ceiling of 8 cores, so that nothing queues"


def test_a_task_with_history_gets_the_fewest_units_that_keep_its_delay_and_the_reason_says_why() -> None:
    said = target(planner().opened(NOW, opened("b7", delay_s=5.0), last()))
    assert (said.units, said.reason.why) == (2, "searched")
    assert said.reason.summary == (
        "4 requests of batch b7: 2 cores suffice: extra delay 4.0 s <= D 5.0 s; with 1, extra delay 12.0 s > D 5.0 s"
    )
    assert said.reason.document()["batches"] == (
        {"batch": "b7", "requests": 4, "extra_delay_s": 4.0, "max_extra_delay_s": 5.0},
    )


def test_the_timeout_aware_rule_is_named_where_it_decides() -> None:
    said = target(planner(1.0).opened(NOW, opened("b7", delay_s=13.0), last()))
    assert said.units == 2
    assert said.reason.summary.endswith(  # the third would start at 8 s, and 8 + 10 > 4 + 13
        "with 1, a request that queues for stage run could end 1.0 s beyond T + D if it lasted its timeouts"
    )


def test_where_all_there_is_does_not_do_it_is_all_and_the_reason_says_so() -> None:
    said = target(planner(cores=1).opened(NOW, opened("b7"), last()))
    assert (said.units, said.reason.why) == (1, "ceiling")
    assert said.reason.summary == (
        "4 requests of batch b7: even the ceiling of 1 core is not enough: extra delay 12.0 s > D 2.0 s"
    )


def test_where_one_unit_does_nobody_asks_what_none_would_do() -> None:
    said = target(planner().opened(NOW, opened("b7", delay_s=12.0), last()))
    assert said.reason.summary == "4 requests of batch b7: 1 core suffices: extra delay 12.0 s <= D 12.0 s"


def test_a_ceiling_and_a_floor_set_by_hand_hold() -> None:
    assert target(planner(ceilings={POOL: 3}).opened(NOW, opened("b1"), None)).units == 3
    floored = target(planner(floors={POOL: 5}).opened(NOW, opened("b1", delay_s=5.0), last()))
    assert floored.units == 5
    assert floored.reason.summary.endswith("; floor 5")


def test_when_the_last_batch_has_ended_the_units_are_given_back() -> None:
    ready = planner()
    ready.opened(NOW, opened("b1"), None)
    said = target(ready.ended(NOW + 60, "b1", None))
    assert (said.previous, said.units, said.reason.event) == (8, 0, "batch b1 ended")


def test_open_batches_of_several_tasks_are_planned_together() -> None:
    ready = planner()
    alone = target(ready.opened(NOW, opened("b1", "code", delay_s=0.0), last()))
    both = target(ready.opened(NOW, opened("b2", "proofs", delay_s=0.0), last(task="proofs")))
    assert (alone.units, both.units) == (4, 8)
    assert "8 requests of batches b1, b2" in both.reason.summary
    assert target(ready.ended(NOW + 9, "b1", None)).units == 4


def test_one_task_without_history_makes_a_shared_pool_whole() -> None:
    ready = planner()
    ready.opened(NOW, opened("b1", "code", delay_s=5.0), last())
    said = target(ready.opened(NOW, opened("b2", "new"), None))
    assert (said.units, said.reason.why) == (8, "no-history")
    assert "task new" in said.reason.summary


def test_the_first_arrival_tells_the_dispatcher_when_the_batch_should_be_complete() -> None:
    ready = planner()
    ready.opened(NOW, opened("b1"), last((4.0, 1.0, 1.0, 9.0), (0.0, 1.0, 2.0, 3.0)))
    assert ready.first_arrival(NOW + 30, "b1", NOW + 30) == [ExpectCompletion("b1", NOW + 42)]


def test_without_history_nobody_tells_the_dispatcher_anything() -> None:
    ready = planner()
    ready.opened(NOW, opened("b1"), None)
    assert ready.first_arrival(NOW + 30, "b1", NOW + 30) == []
    assert ready.first_arrival(NOW + 30, "never heard of", NOW + 30) == []


def test_the_gap_from_hint_to_first_arrival_keeps_apart_what_will_not_meet() -> None:
    ready = planner()
    ready.opened(NOW, opened("b1", "code", delay_s=0.0), last())
    said = target(ready.opened(NOW, opened("b2", "proofs", delay_s=0.0), last(task="proofs", gap_s=60.0)))
    assert said.units == 4


def test_a_first_arrival_corrects_how_open_batches_overlap() -> None:
    ready = planner()
    ready.opened(NOW, opened("b1", "code", delay_s=0.0), last())
    ready.opened(NOW, opened("b2", "proofs", delay_s=0.0), last(task="proofs", gap_s=60.0))
    ready.first_arrival(NOW + 1, "b1", NOW + 1)
    assert target(ready.first_arrival(NOW + 1, "b2", NOW + 1)).units == 8


def test_another_batch_size_or_workflow_is_no_history_and_another_price_is() -> None:
    fresh = opened("b1", delay_s=5.0)
    for other, why in (
        (replace(fresh, size=5), "no-history"),
        (replace(fresh, stages=(replace(RUN[0], timeout_s=11.0),)), "no-history"),
        (replace(fresh, stages=(replace(RUN[0], worker_cost=3.0),)), "searched"),
    ):
        assert target(planner().opened(NOW, other, last())).reason.why == why


def test_an_open_batch_profits_from_one_of_its_task_that_ends_meanwhile() -> None:
    ready = planner()
    ready.opened(NOW, opened("b1"), None)
    ready.opened(NOW, opened("b2", delay_s=5.0), None)
    said = target(ready.ended(NOW + 20, "b1", last()))
    assert (said.units, said.reason.why) == (2, "searched")


def test_nodes_that_come_and_go_move_the_ceiling() -> None:
    ready = planner(cores=2)
    ready.opened(NOW, opened("b1"), None)
    assert target(ready.capacities(NOW, {POOL: 6})).units == 6
    assert ready.capacities(NOW, {POOL: 6}) == []
    assert target(ready.capacities(NOW, {POOL: 0})).units == 0


def test_a_pool_nobody_offers_gets_no_target() -> None:
    ready = Planner()
    assert ready.opened(NOW, opened("b1"), None) == []
    assert target(ready.capacities(NOW, {POOL: 4})).units == 4


def test_what_was_decided_by_a_former_process_is_said_again_once() -> None:
    ready = Planner(0.0, targets={POOL: 3})
    ready.restored(opened("b1", delay_s=5.0), last())
    said = target(ready.capacities(NOW, {POOL: 8}))
    assert (said.previous, said.units) == (3, 2)


def test_the_end_of_a_batch_nobody_knows_changes_nothing() -> None:
    assert planner().ended(NOW, "never heard of", last()) == []


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens in whatever order, targets lie between floor and ceiling, and idle pools at the floor."""

    def __init__(self) -> None:
        super().__init__()
        self.planner = Planner(1.0, floors={POOL: 1}, ceilings={POOL: 6})
        self.now = NOW
        self.batches: list[str] = []
        self.serial = 0

    @rule(task=st.sampled_from(["code", "proofs"]), known=st.booleans(), delay_s=st.sampled_from([0.0, 3.0, 60.0]))
    def open(self, task: str, known: bool, delay_s: float) -> None:
        self.serial += 1
        self.batches.append(f"b{self.serial}")
        batch = opened(self.batches[-1], task, delay_s=delay_s, at=self.now)
        self.planner.opened(self.now, batch, last(task=task) if known else None)

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        self.planner.first_arrival(self.now, data.draw(st.sampled_from(self.batches)), self.now)

    @precondition(lambda self: self.batches)
    @rule(data=st.data(), learnt=st.booleans())
    def end(self, data: st.DataObject, learnt: bool) -> None:
        batch = data.draw(st.sampled_from(self.batches))
        self.batches.remove(batch)
        self.planner.ended(self.now, batch, last() if learnt else None)

    @rule(cores=st.integers(0, 9))
    def change_nodes(self, cores: int) -> None:
        self.planner.capacities(self.now, {POOL: cores})

    @rule(seconds=st.floats(0, 100))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def in_bounds(self) -> None:
        self.planner.check()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
