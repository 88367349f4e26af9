"""Failures of engines: out of memory, wrong canaries, deaths, quarantine and probes (law 5)."""

from __future__ import annotations

import pytest

from shared.policy.serving.config import ServingConfig
from shared.policy.serving.model import (
    Admit,
    Command,
    EngineDied,
    Evict,
    Level,
    LoadEngine,
    ModelServiceSpec,
    RefuseHolder,
    Restore,
    RunCanary,
    Stepped,
    Stop,
)
from tests.shared.policy.serving.node_driver import Driver, on, refusal, service

CONFIG = ServingConfig(first_probe_s=10.0, most_probe_s=25.0)


def quarantined(node: Driver) -> None:
    """Quarantine `a` by a load that fails."""
    node.want("h", on("a"))
    node.step(on("a"), "failed")
    node.step(on("a"))
    assert node.view(on("a")).state == "quarantined"


def test_a_restore_out_of_memory_evicts_the_next_lru_instance_once_and_then_quarantines() -> None:
    node = Driver(service("a", 12.0), service("b", 2.0), service("x", 14.0), config=CONFIG)
    node.resident(on("a"))
    node.resident(on("x"), evictions=1)
    node.resident(on("b"))
    node.want("h", on("a"))
    assert node.step(on("x")) == [Restore(on("a"))]
    assert node.step(on("a"), "oom") == [Evict(on("b"), "asleep2")]
    assert node.step(on("b")) == [Restore(on("a"))]
    commands = node.step(on("a"), "oom")
    assert "its restore ran out of memory" in refusal(commands).reason
    assert Stop(on("a")) in commands


def test_a_load_out_of_memory_stops_what_is_left_and_is_tried_again_after_an_eviction() -> None:
    node = Driver(service("a", 8.0), service("b", 4.0))
    node.resident(on("b"))
    node.want("h", on("a"))
    assert node.step(on("a"), "oom") == [Evict(on("b"), "asleep2"), Stop(on("a"))]
    assert node.step(on("a")) == []
    assert node.step(on("b")) == [LoadEngine(on("a"))]
    assert node.step(on("a")) == [RunCanary(on("a"))]
    assert node.step(on("a")) == [Admit("h", on("a"))]


@pytest.mark.parametrize("step", ["load", "restore"])
def test_out_of_memory_beside_an_engine_that_died_waits_for_its_stop_and_evicts_no_other(step: str) -> None:
    """What the dead engine uses may be what lacks, so the eviction of the next LRU instance is still possible."""
    node = Driver(service("a", 8.0), service("b", 2.0), service("c", 2.0), service("x", 12.0))
    if step == "restore":
        node.resident(on("a"))
        node.resident(on("x"), evictions=1)
    node.resident(on("b"))
    node.resident(on("c"))
    node.want("h", on("a"))
    if step == "restore":
        node.step(on("x"))
    assert node.node.steps[on("a")][0] == step
    assert node.die(on("c"), "it has more memory than it declares") == []
    commands = node.step(on("a"), "oom")
    assert commands == [Stop(on("c"))] if step == "restore" else set(commands) == {Stop(on("a")), Stop(on("c"))}
    if step == "load":
        node.step(on("a"))
    again = LoadEngine(on("a")) if step == "load" else Restore(on("a"))
    assert node.step(on("c")) == [again]
    assert node.step(on("a"), "oom")[0] == Evict(on("b"), "asleep2")


def test_out_of_memory_of_a_probe_beside_an_engine_that_died_quarantines_nothing() -> None:
    node = Driver(service("a", 8.0), service("b", 2.0), config=CONFIG)
    quarantined(node)
    node.resident(on("b"))
    node.wake()
    node.die(on("b"))
    node.step(on("a"), "oom")
    node.step(on("a"))
    assert node.step(on("b")) == [LoadEngine(on("a"))]


def test_out_of_memory_with_nothing_to_evict_quarantines() -> None:
    node = Driver(service("a"), config=CONFIG)
    node.want("h", on("a"))
    refused = refusal(node.step(on("a"), "oom"))
    assert "ran out of memory: injected" in refused.reason
    assert refused.retry_in_s == CONFIG.first_probe_s


