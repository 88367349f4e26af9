"""A new process begins with the engines of a former one (law 6)."""

from __future__ import annotations

import pytest

from shared.policy.serving.config import ServingConfig
from shared.policy.serving.model import (
    Abort,
    Admit,
    EngineMemory,
    Expected,
    Found,
    LoadEngine,
    Restore,
    RunCanary,
    Stop,
)
from tests.shared.policy.serving.node_driver import Driver, on, service


def test_nothing_begins_beside_an_engine_whose_residency_is_unknown() -> None:
    node = Driver(service("a", 5.0), service("b", 5.0))
    node.expect(on("a"))
    assert node.view(on("a")).state == "unknown"
    assert node.want("h1", on("a")) == []
    assert node.want("h2", on("b")) == []
    assert node.want("h3", on("b", 1)) == [LoadEngine(on("b", 1))], "another GPU goes on"


def test_a_resident_engine_is_aborted_and_passes_a_canary_before_its_first_holder() -> None:
    node = Driver(service("a"))
    node.expect(on("a"))
    assert node.found(on("a"), "resident") == [Abort(on("a"))]
    assert node.want("h", on("a")) == [RunCanary(on("a"))]
    assert node.step(on("a")) == [Admit("h", on("a"))]


def test_a_sleeping_engine_is_restored() -> None:
    node = Driver(service("a"))
    node.expect(on("a"))
    node.want("h", on("a"))
    assert node.found(on("a"), "asleep2") == [Restore(on("a"))]


def test_no_engine_is_loaded() -> None:
    node = Driver(service("a"))
    node.expect(on("a"))
    node.want("h", on("a"))
    assert node.found(on("a"), "cold") == [LoadEngine(on("a"))]


@pytest.mark.parametrize("residency", ["unknown", "asleep1"])
def test_an_engine_that_cannot_be_kept_is_stopped(residency: str) -> None:
    """Its residency could not be read, or its service has no such level."""
    node = Driver(service("a"))
    node.expect(on("a"))
    node.want("h", on("a"))
    assert node.found(on("a"), residency) == [Stop(on("a"))]  # type: ignore[arg-type]
    assert node.step(on("a")) == [LoadEngine(on("a"))]


def test_an_engine_that_nobody_finds_is_stopped() -> None:
    node = Driver(service("a"), config=ServingConfig(found_limit_s=9.0))
    node.expect(on("a"))
    assert node.wake() == [Stop(on("a"))]
    assert node.now == 9.0


def test_an_engine_of_an_undeclared_service_is_stopped_and_forgotten() -> None:
    node = Driver(service("a"))
    node.handle(Expected(on("old")))
    assert node.want("h", on("a")) == []
    assert node.handle(Found(on("old"), "resident")) == [Stop(on("old"))]
    assert node.step(on("old")) == [LoadEngine(on("a"))]
    assert [shown.instance for shown in node.serving.view()] == [on("a")]


def test_a_found_engine_has_the_memory_of_its_degree() -> None:
    split = service("a", 12.0, memory_by={2: EngineMemory(7.0, {}, {})})
    for size, expected in ((2, Abort(on("a", 0, 2))), (1, Stop(on("a")))):
        node = Driver(split, service("b", 8.0))
        node.expect(on("b"))
        node.found(on("b"), "resident")
        node.expect(on("a", 0, size))
        assert node.view(on("a", 0, size)).device_gb == (7.0 if size == 2 else 12.0)
        assert node.found(on("a", 0, size), "resident") == [expected]


def test_engines_with_more_memory_than_the_device_are_not_all_kept() -> None:
    node = Driver(service("a"), service("b"))
    for name in ("a", "b"):
        node.expect(on(name))
    assert node.found(on("a"), "resident") == [Abort(on("a"))]
    assert node.found(on("b"), "resident") == [Stop(on("b"))]


def test_engines_that_are_not_found_yet_do_not_count_against_one_that_is() -> None:
    node = Driver(service("a"), service("b"))
    for name in ("a", "b"):
        node.expect(on(name))
    assert node.found(on("a"), "resident") == [Abort(on("a"))], "b may sleep: nobody knows yet"
    assert node.found(on("b"), "asleep2") == []


def test_an_engine_in_another_place_than_its_last_step_left_it_is_stopped() -> None:
    """For example one that woke up by itself: it uses memory that is not counted."""
    node = Driver(service("a"))
    node.resident(on("a"))
    assert node.handle(Found(on("a"), "resident")) == []
    assert node.handle(Found(on("a"), "asleep2")) == [Stop(on("a"))]


def test_a_quarantined_or_cold_engine_that_is_found_is_stopped() -> None:
    node = Driver(service("a"), service("b"))
    node.resident(on("a"))
    node.die(on("a"))
    node.step(on("a"))
    assert node.handle(Found(on("a"), "resident")) == [Stop(on("a"))]
