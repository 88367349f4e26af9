"""Expected completions of batches from arrivals and estimates: the EBF keys of requests."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.policy.model.formulation import Request
from shared.policy.order.batches import BatchRegistry
from shared.policy.order.ebf import EbfKey
from shared.policy.order.estimates import UNKNOWN_FRACTION, Durations
from tests.shared.policy.strategies import request, work

PRESENT, THERE = ("cores@default", "cores@default", "ada"), ("cores@default", "=n1", "ada")


def key(registry: BatchRegistry, one: Request) -> EbfKey:
    return registry.key(one, Durations())


def test_a_batch_is_expected_after_its_first_arrival_and_all_its_timeouts() -> None:
    registry = BatchRegistry()
    stages = (work(timeout_s=10.0), work(timeout_s=30.0))
    assert key(registry, request("first", *stages, at_s=5.0, batch="b")) == EbfKey(45.0, 0.0, (5000, 0))
    assert key(registry, request("later", *stages, at_s=9.0, seq=3, batch="b", priority=2.0)) == EbfKey(
        45.0, 2.0, (9000, 3)
    )


def test_outside_a_batch_the_arrival_counts_and_the_duration_once_it_is_known() -> None:
    registry, durations = BatchRegistry(), Durations()
    alone = request("a", work(timeout_s=10.0), at_s=5.0)
    assert registry.key(alone, durations).expected_completion_s == 5.0
    durations.learn(("ada", "t", "run"), 4.0)
    assert registry.key(alone, durations).expected_completion_s == 9.0


@given(st.floats(0, 1e4), st.lists(st.floats(0, 1e9) | st.just(math.inf) | st.just(math.nan), max_size=5))
def test_an_expected_completion_remains_finite_and_bounded(arrived_s: float, estimates: list[float]) -> None:
    registry = BatchRegistry(bound_s=100.0)
    one = request("a", work(timeout_s=1e6), at_s=arrived_s, batch="b")
    for estimate in estimates[:2]:
        registry.apply_estimate("b", estimate)
    registry.count_waiting(one, PRESENT)
    for estimate in estimates[2:]:
        registry.apply_estimate("b", estimate)
    assert key(registry, one).expected_completion_s <= one.arrival[0] / 1000 + 100.0


def test_an_estimate_names_the_queues_in_which_the_batch_waits() -> None:
    registry = BatchRegistry()
    first, second, gone = (request(name, batch="b", seq=at) for at, name in enumerate(("first", "second", "gone")))
    alone = request("alone")
    for one, place in ((first, PRESENT), (second, PRESENT), (gone, THERE), (alone, PRESENT)):
        registry.count_waiting(one, place)
    registry.uncount_waiting(gone, THERE)
    registry.uncount_waiting(alone, PRESENT)
    registry.uncount_waiting(first, PRESENT)
    assert registry.apply_estimate("b", 3.0) == [PRESENT]
    assert registry.apply_estimate("b", 3.0) == []
    assert key(registry, gone).expected_completion_s == registry.due("b") == 3.0


def test_an_estimate_that_came_before_the_first_request_is_used_once() -> None:
    registry = BatchRegistry()
    assert registry.apply_estimate("b", 7.0) == []
    assert key(registry, request("a", at_s=2.0, batch="b")).expected_completion_s == 7.0
    registry.ended("b")
    assert key(registry, request("a", at_s=2.0, batch="b")).expected_completion_s == 12.0


def test_the_first_arrival_under_a_former_leader_counts_unless_the_batch_is_known() -> None:
    registry = BatchRegistry()
    registry.first_arrival("b", 1.0, [10.0])
    late = request("late", at_s=500.0, batch="b")
    registry.count_waiting(late, PRESENT)
    assert key(registry, late).expected_completion_s == 11.0
    registry.first_arrival("b", 400.0, [10.0])
    assert registry.apply_estimate("b", 5.0) == [PRESENT]


@pytest.mark.parametrize("most", [1, 3])
def test_the_registry_is_bounded_and_drops_the_batch_unused_for_longest(most: int) -> None:
    registry = BatchRegistry(most=most)
    for at in range(most):
        registry.count_waiting(request(f"a{at}", batch=f"b{at}"), PRESENT)
    registry.apply_estimate("b0", 2.0)
    registry.count_waiting(request("again", batch="b0"), PRESENT)
    for at in range(most - 1):
        registry.count_waiting(request(f"new{at}", batch=f"n{at}"), PRESENT)
    assert key(registry, request("x", batch="b0")).expected_completion_s == 2.0, "it was touched last"
    for at in range(100):
        registry.apply_estimate(f"unseen{at}", 1.0)
        registry.count_waiting(request(f"many{at}", batch=f"many{at}"), PRESENT)
    assert key(registry, request("x", at_s=50.0, batch="b0")).expected_completion_s == 60.0, "forgotten"


def test_durations_learn_slowly_and_remain_bounded() -> None:
    durations = Durations(weight=0.5, most=2)
    one, other = ("ada", "t", "run"), ("bob", "t", "run")
    durations.learn(one, 4.0)
    assert durations.expect(one, 3.0) == 3.0, "never more than the timeout"
    durations.learn(one, 8.0)
    assert durations.expect(one, 100.0) == 6.0
    durations.learn(other, 1.0)
    durations.learn(one, 6.0)
    durations.learn(("cyd", "t", "run"), 1.0)
    assert durations.expect(other, 100.0) == 100.0 * UNKNOWN_FRACTION, "the one longest unseen is forgotten"
    assert durations.expect(one, 100.0) == 6.0
