"""Health of a worker: the breaker, progress, back-pressure."""

from __future__ import annotations

from itertools import pairwise

import pytest

from shared.policy.routing.config import HealthConfig
from shared.policy.routing.health import Outcome, WorkerHealth

CONFIG = HealthConfig()


def times(outcome: Outcome, count: int) -> list[Outcome]:
    return [outcome] * count


def act(health: WorkerHealth, now: float, *outcomes: Outcome) -> None:
    for number, outcome in enumerate(outcomes):
        health.started(f"{now}-{number}", now)
        health.ended(f"{now}-{number}", outcome, now)
        health.check()


def test_failures_in_a_row_open_the_breaker_and_one_success_between_does_not() -> None:
    health = WorkerHealth(CONFIG)
    act(health, 1.0, *times("unreachable", CONFIG.most_failures - 1), "ok", *times("failed", CONFIG.most_failures - 1))
    assert health.state(1.0) == "ready"
    act(health, 1.0, "failed")
    assert health.state(1.0) == "open"
    assert not health.usable(1.0)


def test_a_share_of_failures_opens_the_breaker() -> None:
    health = WorkerHealth(CONFIG)
    for _ in range(round(CONFIG.least_answers)):
        act(health, 1.0, "ok", "failed")
    assert health.state(1.0) == "open"


@pytest.mark.parametrize("outcome", ["aborted", "overloaded"])
def test_clients_that_go_and_back_pressure_are_no_failures(outcome: Outcome) -> None:
    health = WorkerHealth(CONFIG)
    act(health, 1.0, *times(outcome, 100))
    assert health.state(1.0) == "ready"


def test_one_call_at_a_time_probes_and_its_failure_doubles_the_time() -> None:
    health = WorkerHealth(CONFIG)
    act(health, 0.0, *times("failed", CONFIG.most_failures))
    opened_s = 0.0
    for expected_s in (5.0, 10.0, 20.0, 40.0, 60.0, 60.0):
        assert health.due_s() == opened_s + expected_s
        assert health.state(opened_s + expected_s - 0.001) == "open"
        opened_s += expected_s
        health.tick(opened_s)
        assert health.state(opened_s) == "probing"
        health.started("p", opened_s)
        assert not health.usable(opened_s), "one probe at a time"
        health.ended("p", "failed", opened_s)
    health.tick(opened_s + 60.0)
    act(health, opened_s + 60.0, "ok")
    assert health.state(opened_s + 60.0) == "ready"
    act(health, opened_s + 60.0, *times("failed", CONFIG.most_failures - 1))
    assert health.state(opened_s + 60.0) == "ready", "it begins anew"


def test_a_probe_whose_client_goes_leaves_the_breaker_half_open() -> None:
    health = WorkerHealth(CONFIG)
    act(health, 0.0, *times("failed", CONFIG.most_failures))
    health.tick(5.0)
    act(health, 5.0, "aborted")
    assert health.state(5.0) == "probing"
    assert health.usable(5.0)


def test_back_pressure_pauses_and_grows() -> None:
    health, now = WorkerHealth(CONFIG), 0.0
    for pause_s in (0.5, 1.0, 2.0, 4.0, 5.0, 5.0):
        act(health, now, "overloaded")
        assert health.usable(now)
        assert not health.may_start(now + pause_s - 0.001)
        assert health.may_start(now + pause_s)
        now += pause_s
        health.tick(now)
    act(health, now, "ok", "overloaded")
    assert health.may_start(now + CONFIG.first_pause_s)


def frozen_at(progress_s: float, *, canaries: bool, until_s: float) -> tuple[WorkerHealth, list[float]]:
    """A worker with one call, and no byte after a time; ticks of 1 s. Canaries end in time, or not at all."""
    health, sent = WorkerHealth(CONFIG), list[float]()
    health.started("c", 0.0)
    for second in range(1, round(until_s) + 1):
        if second <= progress_s:
            health.progressed(float(second))
        if health.tick(float(second)):
            sent.append(second)
            if canaries:
                health.canary_answered(ok=True, now=second + 0.5)
        health.check()
    return health, sent


def test_a_frozen_worker_leaves_within_30_seconds() -> None:
    health, sent = frozen_at(7, canaries=False, until_s=7 + 30)
    assert health.state(37.0) == "failed"
    assert len(sent) >= 1


def test_a_long_prefill_stays_and_is_asked_at_intervals() -> None:
    health, sent = frozen_at(0, canaries=True, until_s=600)
    assert health.state(600.0) == "ready"
    assert 600 / CONFIG.stall_s / 2 < len(sent) <= 600 / CONFIG.stall_s


def test_a_worker_with_progress_gets_no_canary_and_neither_does_an_idle_one() -> None:
    health, sent = frozen_at(600, canaries=False, until_s=600)
    assert (health.state(600.0), sent) == ("ready", [])
    health.ended("c", "ok", 600.0)
    assert not any(health.tick(600.0 + second) for second in range(600))


def test_a_failed_worker_is_asked_with_growing_pauses_and_returns() -> None:
    _, sent = frozen_at(0, canaries=False, until_s=400)
    pauses = [later - earlier for earlier, later in pairwise(sent)]
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[-1] <= CONFIG.most_canary_s + CONFIG.canary_s + 1
    health, _ = frozen_at(0, canaries=False, until_s=60)
    health.canary_answered(ok=True, now=61.0)
    assert health.state(61.0) == "ready"


def test_a_result_that_nobody_waits_for_fails_no_worker() -> None:
    health = WorkerHealth(CONFIG)
    health.canary_answered(ok=False, now=1.0)
    assert health.state(1.0) == "ready"