def test_a_wrong_canary_loads_the_engine_once_more_and_then_quarantines() -> None:
    node = Driver(service("a"), config=CONFIG)
    node.want("h", on("a"))
    node.step(on("a"))
    assert node.step(on("a"), "failed") == [Stop(on("a"))]
    assert node.step(on("a")) == [LoadEngine(on("a"))]
    assert node.step(on("a")) == [RunCanary(on("a"))]
    commands = node.step(on("a"), "failed")
    assert isinstance(commands[0], RefuseHolder)
    assert "its canary failed" in commands[0].reason
    assert commands[1:] == [Stop(on("a"))]


def test_a_failed_restore_loads_the_engine() -> None:
    node = Driver(service("a"), service("b"))
    node.resident(on("a"))
    node.resident(on("b"), evictions=1)
    node.want("h", on("a"))
    assert node.step(on("b")) == [Restore(on("a"))]
    assert node.step(on("a"), "failed") == [Stop(on("a"))]
    assert node.step(on("a")) == [LoadEngine(on("a"))]


def test_holders_of_a_quarantined_instance_are_refused_with_the_time_of_the_probe() -> None:
    node = Driver(service("a"), config=CONFIG)
    quarantined(node)
    node.after(4.0)
    refused = refusal(node.want("h2", on("a")))
    assert refused.reason == "a on GPU 0 is quarantined: its load failed: injected"
    assert refused.retry_in_s == pytest.approx(6.0)


def test_the_probe_follows_by_itself_and_makes_the_instance_resident() -> None:
    node = Driver(service("a"), config=CONFIG)
    quarantined(node)
    assert node.wake() == [LoadEngine(on("a"))]
    assert node.now == CONFIG.first_probe_s
    node.step(on("a"))
    node.step(on("a"))
    assert node.view(on("a")).state == "resident"
    assert node.want("h2", on("a")) == [Admit("h2", on("a"))]


def test_the_pause_before_a_probe_doubles_up_to_a_cap_and_a_success_ends_that() -> None:
    node = Driver(service("a"), config=CONFIG)
    quarantined(node)
    pauses = [node.serving.next_wake_s() - node.now]
    for _ in range(3):
        node.wake()
        node.step(on("a"), "failed")
        node.step(on("a"))
        pauses.append(node.serving.next_wake_s() - node.now)
    assert pauses == [10.0, 20.0, 25.0, 25.0]
    node.wake()
    node.step(on("a"))
    node.step(on("a"))
    node.want("h1", on("a"))
    node.end("h1")
    node.die(on("a"))
    node.step(on("a"))
    quarantined(node)
    assert node.serving.next_wake_s() - node.now == CONFIG.first_probe_s


def test_a_probe_evicts_nothing_but_a_holder_does() -> None:
    node = Driver(service("a"), service("b"), config=CONFIG)
    quarantined(node)
    node.resident(on("b"))
    assert node.wake() == []
    assert node.view(on("a")).state == "cold"
    assert node.want("h2", on("a")) == [Evict(on("b"), "asleep2")]


def test_a_probe_waits_for_free_memory() -> None:
    node = Driver(service("a"), service("b"), config=CONFIG)
    quarantined(node)
    node.resident(on("b"))
    node.wake()
    node.remove("b")
    assert node.step(on("b")) == [LoadEngine(on("a"))]


def test_holders_of_a_dead_engine_are_refused_and_the_waiting_ones_get_a_new_one() -> None:
    node = Driver(service("a"))
    node.resident(on("a"))
    node.want("h1", on("a"))
    node.want("h2", on("a"))
    commands = node.die(on("a"), "exit status 9")
    assert refusal(commands) == RefuseHolder("h1", "the engine of a on GPU 0 died: exit status 9", 60.0)
    assert Stop(on("a")) in commands
    assert node.step(on("a")) == [LoadEngine(on("a"))]


def die_with_a_holder(node: Driver) -> None:
    """LoadEngine `a` and let it die before its holder has ended."""
    node.want(f"d{node.now}", on("a"))
    node.step(on("a"))
    node.step(on("a"))
    node.die(on("a"))
    node.step(on("a"))
    node.after(1.0)


def test_three_deaths_without_a_success_quarantine() -> None:
    node = Driver(service("a"), config=CONFIG)
    for _ in range(2):
        die_with_a_holder(node)
    node.resident(on("a"))
    node.die(on("a"))
    node.step(on("a"))
    die_with_a_holder(node)
    assert node.view(on("a")).state == "cold", "a holder ended well between them"
    die_with_a_holder(node)
    assert node.view(on("a")).state == "quarantined"
    assert "died 3 times in a row, last: exit status 1" in node.view(on("a")).why


