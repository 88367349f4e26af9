"""Predicted starts of requests that ask to be rejected instead of started late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.policy.dispatch.action_state import ActionState
from shared.policy.dispatch.cluster_state import ClusterState
from shared.policy.dispatch.scheduling_round import schedule
from shared.policy.dispatch.start_predictor import StartPredictor
from tests.shared.policy.dispatch.test_cluster_state import cluster_with, queue
from tests.shared.policy.strategies import CORES, SLOTS, node, request, work


def new_request(cores: int = 1) -> ActionState:
    return ActionState(request("new", work(CORES, {"cores": cores}, timeout_s=10.0), at_s=100.0))


def test_nothing_is_predicted_before_an_inventory() -> None:
    cluster = ClusterState()
    cluster.add_node(node("n"))
    assert StartPredictor(cluster, 1.0).predict(new_request()) == float("-inf")
    assert StartPredictor(cluster, 1.0).in_time(new_request(), 0.0)


@given(st.integers(1, 8), st.lists(st.integers(1, 4), max_size=12), st.integers(1, 4))
def test_a_new_request_starts_after_the_work_before_it_divided_by_the_units(
    cores: int, before: list[int], units: int
) -> None:
    """Each request before it is expected to take 1 s (a tenth of its timeout); granted ones have just begun."""
    cluster = cluster_with(node("n", {"cores": cores}))
    fitting = [count for count in before if count <= cores]
    for at, count in enumerate(fitting):
        queue(cluster, f"r{at}", count, at=at)
    schedule(cluster, 1.0)
    predicted = StartPredictor(cluster, 1.0).predict(new_request(units))
    if units > cores:
        assert predicted == float("-inf"), "no node will ever take it: its deadline decides"
    elif sum(fitting) + units <= cores:
        assert predicted == 1.0
    else:
        assert predicted == pytest.approx(1.0 + sum(fitting) / cores)


@given(st.integers(1, 4), st.lists(st.integers(1, 4), max_size=12), st.floats(0.0, 8.0))
def test_counting_only_up_to_the_limit_changes_no_decision(cores: int, before: list[int], by_s: float) -> None:
    cluster = cluster_with(node("n", {"cores": cores}))
    for at, count in enumerate(before):
        queue(cluster, f"r{at}", min(count, cores), at=at)
    schedule(cluster, 1.0)
    in_full = StartPredictor(cluster, 1.0).predict(new_request())
    assert (StartPredictor(cluster, 1.0).predict(new_request(), by_s) > by_s) == (in_full > by_s)
    assert StartPredictor(cluster, 1.0).in_time(new_request(), by_s) == (in_full <= by_s)


def test_work_of_other_pools_on_the_same_units_counts() -> None:
    cluster = cluster_with(node("n", {"cores": 1, "slots": 1}))
    action = ActionState(request("r", work(SLOTS, {"slots": 1, "cores": 1}, timeout_s=100.0)))
    cluster.queues.enqueue(action)
    schedule(cluster, 1.0)
    assert StartPredictor(cluster, 1.0).predict(new_request()) == pytest.approx(11.0)
