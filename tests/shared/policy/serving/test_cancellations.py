"""Cancellations of loads and restores for which others would wait (law 11)."""

from __future__ import annotations

from math import inf

import pytest

from shared.policy.serving.cancellations import PAUSE
from shared.policy.serving.config import ServingConfig
from shared.policy.serving.model import Admit, CancelStep, LoadEngine, Restore, RunCanary, Stop
from shared.policy.serving.yields import LATE
from tests.shared.policy.serving.node_driver import Driver, on, refusal, service

CONFIG = ServingConfig(max_wait_s=20.0, first_probe_s=10.0, most_probe_s=600.0, hung_after_s=inf)
LATE_S = LATE * CONFIG.restore_s["cold"]


def two() -> Driver:
    """`good` is resident and idle, and `broken` has room beside it."""
    node = Driver(service("good", 8.0), service("broken", 8.0), config=CONFIG)
    node.resident(on("good"))
    return node


def probed(node: Driver) -> None:
    """Let the load of `broken` fail, and begin its probe."""
    node.want("h", on("broken"))
    node.step(on("broken"), "failed")
    node.step(on("broken"))
    assert node.wake() == [LoadEngine(on("broken"))]


def test_a_probe_is_cancelled_as_soon_as_a_holder_of_another_instance_waits() -> None:
    node = two()
    probed(node)
    assert node.after(5.0) == []
    assert node.want("g", on("good")) == [CancelStep(on("broken"))]
    assert node.view(on("broken")).why == "its load is cancelled: a holder waits for good on GPU 0"
    assert node.step(on("broken"), "failed") == [Stop(on("broken"))]
    assert node.step(on("broken")) == [Admit("g", on("good"))]


def test_a_probe_that_was_cancelled_comes_again_after_the_same_pause() -> None:
    node = two()
    probed(node)
    node.want("g", on("good"))
    node.step(on("broken"), "failed")
    node.step(on("broken"))
    node.end("g")
    assert node.view(on("broken")).state == "quarantined"
    assert node.serving.next_wake_s() - node.now == CONFIG.first_probe_s
    assert node.wake() == [LoadEngine(on("broken"))]


def test_a_load_whose_holders_have_gone_is_cancelled_and_begins_again_with_the_next_one() -> None:
    node = two()
    node.want("h", on("broken"), 15.0)
    assert node.want("g", on("good")) == []
    assert CancelStep(on("broken")) in node.after(15.0)
    node.step(on("broken"), "failed")
    assert node.step(on("broken")) == [Admit("g", on("good"))]
    assert node.view(on("broken")).state == "cold"
    node.end("g")
    assert node.want("h2", on("broken")) == [LoadEngine(on("broken"))]


def test_a_load_that_nobody_waits_for_goes_on_while_nobody_else_needs_its_gpus() -> None:
    node = two()
    node.want("h", on("broken"), 15.0)
    node.after(15.0)
    node.want("g", on("good", 1))
    node.step(on("broken"))
    node.step(on("broken"))
    assert node.view(on("broken")).state == "resident"


def test_a_holder_that_arrives_during_a_cancellation_gets_the_next_load() -> None:
    node = two()
    probed(node)
    node.want("g", on("good"))
    assert node.want("h2", on("broken")) == []
    assert node.step(on("broken"), "failed") == [Stop(on("broken"))]
    assert node.step(on("broken")) == [Admit("g", on("good"))]
    assert node.end("g") == [LoadEngine(on("broken"))]


def test_a_load_with_holders_is_cancelled_when_it_is_late_and_another_holder_is_overdue() -> None:
    node = two()
    node.want("h", on("broken"))
    node.after(5.0)
    assert node.want("g", on("good")) == []
    assert node.after(CONFIG.max_wait_s) == [], "it may take longer than the wait of others"
    assert node.serving.next_wake_s() == LATE_S
    assert node.wake() == [CancelStep(on("broken"))]
    commands = node.step(on("broken"), "failed")
    assert refusal(commands).holder == "h"
    assert refusal(commands).retry_in_s == PAUSE * LATE_S
    assert node.step(on("broken")) == [Admit("g", on("good"))]
    node.end("g")
    assert node.serving.next_wake_s() - node.now == PAUSE * LATE_S


def test_a_load_that_is_declared_as_slow_is_late_after_twice_that_time() -> None:
    slow = service("broken", 8.0, load_s=10 * CONFIG.restore_s["cold"])
    node = Driver(service("good", 8.0), slow, config=CONFIG)
    node.resident(on("good"))
    node.want("h", on("broken"))
    node.want("g", on("good"))
    assert node.after(CONFIG.max_wait_s) == []
    assert node.serving.next_wake_s() == 10 * LATE_S
    assert node.wake() == [CancelStep(on("broken"))]


def test_a_load_that_was_late_gets_twice_the_time_so_that_a_slow_engine_becomes_resident() -> None:
    node = two()
    for number in range(2):
        node.want(f"h{number}", on("broken"))
        began_s = node.now
        node.want(f"g{number}", on("good"))
        while node.node.cancelled == set():
            node.wake()
        assert node.now - began_s == LATE_S * 2**number
        node.step(on("broken"), "failed")
        node.step(on("broken"))
        node.end(f"g{number}")
        node.now = node.serving.next_wake_s()
    node.want("h", on("broken"))
    node.want("g", on("good"))
    node.after(3 * LATE_S)
    assert node.step(on("broken"), took_s=3 * LATE_S) == [RunCanary(on("broken"))]
    node.step(on("broken"))
    assert node.serving._state.instances[on("broken")].late == 0


def test_a_load_that_succeeds_before_its_cancellation_is_used() -> None:
    node = two()
    probed(node)
    node.want("g", on("good"))
    assert node.step(on("broken")) == [RunCanary(on("broken"))]
    assert node.step(on("broken")) == [Admit("g", on("good"))]
    assert node.view(on("broken")).state == "resident"


@pytest.mark.parametrize("waits", [True, False], ids=["a holder waits", "nobody waits"])
def test_a_restore_is_cancelled_only_when_it_is_late(waits: bool) -> None:
    node = Driver(service("a"), service("b"), config=CONFIG)
    node.resident(on("a"))
    node.resident(on("b"), evictions=1)
    node.want("h", on("a"))
    node.step(on("b"))
    assert node.view(on("a")).state == "restoring"
    if not waits:
        node.end("h")
    assert node.want("g", on("b")) == []
    late_s = LATE * CONFIG.restore_s["asleep2"]
    assert node.serving.next_wake_s() - node.now == (CONFIG.max_wait_s if waits else late_s)
    assert node.wake() == [CancelStep(on("a"))]
    assert Stop(on("a")) in node.step(on("a"), "failed")
    assert node.step(on("a")) == [Restore(on("b"))]


def test_a_load_of_a_removed_service_is_cancelled_for_others() -> None:
    node = two()
    node.want("h", on("broken"))
    node.want("g", on("good"))
    assert CancelStep(on("broken")) in node.remove("broken")
    node.step(on("broken"), "failed")
    assert node.step(on("broken")) == [Admit("g", on("good"))]
    assert [shown.instance for shown in node.serving.view()] == [on("good")]