def test_a_holder_that_failed_is_no_success() -> None:
    node = Driver(service("a"), config=CONFIG)
    for _ in range(2):
        die_with_a_holder(node)
    node.want("h", on("a"))
    node.step(on("a"))
    node.step(on("a"))
    node.end("h", ok=False)
    node.die(on("a"))
    node.step(on("a"))
    assert node.view(on("a")).state == "quarantined"


def test_the_death_of_an_engine_during_a_step_fails_the_step() -> None:
    node = Driver(service("a"), config=CONFIG)
    node.want("h", on("a"))
    assert node.die(on("a"), "exit status 2") == []
    assert "its load failed: exit status 2" in refusal(node.step(on("a"))).reason


def test_a_stop_waits_for_the_load_of_another_engine_on_its_gpu() -> None:
    """Memory that becomes free during a load confuses engines that measure it (vLLM); and one writer is the law."""
    node = Driver(service("a", 5.0), service("b", 5.0))
    node.resident(on("a"))
    node.want("h", on("b"))
    assert node.die(on("a")) == []
    assert node.step(on("b")) == [RunCanary(on("b"))]
    assert node.step(on("b")) == [Admit("h", on("b")), Stop(on("a"))]


def test_a_failure_of_one_service_stops_no_other() -> None:
    node = Driver(service("a", 5.0), service("b", 5.0), config=CONFIG)
    quarantined(node)
    node.resident(on("b"))
    assert node.want("h2", on("b")) == [Admit("h2", on("b"))]


def test_stimuli_about_what_is_not_known_change_nothing() -> None:
    node = Driver(service("a"))
    node.resident(on("a"))
    before = node.serving.view()
    for stimulus in (EngineDied(on("x"), "x"), Stepped(on("x"), "load", "ok"), Stepped(on("a"), "evict", "failed")):
        assert node.handle(stimulus) == []
    assert node.serving.view() == before


# ---- engines that were given by their address ------------------------------------------------------------------------


def given() -> ModelServiceSpec:
    return service("a", levels=("asleep2",), asleep_gb={"asleep2": 7.0})


def stop_ends(node: Driver, left: Level) -> list[Command]:
    stepped = node.node.finish(on("a"), "ok", node.now)
    return node.handle(stepped._replace(left=left))


def hung(node: Driver) -> None:
    """A given engine that is resident, hangs, and cannot be put to sleep."""
    node.resident(on("a"))
    node.die(on("a"), "it hangs")
    node.step(on("a"), "failed")
    assert node.view(on("a")).state == "quarantined"


def test_a_given_engine_that_hangs_fences_its_gpu_until_a_probe_finds_it_asleep() -> None:
    node = Driver(given(), service("b", 9.0), config=CONFIG)
    hung(node)
    assert "holds it" in refusal(node.want("h1", on("b"))).reason
    assert node.wake() == [Stop(on("a"))]
    node.step(on("a"), "failed")
    assert "holds it" in refusal(node.want("h2", on("b"))).reason
    assert node.wake() == [Stop(on("a"))]
    assert stop_ends(node, "asleep2") == []
    assert node.view(on("a")).device_gb == 7.0, "it sleeps there"
    assert node.want("h3", on("b")) == [LoadEngine(on("b"))]


def test_memory_of_a_given_engine_that_was_left_asleep_is_not_given_to_another_one() -> None:
    node = Driver(given(), service("b", 10.0), config=CONFIG)
    hung(node)
    node.wake()
    stop_ends(node, "asleep2")
    assert node.want("h", on("b"), 5.0) == [], "7 + 10 GB are more than 16"
    assert refusal(node.after(5.0)).holder == "h"
    assert node.want("h2", on("a")) == [LoadEngine(on("a"))]


def test_a_given_engine_that_is_gone_holds_nothing() -> None:
    node = Driver(given(), service("b", 10.0), config=CONFIG)
    hung(node)
    node.wake()
    stop_ends(node, "cold")
    assert node.view(on("a")).device_gb == 0.0
    assert node.want("h", on("b")) == [LoadEngine(on("b"))]


def test_of_a_removed_service_whose_engine_was_given_nothing_stays() -> None:
    node = Driver(given(), config=CONFIG)
    hung(node)
    node.wake()
    stop_ends(node, "asleep2")
    node.remove("a")
    assert node.serving.view() == []
