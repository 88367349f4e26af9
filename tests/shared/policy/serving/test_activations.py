"""Steps that make an instance resident: their order, room, levels, and what runs at the same time (laws 2 and 3)."""

from __future__ import annotations

from shared.policy.serving.model import (
    Admit,
    EngineMemory,
    Evict,
    LoadEngine,
    ModelServiceSpec,
    Restore,
    RunCanary,
    Stop,
)
from tests.shared.policy.serving.node_driver import LEVELS, Driver, on, refusal, service


def both(name: str, awake_gb: float = 10.0, **more: object) -> ModelServiceSpec:
    """A service with all levels, whose level 1 needs host memory."""
    return service(name, awake_gb, **({"levels": LEVELS, "host_gb": {"asleep1": awake_gb}} | more))


def test_each_step_begins_when_the_one_before_is_confirmed() -> None:
    node = Driver(service("a"), service("b"))
    node.resident(on("a"))
    assert node.want("h", on("b")) == [Evict(on("a"), "asleep2")]
    assert node.step(on("a")) == [LoadEngine(on("b"))]
    assert node.step(on("b")) == [RunCanary(on("b"))]
    assert node.step(on("b")) == [Admit("h", on("b"))]
    node.end("h")
    assert node.want("h2", on("a")) == [Evict(on("b"), "asleep2")]
    assert node.step(on("b")) == [Restore(on("a"))]


def test_nothing_is_evicted_if_the_memory_is_enough() -> None:
    node = Driver(service("a", 8.0), service("b", 8.0))
    node.resident(on("a"))
    assert node.want("h", on("b")) == [LoadEngine(on("b"))]


def test_an_engine_of_a_degree_with_less_memory_fits_beside_another() -> None:
    split = service("a", 12.0, memory_by={2: EngineMemory(7.0, {"asleep2": 1.0}, {})})
    node = Driver(split, service("b", 8.0))
    node.resident(on("b"))
    assert node.want("h1", on("a", 0, 2)) == [LoadEngine(on("a", 0, 2))]
    assert node.step(on("a", 0, 2)) == [RunCanary(on("a", 0, 2))]
    node.step(on("a", 0, 2))
    assert node.view(on("a", 0, 2)).device_gb == 7.0
    node.end("h1")
    assert set(node.want("h2", on("a"))) == {Evict(on("b"), "asleep2"), Evict(on("a", 0, 2), "asleep2")}
    node.step(on("b"))
    assert node.step(on("a", 0, 2)) == [LoadEngine(on("a"))]
    assert (node.view(on("a")).device_gb, node.view(on("a", 0, 2)).device_gb) == (12.0, 1.0)


def test_host_memory_is_that_of_the_degree() -> None:
    """A sleeping engine on two GPUs has 8 GB there, and the budget of 8 is enough for it. One on a GPU has 12."""
    split = both("a", 12.0, memory_by={2: EngineMemory(7.0, {}, {"asleep1": 8.0})})
    for size, expected in ((2, Evict(on("a", 0, 2), "asleep1")), (1, Evict(on("a"), "asleep2"))):
        node = Driver(split, service("b", 14.0), host_gb=8.0)
        node.resident(on("a", 0, size))
        assert node.want("h", on("b")) == [expected]
        assert node.view(on("a", 0, size)).host_gb == (8.0 if size == 2 else 0.0)


def test_evictions_for_one_activation_run_at_the_same_time_and_it_waits_for_all() -> None:
    node = Driver(service("a", 8.0), service("b", 8.0), service("c", 16.0))
    node.resident(on("a"))
    node.resident(on("b"))
    node.resident(on("b", 1))
    evictions = node.want("h", on("c", 0, 2))
    assert set(evictions) == {Evict(one, "asleep2") for one in (on("a"), on("b"), on("b", 1))}
    assert node.step(on("b")) == []
    assert node.step(on("a")) == []
    assert node.step(on("b", 1)) == [LoadEngine(on("c", 0, 2))]


