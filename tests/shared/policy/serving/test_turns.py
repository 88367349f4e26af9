"""Who goes next: batches, minimum residency, overdue holders, fences and drains; the view (laws 4 and 9)."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from shared.policy.serving.config import ServingConfig
from shared.policy.serving.model import Abort, Admit, Evict, LoadEngine, Stop
from tests.shared.policy.serving.node_driver import Driver, on, refusal, service

CONFIG = ServingConfig(max_wait_s=20.0, max_drain_s=30.0, abort_limit_s=5.0, hung_after_s=inf)


def two(**more: Any) -> Driver:
    """`a` resident on GPU 0, and no room for `b` beside it."""
    node = Driver(service("a", **more), service("b"), config=CONFIG)
    node.resident(on("a"))
    return node


def test_an_idle_instance_stays_resident() -> None:
    node = two()
    assert node.after(100_000.0) == []
    assert node.want("h", on("a")) == [Admit("h", on("a"))]


def test_holders_of_a_resident_service_go_before_a_swap() -> None:
    node = two()
    node.want("h1", on("a"))
    node.want("h2", on("b"))
    node.want("h3", on("a"))
    assert node.end("h1") == [Admit("h3", on("a"))]
    assert node.end("h3") == [Evict(on("a"), "asleep2")]


def test_minimum_residency_keeps_an_idle_instance_until_its_end() -> None:
    node = two(min_residency_s=8.0)
    assert node.want("h", on("b")) == []
    assert node.serving.next_wake_s() == 8.0
    assert node.wake() == [Evict(on("a"), "asleep2")]


def test_an_overdue_holder_ends_minimum_residency() -> None:
    node = two(min_residency_s=500.0)
    assert node.want("h", on("b")) == []
    assert node.serving.next_wake_s() == CONFIG.max_wait_s
    assert node.wake() == [Evict(on("a"), "asleep2")]


def test_an_overdue_holder_fences_a_running_service_and_goes_before_its_waiting_holders() -> None:
    node = two()
    node.want("h1", on("a"))
    node.want("h2", on("b"))
    node.wake()
    assert node.view(on("a")).state == "draining"
    assert "b on GPU 0" in node.view(on("a")).why
    assert node.want("h3", on("a")) == []
    assert node.end("h1") == [Evict(on("a"), "asleep2")]


def test_the_wait_of_an_instance_is_that_of_its_oldest_holder() -> None:
    node = two(min_residency_s=500.0)
    node.want("h1", on("b"))
    node.after(15.0)
    node.want("h2", on("b"))
    assert node.serving.next_wake_s() == CONFIG.max_wait_s
    assert node.wake() == [Evict(on("a"), "asleep2")]


def test_a_fence_ends_if_the_overdue_holder_gives_up() -> None:
    node = two(concurrency=2)
    node.want("h1", on("a"))
    node.want("h2", on("b"))
    node.wake()
    node.want("h3", on("a"))
    assert node.end("h2") == [Admit("h3", on("a"))]
    assert node.view(on("a")).state == "running"


def test_holders_that_do_not_end_are_aborted_and_then_the_engine_is_stopped() -> None:
    node = two()
    node.want("h1", on("a"))
    node.want("h2", on("b"))
    node.wake()
    assert node.wake() == [Abort(on("a"))]
    assert node.now == CONFIG.max_wait_s + CONFIG.max_drain_s
    commands = node.wake()
    assert "did not end 30 s after the fence" in refusal(commands).reason
    assert Stop(on("a")) in commands
    assert node.step(on("a")) == [LoadEngine(on("b"))]


def test_the_oldest_overdue_holder_goes_first_on_all_its_gpus() -> None:
    """One on two GPUs is not passed for ever by holders on one of them."""
    node = Driver(service("a", 5.0), service("b", 5.0), config=CONFIG)
    node.resident(on("a"))
    node.resident(on("a", 1))
    node.want("h1", on("a"))
    node.want("h2", on("a", 1))
    node.want("wide", on("b", 0, 2))
    node.after(1.0)
    node.want("h3", on("a"))
    assert node.end("h1") == [Admit("h3", on("a"))], "not overdue yet"
    node.after(CONFIG.max_wait_s - 1.0)
    node.want("h4", on("a"))
    assert node.end("h3") == []
    assert node.end("h2") == [LoadEngine(on("b", 0, 2))]


def test_degrees_of_a_service_are_instances_of_their_own() -> None:
    node = Driver(service("a", 5.0), config=CONFIG)
    node.resident(on("a"))
    assert node.want("h", on("a", 0, 2)) == [LoadEngine(on("a", 0, 2))]
    assert [shown.instance for shown in node.serving.view()] == [on("a"), on("a", 0, 2)]


def test_reading_the_state_changes_nothing() -> None:
    node = two()
    node.want("h1", on("a"))
    node.want("h2", on("b"))
    before, wake_s = node.serving.view(), node.serving.next_wake_s()
    assert node.serving.view() == before
    assert node.serving.next_wake_s() == wake_s
    shown = node.view(on("a"))
    assert (shown.state, shown.running, shown.device_gb, shown.measured_s) == (
        "running",
        ("h1",),
        10.0,
        {"restore cold": 60.0},
    )
    assert node.view(on("b")).waiting == ("h2",)
    assert node.end("h1") == [Evict(on("a"), "asleep2")]


def test_other_gpus_are_not_looked_at() -> None:
    """The instances that a stimulus reads are those on its GPUs, and not all of the node."""
    node = Driver(service("a", 1.0, degrees=(1,)), device_gb=(16.0,) * 8)
    for gpu in range(8):
        node.resident(on("a", gpu))
    state = node.serving._state

    class Unread(dict[Any, Any]):
        def items(self) -> Any:
            raise AssertionError("read")

        def values(self) -> Any:
            raise AssertionError("read")

    state.gpus[1:] = [Unread(gpu) for gpu in state.gpus[1:]]
    assert node.want("h", on("a")) == [Admit("h", on("a"))]
    with pytest.raises(AssertionError, match="read"):
        node.want("h2", on("a", 1))
