"""Measured times of steps."""

from __future__ import annotations

import pytest

from shared.policy.serving.config import ServingConfig
from shared.policy.serving.step_times import StepTimes
from tests.shared.policy.serving.node_driver import on


def test_defaults_are_used_until_a_step_is_measured_and_then_its_mean() -> None:
    times = StepTimes(ServingConfig(ewma_weight=0.5))
    assert times.evict_s(on("a"), "asleep1") == times.config.evict_s["asleep1"]
    times.record(on("a"), "evict", "asleep1", 8.0)
    times.record(on("a"), "evict", "asleep1", 4.0)
    assert times.evict_s(on("a", 1), "asleep1") == pytest.approx(6.0)
    assert times.restore_s(on("a"), "asleep1") == times.config.restore_s["asleep1"]
    assert times.measured(on("a")) == {"evict asleep1": pytest.approx(6.0)}


def test_a_declared_load_is_expected_until_one_was_measured() -> None:
    times = StepTimes(ServingConfig())
    times.declare("a", 240.0)
    assert (times.restore_s(on("a"), "cold"), times.restore_s(on("b"), "cold")) == (
        240.0,
        times.config.restore_s["cold"],
    )
    assert times.restore_s(on("a"), "asleep1") == times.config.restore_s["asleep1"]
    assert times.measured(on("a")) == {}
    times.record(on("a"), "restore", "cold", 90.0)
    assert times.restore_s(on("a"), "cold") == 90.0
    times.forget("a")
    assert times.restore_s(on("a"), "cold") == times.config.restore_s["cold"]


def test_each_degree_and_level_has_its_own_mean_and_a_removed_service_has_none() -> None:
    times = StepTimes(ServingConfig())
    times.record(on("a"), "restore", "cold", 40.0)
    times.record(on("a", 0, 2), "restore", "cold", 25.0)
    assert (times.restore_s(on("a"), "cold"), times.restore_s(on("a", 0, 2), "cold")) == (40.0, 25.0)
    times.forget("a")
    assert times.measured(on("a")) == times.measured(on("a", 0, 2)) == {}


def test_a_chunk_has_times_of_its_own_and_others_those_of_the_degree() -> None:
    """GPUs of one node may have links of different speeds to the host."""
    times = StepTimes(ServingConfig(ewma_weight=0.5))
    times.record(on("a", 0), "restore", "asleep1", 2.0)
    times.record(on("a", 1), "restore", "asleep1", 6.0)
    assert [times.restore_s(on("a", gpu), "asleep1") for gpu in (0, 1, 2)] == [2.0, 6.0, 4.0]
    assert [times.measured(on("a", gpu)) for gpu in (0, 2)] == [{"restore asleep1": 2.0}, {"restore asleep1": 4.0}]
    times.forget("a")
    assert times.measured(on("a", 0)) == {}