def test_an_activation_owns_its_gpus() -> None:
    """Neither a resident instance that shares a GPU nor another activation goes on beside it."""
    node = Driver(service("a", 5.0), service("b", 5.0), service("c", 5.0))
    node.resident(on("a"))
    node.want("h1", on("b", 0, 2))
    assert node.want("h2", on("a")) == []
    assert node.want("h3", on("c", 1)) == []
    node.step(on("b", 0, 2))
    assert node.step(on("b", 0, 2)) == [Admit("h1", on("b", 0, 2))]
    assert node.end("h1") == [Admit("h2", on("a")), LoadEngine(on("c", 1))]


def test_a_victim_that_shares_a_gpu_with_a_load_waits_for_its_end() -> None:
    node = Driver(service("a", 8.0), service("b", 8.0), service("c", 10.0))
    node.resident(on("a", 0, 2))
    node.want("h1", on("b", 1))
    assert node.want("h2", on("c", 0)) == []
    assert node.step(on("b", 1)) == [RunCanary(on("b", 1))]
    assert node.step(on("b", 1)) == [Admit("h1", on("b", 1)), Evict(on("a", 0, 2), "asleep2")]
    assert node.step(on("a", 0, 2)) == [LoadEngine(on("c", 0))]


def test_victims_are_chosen_by_priority_and_then_by_last_use() -> None:
    node = Driver(
        service("kept", 5.0), service("old", 5.0, priority=3), service("new", 5.0, priority=3), service("x", 5.0)
    )
    for name in ("kept", "old", "new"):
        node.resident(on(name))
        node.after(1.0)
    assert node.want("h", on("x")) == [Evict(on("old"), "asleep2")]
    node.step(on("old"))
    node.step(on("x"))
    node.step(on("x"))
    node.end("h")
    assert node.want("h2", on("old")) == [Evict(on("new"), "asleep2")]


def test_the_level_is_the_one_with_the_least_measured_sum() -> None:
    node = Driver(both("a"), both("b"))
    times = node.serving._state.times
    for level, evict_s, restore_s in (("asleep1", 10.57, 2.19), ("asleep2", 0.31, 6.53)):
        times.record(on("a"), "evict", level, evict_s)  # type: ignore[arg-type]
        times.record(on("a"), "restore", level, restore_s)  # type: ignore[arg-type]
    node.resident(on("a"))
    assert node.want("h", on("b")) == [Evict(on("a"), "asleep2")]


def test_a_step_is_measured_and_changes_the_next_choice() -> None:
    node = Driver(both("a"), both("b"))
    node.resident(on("a"))
    assert node.want("h", on("b")) == [Evict(on("a"), "asleep1")], "5 + 2 s as 0.5 + 6.5 s"
    node.step(on("a"), took_s=30.0)
    assert node.view(on("a")).measured_s["evict asleep1"] == 30.0
    node.step(on("b"))
    node.step(on("b"))
    node.end("h")
    node.resident(on("a"), evictions=1)
    assert node.want("h2", on("b")) == [Evict(on("a"), "asleep2")]


def fast_level_1(node: Driver, *names: str) -> None:
    for name in names:
        node.serving._state.times.record(on(name), "evict", "asleep1", 0.1)


def test_a_level_without_host_memory_is_chosen_if_the_budget_is_full() -> None:
    node = Driver(both("a"), both("b"), both("c"), host_gb=15.0)
    fast_level_1(node, "a", "b", "c")
    node.resident(on("a"))
    node.resident(on("b", 1))
    assert node.want("h1", on("c")) == [Evict(on("a"), "asleep1")]
    assert node.want("h2", on("c", 1)) == [Evict(on("b", 1), "asleep2")]


