"""Late loads and restores that offer their GPUs to the services that wait at the leader (law 11)."""

from __future__ import annotations

from math import inf

from services.gpu_manager.executor import BUSY_RETRY_S
from shared.policy.serving.cancellations import PAUSE
from shared.policy.serving.config import ServingConfig
from shared.policy.serving.model import (
    Admit,
    CancelStep,
    Command,
    LoadEngine,
    RefuseHolder,
    RunCanary,
    Stop,
    YieldChanged,
)
from shared.policy.serving.yields import LATE
from tests.shared.policy.serving.node_driver import Driver, on, refusal, service

CONFIG = ServingConfig(max_wait_s=20.0, yield_s=0.75, first_probe_s=10.0, most_probe_s=600.0, hung_after_s=inf)
LATE_S = LATE * CONFIG.restore_s["cold"]
BROKEN = on("broken")


def one_gpu() -> Driver:
    """Two services that do not fit on the GPU together. `good` was there before, and its load took a second."""
    node = Driver(
        service("good", levels=("cold",)), service("broken", levels=("cold",)), config=CONFIG, device_gb=(16.0,)
    )
    node.want("first", on("good"))
    node.step(on("good"), took_s=1.0)
    node.step(on("good"))
    node.end("first")
    return node


def loading(node: Driver, holder: str = "b") -> None:
    """Begin the load of `broken` for a holder. The leader grants the GPU to no other service meanwhile."""
    if Stop(on("good")) in node.want(holder, BROKEN):
        assert node.step(on("good")) == [LoadEngine(BROKEN)]


def is_offered(commands: list[Command]) -> bool:
    return YieldChanged(BROKEN, yields=True) in commands


def until_yield(node: Driver) -> list[Command]:
    while True:
        commands = node.wake()
        if is_offered(commands):
            return commands


def test_its_own_holders_come_back_after_the_yield() -> None:
    """Else the leader would grant them other GPUs, where another load would begin."""
    assert ServingConfig().yield_s < min(ServingConfig().retry_s, BUSY_RETRY_S)


def test_a_late_load_gives_its_holders_back_and_goes_on() -> None:
    node = one_gpu()
    loading(node)
    began_s = node.now
    commands = until_yield(node)
    assert node.now - began_s == LATE_S
    assert commands[0] == YieldChanged(BROKEN, yields=True), "the report leaves before the holder's end"
    assert refusal(commands).holder == "b"
    assert refusal(commands).retry_in_s == CONFIG.retry_s
    view = node.view(BROKEN)
    assert (view.state, view.yields) == ("loading", True)
    assert view.why == "its load is late: it has lasted 120 s, so its GPUs are offered to others"
    (refused,) = node.want("b", BROKEN)
    assert isinstance(refused, RefuseHolder), "the leader has granted it before it has read the report"
    assert node.wake() == [YieldChanged(BROKEN, yields=False)]
    assert node.serving.next_wake_s() == inf, "nobody waits"


def test_a_holder_that_was_granted_meanwhile_cancels_the_load_at_once_as_a_late_one() -> None:
    node = one_gpu()
    loading(node)
    until_yield(node)
    assert node.want("g", on("good")) == [CancelStep(BROKEN)]
    assert node.step(BROKEN, "failed") == [Stop(BROKEN)]
    assert node.step(BROKEN) == [LoadEngine(on("good"))]
    node.step(on("good"), took_s=1.0)
    assert node.step(on("good")) == [Admit("g", on("good"))]
    node.end("g")
    view = node.view(BROKEN)
    assert view.state == "quarantined"
    assert view.probe_s is not None
    assert view.probe_s >= PAUSE * LATE_S, "so it takes a fifth of the time of the GPU at most"


def test_a_load_that_was_late_may_last_twice_as_long_before_it_yields_again() -> None:
    node = one_gpu()
    loading(node)
    until_yield(node)
    node.want("g", on("good"))
    node.step(BROKEN, "failed")
    node.step(BROKEN)
    node.step(on("good"), took_s=1.0)
    node.step(on("good"))
    node.end("g")
    while node.view(BROKEN).state == "quarantined":
        node.wake()
    loading(node, "again")
    began_s = node.now
    until_yield(node)
    assert node.now - began_s == 2 * LATE_S


def test_a_slow_engine_whose_gpu_nobody_needs_becomes_resident_for_the_holders_that_come_back() -> None:
    node = one_gpu()
    loading(node)
    until_yield(node)
    assert node.wake() == [YieldChanged(BROKEN, yields=False)]
    assert node.want("b", BROKEN) == [], "it waits for the load that goes on"
    began_s = node.now
    until_yield(node)
    assert node.now - began_s == CONFIG.max_wait_s
    node.wake()
    node.want("b", BROKEN)
    assert node.step(BROKEN, took_s=200.0) == [RunCanary(BROKEN)]
    assert node.step(BROKEN) == [Admit("b", BROKEN)]
    assert node.view(BROKEN).measured_s["restore cold"] == 200.0
    node.end("b")
    node.want("g", on("good"), 1.0)
    assert node.view(BROKEN).state in ("resident", "evicting")


def test_a_load_that_ends_while_it_yields_may_be_waited_for_again() -> None:
    node = one_gpu()
    loading(node)
    until_yield(node)
    assert node.step(BROKEN, took_s=121.0) == [RunCanary(BROKEN)]
    assert not node.view(BROKEN).yields
    node.step(BROKEN)
    assert node.want("b", BROKEN) == [Admit("b", BROKEN)]


def test_a_load_in_its_measured_time_does_not_yield() -> None:
    node = one_gpu()
    loading(node)
    node.step(BROKEN, took_s=100.0)
    node.step(BROKEN)
    node.end("b")
    node.want("g", on("good"))
    node.after(CONFIG.max_wait_s)
    node.step(BROKEN)
    node.step(on("good"), took_s=1.0)
    node.step(on("good"))
    node.end("g")
    loading(node, "again")
    began_s = node.now
    until_yield(node)
    assert node.now - began_s == LATE * 100.0


def test_a_load_without_holders_does_not_yield() -> None:
    node = one_gpu()
    loading(node)
    node.end("b")
    assert node.serving.next_wake_s() == inf
    node.after(LATE_S)
    assert refusal(node.want("b2", BROKEN)).holder == "b2", "it is late already: others go first"
