"""Engines that answer nothing: they are read, and stopped if they hang; slow ones go on."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from shared.policy.serving.config import ServingConfig
from shared.policy.serving.model import (
    Admit,
    CheckLiveness,
    Command,
    HolderEnded,
    Liveness,
    LivenessChecked,
    LoadEngine,
    RunCanary,
    Stop,
)
from tests.shared.policy.serving.node_driver import Driver, on, refusal, service

CONFIG = ServingConfig(max_wait_s=1000.0, hung_after_s=10.0, first_probe_s=50.0)
A = on("a")


def used(**more: Any) -> Driver:
    """`a` resident on GPU 0, with a holder h1."""
    node = Driver(service("a", **more), config=CONFIG)
    node.resident(A)
    assert node.want("h1", A) == [Admit("h1", A)]
    return node


def checked(node: Driver, found: Liveness) -> list[Command]:
    node.node.checking.discard(A)
    return node.handle(LivenessChecked(A, found, "it answered nothing"))


def time_out(node: Driver, holder: str) -> list[Command]:
    del node.node.running[holder]
    return node.handle(HolderEnded(holder, ok=False, unanswered=True))


def fail(node: Driver, holder: str) -> list[Command]:
    del node.node.running[holder]
    return node.handle(HolderEnded(holder, ok=False, failed=True))


def fail_calls(node: Driver, *holders: str) -> None:
    """Let each of these calls be made, and fail."""
    for holder in holders:
        node.want(holder, A)
        assert fail(node, holder) == []


def test_an_engine_that_fails_three_calls_in_a_row_has_to_answer_a_canary() -> None:
    node = used()
    node.end("h1")
    fail_calls(node, "h2", "h3", "h4")
    assert node.want("h5", A) == [RunCanary(A)], "it is not admitted before"
    assert node.step(A) == [Admit("h5", A)]
    assert fail(node, "h5") == [], "the canary has begun a new count"
    fail_calls(node, "h6")
    assert node.want("h7", A) == [Admit("h7", A)]


def test_a_served_call_ends_the_count_of_failed_ones() -> None:
    node = used()
    node.end("h1")
    fail_calls(node, "h2", "h3")
    node.want("h4", A)
    node.end("h4")
    fail_calls(node, "h5", "h6")
    assert node.want("h7", A) == [Admit("h7", A)]


def test_an_engine_that_fails_calls_beside_one_that_it_serves_goes_on_with_its_answer() -> None:
    node = used(concurrency=4)
    for holder in ("h2", "h3", "h4"):
        node.want(holder, A)
    for holder in ("h2", "h3", "h4"):
        fail(node, holder)
    assert node.want("h5", A) == [], "no other is admitted meanwhile"
    assert node.end("h1") == [Admit("h5", A)]


def test_an_engine_that_answers_nothing_is_read_once() -> None:
    node = used()
    assert node.after(9.9) == []
    assert node.wake() == [CheckLiveness(A)]
    assert node.serving.next_wake_s() == inf, "until the check has ended"


def test_an_engine_without_holders_is_never_read() -> None:
    node = used()
    node.end("h1")
    assert node.serving.next_wake_s() == inf


def test_each_answer_puts_the_check_off() -> None:
    node = used(concurrency=2)
    node.after(8.0)
    node.want("h2", A)
    node.end("h2")
    assert node.after(9.0) == []
    assert node.wake() == [CheckLiveness(A)]


def test_a_hung_engine_is_stopped_and_its_holders_are_refused_for_a_repeat() -> None:
    node = used(concurrency=2)
    node.want("h2", A)
    node.wake()
    commands = checked(node, "hung")
    refused = [one for one in commands if not isinstance(one, Stop)]
    assert {getattr(one, "holder", "") for one in refused} == {"h1", "h2"}
    assert all("it hangs: it answered nothing" in getattr(one, "reason", "") for one in refused)
    assert Stop(A) in commands
    node.want("h3", A)
    assert node.step(A) == [LoadEngine(A)]
    assert node.step(A) == [RunCanary(A)]
    assert node.step(A) == [Admit("h3", A)]


def test_an_engine_that_hangs_again_and_again_is_quarantined() -> None:
    node = used()
    for number in range(2, CONFIG.most_deaths + 1):
        node.wake()
        checked(node, "hung")
        node.want(f"h{number}", A)
        for _ in range(3):
            node.step(A)
    node.wake()
    checked(node, "hung")
    assert "died 3 times in a row" in refusal(node.want("late", A)).reason


def test_a_slow_engine_goes_on_and_is_read_again() -> None:
    node = used(concurrency=2)
    node.wake()
    assert checked(node, "alive") == []
    assert node.want("h2", A) == [Admit("h2", A)], "it is not suspect"
    assert node.after(9.9) == []
    assert node.wake() == [CheckLiveness(A)]


def test_a_silent_engine_admits_nobody_until_it_answers() -> None:
    node = used(concurrency=2)
    node.wake()
    assert checked(node, "silent") == []
    assert node.want("h2", A) == []
    assert node.end("h1") == [Admit("h2", A)]


def test_a_silent_engine_passes_a_canary_when_its_holders_have_ended_without_an_answer() -> None:
    node = used(concurrency=2)
    node.wake()
    checked(node, "silent")
    node.want("h2", A)
    assert time_out(node, "h1") == [RunCanary(A)]
    assert node.step(A) == [Admit("h2", A)]


def test_a_silent_engine_whose_holders_have_ended_passes_a_canary_before_the_next_one() -> None:
    node = used()
    node.wake()
    time_out(node, "h1")
    assert checked(node, "silent") == []
    assert node.want("h2", A) == [RunCanary(A)]


def test_a_failed_canary_loads_it_again() -> None:
    node = used(concurrency=2)
    node.wake()
    checked(node, "silent")
    node.want("h2", A)
    time_out(node, "h1")
    assert node.step(A, "failed") == [Stop(A)]
    assert node.step(A) == [LoadEngine(A)]


def test_an_engine_that_can_be_read_and_answers_nobody_in_time_is_suspect() -> None:
    """Its scheduler is dead, for example."""
    node = used()
    time_out(node, "h1")
    assert node.want("h2", A) == [Admit("h2", A)]
    assert node.wake() == [CheckLiveness(A)]
    checked(node, "alive")
    node.want("h3", A)
    assert time_out(node, "h2") == [RunCanary(A)]


def test_holders_that_gave_up_make_no_engine_suspect() -> None:
    node = used(concurrency=2)
    node.end("h1", ok=False)
    node.want("h2", A)
    node.wake()
    checked(node, "alive")
    assert node.want("h3", A) == [Admit("h3", A)]


@pytest.mark.parametrize("found", ["silent", "hung"])
@pytest.mark.parametrize("others", [0, 1])
def test_an_answer_is_newer_than_the_check_beside_it(found: Liveness, others: int) -> None:
    node = used(concurrency=3)
    for number in range(others):
        node.want(f"other{number}", A)
    node.wake()
    node.end("h1")
    node.after(1.0)
    assert checked(node, found) == []
    assert node.want("h2", A) == [Admit("h2", A)]


def test_a_check_that_a_stop_has_overtaken_changes_nothing() -> None:
    node = used()
    node.wake()
    node.die(A)
    assert checked(node, "hung") == []
    node.step(A)
    node.want("h2", A)
    for _ in range(2):
        node.step(A)
    assert checked(node, "hung") == []
    assert "h2" in node.node.running