def test_an_old_sleeper_is_stopped_first_if_that_is_cheaper() -> None:
    """A sleeper that loads fast gives its host memory to a victim whose load is slow."""
    slow = both("slow", levels=("cold", "asleep1"))
    node = Driver(both("quick", levels=("cold", "asleep1")), slow, both("c"), host_gb=15.0)
    times = node.serving._state.times
    times.record(on("quick"), "restore", "cold", 3.0)
    node.resident(on("quick", 1))
    node.want("h1", on("c", 1))
    node.step(on("quick", 1))
    times.record(on("quick"), "restore", "cold", 3.0)
    node.resident(on("slow"))
    times.record(on("slow"), "restore", "cold", 500.0)
    assert node.view(on("quick", 1)).level == "asleep1"
    node.step(on("c", 1))
    node.step(on("c", 1))
    assert node.want("h2", on("c")) == [Stop(on("quick", 1))]
    assert node.step(on("quick", 1)) == [Evict(on("slow"), "asleep1")]
    assert node.step(on("slow")) == [LoadEngine(on("c"))]


def test_a_sleeper_is_stopped_if_its_residual_memory_is_needed() -> None:
    node = Driver(service("a", 10.0, asleep_gb={"asleep2": 2.0}), service("b", 15.0))
    node.resident(on("a"))
    node.want("h", on("b"))
    assert "a on GPU 0" not in {str(one) for one, (step, _) in node.node.steps.items() if step == "evict"}
    assert node.step(on("a")) == [LoadEngine(on("b"))], "only a stop frees enough"


def test_an_eviction_that_fails_becomes_a_stop() -> None:
    node = Driver(service("a"), service("b"))
    node.resident(on("a"))
    node.want("h", on("b"))
    assert node.step(on("a"), "failed") == [Stop(on("a"))]
    assert node.step(on("a")) == [LoadEngine(on("b"))]


def test_a_victim_that_cannot_be_stopped_stays_counted_and_holders_are_refused_with_its_probe() -> None:
    node = Driver(service("a"), service("b"))
    node.resident(on("a"))
    node.want("h", on("b"))
    node.step(on("a"), "failed")
    refused = refusal(node.step(on("a"), "failed"))
    assert refused.reason.startswith("GPU 0 has no memory for b on GPU 0: the engine of a on GPU 0 holds it")
    assert refused.retry_in_s == node.config.first_probe_s
    assert node.view(on("a")).device_gb == 10.0
    assert node.wake() == [Stop(on("a"))]
    node.step(on("a"))
    assert node.want("h2", on("b")) == [LoadEngine(on("b"))]


def test_an_activation_that_nobody_waits_for_ends_after_its_evictions() -> None:
    node = Driver(service("a"), service("b"))
    node.resident(on("a"))
    node.want("h", on("b"))
    node.end("h")
    assert node.step(on("a")) == []
    assert node.want("h2", on("a")) == [Restore(on("a"))]


def test_host_memory_is_counted_from_an_eviction_until_its_restore_has_ended() -> None:
    node = Driver(both("a", levels=("cold", "asleep1")), both("b"), host_gb=25.0)
    node.resident(on("a"))
    node.want("h", on("b"))
    assert node.view(on("a")).host_gb == 10.0, "the eviction is under way"
    node.step(on("a"))
    node.step(on("b"))
    node.step(on("b"))
    node.end("h")
    node.want("h2", on("a"))
    node.step(on("b"))
    assert node.view(on("a")).state == "restoring"
    assert node.view(on("a")).host_gb == 10.0
    node.step(on("a"))
    assert node.view(on("a")).host_gb == 0.0


def test_the_residual_memory_of_a_sleeper_is_part_of_what_it_needs_awake() -> None:
    """10 GB awake, of which 2 stay: 6 GB beside it are just enough, 7 are too many."""
    for awake_gb, expected in ((6.0, Restore(on("a"))), (7.0, Evict(on("c"), "asleep2"))):
        node = Driver(service("a", asleep_gb={"asleep2": 2.0}), service("b", 13.0), service("c", awake_gb))
        node.resident(on("a"))
        node.resident(on("b"), evictions=1)
        node.resident(on("c"), evictions=1)
        assert node.view(on("a")).device_gb == 2.0
        assert node.want("h", on("a")) == [expected]
