"""Decisions of the planner for work that quotas hold back: targets, T and reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from shared.policy.model.quotas import Level, QuotaLimits, Rate
from shared.policy.scaling.quota_supply import ObservedQuota
from shared.policy.scaling.stimuli import (
    BatchesObserved,
    Command,
    ExpectCompletion,
    PublishTarget,
    QuotasObserved,
    TimerFired,
)
from shared.policy.scaling.workload import BatchRecord, OpenedBatch, PastBatch, Stage
from tests.shared.policy.scaling.planning import NOW, POOL, PlannerDriver, observed, opened, target

JUDGE = (Stage("judge", 1.0, 10.0, POOL, quotas={"search": 1.0}),)
SIZE = 40


def judging(name: str, *, delay_s: float = 2.0, size: int = SIZE, task: str = "code") -> OpenedBatch:
    return replace(opened(name, task, size=size, delay_s=delay_s), stages=JUDGE)


def judged(lasts_s: float = 1.0, *, size: int = SIZE, task: str = "code") -> PastBatch:
    """All requests came together."""
    before = replace(judging("before", size=size, task=task), opened_at=NOW - 100, first_arrival_at=NOW - 100)
    return PastBatch(before, BatchRecord((0.0,) * size, ((lasts_s,) * size,)))


def knows(
    driver: PlannerDriver,
    *concurrency: float,
    rates: Sequence[Rate] = (),
    levels: Sequence[Level] = (),
    at: float = NOW,
) -> None:
    quota = ObservedQuota(QuotaLimits(concurrency, tuple(rates)), tuple(levels))
    tell(driver, {"search": quota}, at)


def tell(driver: PlannerDriver, quotas: Mapping[str, ObservedQuota | None], at: float = NOW) -> None:
    assert driver.planner.handle(at, QuotasObserved(quotas)) == []


def completion(commands: Sequence[Command]) -> float:
    (only,) = [command.at for command in commands if isinstance(command, ExpectCompletion)]
    return only - NOW


def test_a_pool_gets_the_units_of_a_quotas_pace_and_the_reason_says_so() -> None:
    ready = PlannerDriver(cores=64, strictness=1.0)
    knows(ready, rates=[Rate(4.0, 1.0, 1.0)])
    decision = target(ready.open(judging("b7"), judged()))
    assert decision.units == 4, "four a second, of a second each; the delay of 2 s is not enough for three"
    assert decision.reason.summary.startswith("40 requests of batch b7: 4 cores suffice: extra delay 0.0 s <= D 2.0 s")
    assert decision.reason.summary.endswith("; the quota 'search' (4/s) limits stage judge")


def test_without_the_quota_the_same_work_gets_all_its_units() -> None:
    decision = target(PlannerDriver(cores=64, strictness=1.0).open(judging("b7"), judged()))
    assert decision.units == 40
    assert "quota" not in decision.reason.summary


def test_no_unit_is_added_for_work_whose_provider_is_out_of_credit() -> None:
    ready = PlannerDriver(cores=64, strictness=1.0)
    limits = QuotaLimits((), (Rate(4.0, 1.0, 1.0),))
    tell(ready, {"search": ObservedQuota(limits, closed="exhausted: HTTP 402")})
    commands = ready.open(judging("b7"), judged())
    assert [one.units for one in commands if isinstance(one, PublishTarget) and one.units] == []
    tell(ready, {"search": ObservedQuota(limits)})
    assert target(ready.open(judging("b8"), judged())).units == 4, "after a top-up"


def test_a_quota_that_limits_nothing_is_not_named() -> None:
    ready = PlannerDriver(cores=64, strictness=1.0)
    knows(ready, 40.0)
    decision = target(ready.open(judging("b7"), judged()))
    assert decision.units == 40
    assert "quota" not in decision.reason.summary


def test_t_counts_the_pace_of_the_quota() -> None:
    ready = PlannerDriver(cores=64)
    knows(ready, rates=[Rate(4.0, 1.0, 1.0)])
    ready.open(judging("b7"), judged())
    assert completion(ready.first("b7")) == pytest.approx(39 / 4 + 1)
    free = PlannerDriver(cores=64)
    free.open(judging("b7"), judged())
    assert completion(free.first("b7")) == pytest.approx(1.0)


def test_t_moves_later_while_the_quota_lacks_and_not_while_units_do() -> None:
    """Twenty seconds later the same requests wait. The quota has given to others, or it is full and units lacked."""
    for missing, moved_s in ((1.0, 20.25 + 39 / 4 + 1), (0.0, None)):
        ready = PlannerDriver(cores=64)
        knows(ready, rates=[Rate(4.0, 1.0, 1.0)])
        ready.open(judging("b7"), judged())
        ready.first("b7")
        waiting = observed(SIZE, 0, queuing=[NOW] * SIZE)
        ready.planner.handle(NOW + 20, BatchesObserved({"b7": waiting}))
        knows(ready, rates=[Rate(4.0, 1.0, 1.0)], levels=[Level(missing, NOW + 20)], at=NOW + 20)
        commands = ready.planner.handle(NOW + 20, TimerFired())
        moves = [command.at - NOW for command in commands if isinstance(command, ExpectCompletion)]
        assert moves == ([pytest.approx(moved_s)] if moved_s is not None else [])


def test_a_later_batch_may_be_as_late_as_the_earlier_one_keeps_the_quota() -> None:
    ready = PlannerDriver(cores=64, strictness=1.0)
    knows(ready, 4.0)
    ready.open(judging("b1"), judged())
    decision = target(ready.open(judging("b2", task="other", size=44), judged(task="other", size=44)))
    assert (decision.units, decision.reason.why) == (4, "searched")
    assert "extra delay 10.0 s: quotas alone delay batch b2 beyond D 2.0 s" in decision.reason.summary
    assert "strictness" not in decision.reason.summary


def test_work_that_a_spent_quota_holds_back_gets_no_units() -> None:
    ready = PlannerDriver(cores=64, strictness=1.0)
    budget = Rate(50.0, unit="usd")
    knows(ready, rates=[budget], levels=[Level(50.0, NOW)])
    decision = target(ready.open(judging("b7"), judged()))
    assert decision.units == 0
    assert decision.reason.summary.endswith(
        "; the quota 'search' (50 usd in all) holds back 40 requests at stage judge"
    )


def test_of_a_nearly_spent_quota_the_rest_is_planned() -> None:
    ready = PlannerDriver(cores=64, strictness=1.0)
    knows(ready, rates=[Rate(50.0)], levels=[Level(47.0, NOW)])
    decision = target(ready.open(judging("b7"), judged()))
    assert decision.units == 3
    assert decision.reason.summary.endswith("; the quota 'search' (50 in all) holds back 37 requests at stage judge")


def test_work_whose_quota_is_not_set_gets_no_units() -> None:
    ready = PlannerDriver(cores=64)
    tell(ready, {"search": None})
    decision = target(ready.open(judging("b7"), judged()))
    assert decision.units == 0
    assert decision.reason.summary.endswith("; the quota 'search' (not set) holds back 40 requests at stage judge")


def test_a_topped_up_quota_lets_the_work_go_on_at_the_next_review() -> None:
    ready = PlannerDriver(cores=64, strictness=1.0)
    knows(ready, rates=[Rate(50.0)], levels=[Level(50.0, NOW)])
    ready.open(judging("b7"), judged())
    ready.first("b7")
    knows(ready, rates=[Rate(90.0)], levels=[Level(50.0, NOW)], at=NOW + 10)
    assert target(ready.wake()).units == 40


@pytest.mark.parametrize(
    ("concurrency", "rates", "units"),
    [
        ((6.0,), (), 6),
        ((), (Rate(1.0, 1.0, 2.0),), 12),  # the burst, and one a second for a timeout of 10 s
        ((), (Rate(0.0, 1.0, 0.0),), 0),
    ],
)
def test_without_history_a_pool_gets_what_the_quota_lets_run_at_once(
    concurrency: tuple[float, ...], rates: tuple[Rate, ...], units: int
) -> None:
    ready = PlannerDriver(cores=64)
    knows(ready, *concurrency, rates=rates)
    decision = target(ready.open(judging("b1")))
    assert (decision.units, decision.reason.why) == (units, "no-history")
    assert f"its requests can use {units} cores at once" in decision.reason.summary
    assert "; the quota 'search' (" in decision.reason.summary
    assert decision.reason.summary.endswith(") limits stage judge")


def test_a_worker_is_not_kept_for_a_stage_whose_quota_gives_nothing_before_the_next_review() -> None:
    held = []
    for period_s in (5.0, 3600.0):
        ready = PlannerDriver(cores=64, look_ahead_s=15.0)
        knows(ready, rates=[Rate(1.0, period_s)], levels=[Level(1.0, NOW)])
        held.append(target(ready.open(judging("b7", size=2), judged(size=2))).units)
    assert held == [1, 0]


def test_requests_that_wait_for_a_quota_are_no_surprise_while_more_is_planned_for_later() -> None:
    """The second half comes when the quota has refilled, and needs twenty cores."""
    history = replace(judged(), record=BatchRecord((0.0,) * 20 + (100.0,) * 20, ((1.0,) * SIZE,)))
    ready = PlannerDriver(cores=64, strictness=1.0, look_ahead_s=15.0)
    knows(ready, rates=[Rate(1.0, 1.0, 30.0)], levels=[Level(30.0, NOW)])
    decision = target(ready.open(judging("b7"), history))
    assert (decision.units, "; 1 of them soon" in decision.reason.summary) == (1, True)
    ready.first("b7")
    for seconds in (2, 4, 8):
        ready.look(NOW + seconds, b7=observed(20, seconds, queuing=[NOW] * (20 - seconds)))


def test_requests_that_wait_for_a_quota_cause_no_decision() -> None:
    ready = PlannerDriver(cores=64, strictness=1.0, look_ahead_s=15.0)
    knows(ready, rates=[Rate(1.0, 1.0)], levels=[Level(1.0, NOW)])
    ready.open(judging("b7"), judged())
    ready.first("b7")
    for seconds in (2, 4, 8):
        ready.look(NOW + seconds, b7=observed(SIZE, seconds, queuing=[NOW] * (SIZE - seconds)))


def test_the_measurements_of_a_task_count_under_other_quotas_too() -> None:
    other = replace(judging("b"), stages=(replace(JUDGE[0], quotas={"money": 3.0}),))
    assert judging("a").same_work(other)
