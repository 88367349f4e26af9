"""Batches that are larger than their past, that are late already, or that the ceilings cannot serve in time."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import accumulate
from random import Random

import numpy as np
import pytest

from shared.policy.order.ebf import BOUND_S
from shared.policy.scaling.config import PlannerConfig
from shared.policy.scaling.expectations import expect
from shared.policy.scaling.planner import Planner
from shared.policy.scaling.stimuli import (
    BatchAdded,
    BatchesObserved,
    Command,
    ExpectCompletion,
    FirstRequestArrived,
    NodesChanged,
    ObservedBatch,
    PublishTarget,
)
from shared.policy.scaling.workload import BatchRecord, OpenedBatch, PastBatch, Stage
from tests.shared.policy.scaling.planning import NOW, PlannerDriver, observed, opened, past, target


def completions(commands: list[Command]) -> list[float]:
    return [round(command.at - NOW, 3) for command in commands if isinstance(command, ExpectCompletion)]


def test_t_is_published_again_when_a_review_moves_it() -> None:
    """Four requests came within 3 s last time. Now the last two are late: T goes with them."""
    ready = PlannerDriver(paced=False)
    ready.open(opened("b1"), past(arrivals=(0.0, 1.0, 2.0, 3.0)))
    assert completions(ready.first("b1", NOW)) == [7.0]
    ready.look(NOW + 10, b1=observed(2, 2))
    assert completions(ready.wake()) == [14.0]
    ready.look(NOW + 20, b1=observed(2, 2))
    assert completions(ready.wake()) == [24.0]


def test_t_moves_later_by_bounded_steps_and_ends_at_the_bound() -> None:
    ready = PlannerDriver(paced=False, review_s=3000.0)
    ready.open(opened("b1"), past(arrivals=(0.0, 1.0, 2.0, 3.0)))
    ready.first("b1", NOW)
    ready.look(NOW + 3000, b1=observed(2, 2))
    assert completions(ready.wake()) == [7.0 + BOUND_S / 10]
    for _ in range(20):
        ready.look(ready.planner.wake_s(), b1=observed(2, 2))
        moved = completions(ready.wake())
    assert moved == [], "it is at the bound"
    (known,) = ready.planner._open.values()
    assert known.key_s == NOW + BOUND_S


def test_the_order_of_the_search_is_the_order_that_was_published() -> None:
    """The dispatcher still has the old T where a move is too small to be published."""
    ready = PlannerDriver(paced=False)
    ready.open(opened("b1"), past(arrivals=(0.0, 1.0, 2.0, 3.0)))
    ready.first("b1", NOW)
    ready.look(NOW + 3.4, b1=observed(3, 3))
    assert completions(ready.has(7, NOW + 3.4)) == []
    states = list(ready.planner._open.values())
    commands, (expected,), _ = expect(NOW + 3.4, states, Random(1), paced=False, supply={})
    assert commands == []
    assert expected.completion_s == pytest.approx(4.0)
    assert expected.order_s == pytest.approx(3.6)


def test_one_worker_stays_while_a_request_is_outstanding() -> None:
    """By its draws the running request has ended. It has not, and its remaining duration is unknown."""
    ready = PlannerDriver(look_ahead_s=15.0, stabilization_s=0.0)
    ready.open(opened("b1"), past())
    ready.first("b1", NOW)
    ready.planner.handle(
        NOW + 5, BatchesObserved({"b1": replace(observed(4, 3, running=[NOW]), observed_at=NOW + 3.9)})
    )
    assert target(ready.has(7, NOW + 5)).units == 1
    ready.look(NOW + 6, b1=observed(4, 4))
    assert target(ready.has(6, NOW + 6)).units == 0


STAGES = (Stage("compile", 1.0, 60.0, "cores@default"), Stage("run", 4.0, 60.0, "gpus@default"))


def workflow(cores: int, gpus: int, delay_s: float) -> list[Command]:
    """Eight requests at once, 4 s in each of two stages, on so many units."""
    batch = OpenedBatch("b7", "ada", "code", 8, STAGES, delay_s, 1.0, NOW)
    record = BatchRecord((0.0,) * 8, ((4.0,) * 8, (4.0,) * 8))
    before = PastBatch(replace(batch, batch="before", opened_at=NOW - 100, first_arrival_at=NOW - 100), record)
    planner = Planner(PlannerConfig(stabilization_s=0.0, look_ahead_s=math.inf))
    planner.handle(NOW, NodesChanged({"cores@default": cores, "gpus@default": gpus}, {}))
    opening = planner.handle(NOW, BatchAdded(batch, (before,)))
    return opening + planner.handle(NOW, FirstRequestArrived("b7", NOW))


def found(commands: list[Command]) -> dict[str, PublishTarget]:
    return {one.pool.partition("@")[0]: one for one in commands if isinstance(one, PublishTarget)}


def test_the_strictness_is_lowered_where_the_ceilings_do_not_meet_it() -> None:
    """Timeouts of 60 s forbid all queueing. Eight cores need not be held for that: four end 4 s later, within D."""
    asked = found(workflow(7, 7, 5.0))
    assert (asked["cores"].units, asked["gpus"].units) == (4, 4)
    assert asked["gpus"].reason.summary.endswith("; strictness reduced to 0 % because of the ceilings")
    assert found(workflow(8, 8, 5.0))["gpus"].units == 8, "where they can be met they are"


def test_pools_that_are_not_to_blame_do_not_hold_their_ceiling() -> None:
    """One GPU for eight requests: they end 28 s late, and 2 cores prepare them soon enough for that."""
    asked = found(workflow(20, 1, 5.0))
    assert asked["cores"].units < 4
    assert (asked["gpus"].units, asked["gpus"].reason.why) == (1, "ceiling")
    assert asked["gpus"].reason.summary == (
        "8 requests of batch b7: even the ceiling of 1 gpu is not enough: stage run delays batch b7 by 28.0 s > D 5.0 s"
    )
    assert asked["cores"].reason.why == "searched"
    assert asked["cores"].reason.summary.endswith(
        "; gpus@default is the bottleneck: stage run delays batch b7 by 28.0 s > D 5.0 s"
    )


def test_a_stage_that_can_never_run_is_named() -> None:
    asked = found(workflow(20, 0, 5.0))
    assert asked["gpus"].reason.summary.endswith("stage run of batch b7 could never run")


def test_the_reason_of_a_late_batch_names_the_delay_its_task_declared() -> None:
    ready = PlannerDriver()
    ready.open(opened("b1", delay_s=1.0), past())
    ready.first("b1", NOW)
    decision = target(ready.planner.handle(NOW + 60, BatchesObserved({"b1": observed(4, 3, queuing=[NOW])})))
    assert decision.reason.summary == (
        "1 request of batch b1: 1 core suffices: extra delay 60.0 s: batch b1 is later than D 1.0 s already"
    )
    assert decision.reason.batches[0].max_extra_delay_s == 1.0


def test_the_delay_in_a_reason_is_the_batchs_own() -> None:
    """One core serves four requests that came at once. The first lasts 30 s, so the batch could not end sooner than at
    30 s, whatever the others, which last 4 s, lose in the queue.
    """
    lasts = (30.0, 4.0, 4.0, 4.0)
    ends = list(accumulate(lasts))
    ready = PlannerDriver(cores=1)
    ready.open(opened("b1", delay_s=1.0), past())
    ready.first("b1", NOW)
    now = NOW + ends[2] + 1.0
    ran = np.array([(NOW, NOW, NOW + ends[2])]).tobytes()
    ready.planner.handle(
        now, BatchesObserved({"b1": ObservedBatch(4, 3, (b"",), (ran,), unqueued_end_at=NOW + max(lasts[:3]))})
    )
    decision = target(ready.open(opened("b2", delay_s=100.0, at=now), past(), now=now))
    outlook = next(one for one in decision.reason.batches if one.batch == "b1")
    assert outlook.extra_delay_s == pytest.approx(ends[-1] - max(lasts))
    assert "extra delay 12.0 s: batch b1 is later than D 1.0 s already" in decision.reason.summary
