"""Elastic grants: units beyond the fewest."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from shared.policy.dispatch.config import DispatchConfig
from shared.policy.dispatch.dispatcher import Dispatcher
from shared.policy.dispatch.stimuli import InventoryReported, NodeJoined, TargetReceived
from shared.policy.elastic.scheduling import ElasticRules, Rule
from shared.policy.model.elasticity import Elasticity
from shared.policy.model.formulation import Command, Grant, Request, Work
from shared.policy.model.reports import Ended
from shared.policy.model.results import AttemptResult
from shared.policy.resources.ledger import Node
from tests.shared.policy.strategies import SPECS, joined, reported, request, submitted, work

NEARLY_LINEAR = Elasticity("amdahl", serial=0.01)
LEARNED_BETWEEN = [(1, 1.0, 0.0), (1, 1.0, 0.0), (1, 0.5, 0.0), *[(2, 1.0, 0.0)] * 4, (1, 1.0, 0.0)]
"""The duration of its kind becomes known between the submission and the eviction of the seventh."""


def leading(cores: int, *names: str, rule: Rule | None = "priced", patient: bool = True) -> Dispatcher:
    dispatcher = Dispatcher(DispatchConfig(elastic=ElasticRules(rule=rule, waits_for_units=patient)), SPECS)
    for name in names or ("n",):
        dispatcher.handle(0.0, joined(Node(name, "1", "cpu", {"cores": cores}, frozenset({"run"}))))
        dispatcher.handle(0.0, InventoryReported(name, "1", {}))
    return dispatcher


def scaled(most: int = 8, seconds: float | None = 8.0, elasticity: Elasticity = NEARLY_LINEAR) -> Work:
    amounts = tuple(range(1, most + 1))
    return replace(work(timeout_s=1000.0), amounts=amounts, elasticity=elasticity, duration_s=seconds)


def submit(dispatcher: Dispatcher, *requests: Request, now: float = 0.0) -> dict[str, int]:
    return granted(dispatcher, dispatcher.handle(now, submitted(*requests)))


def granted(dispatcher: Dispatcher, commands: list[Command]) -> dict[str, int]:
    dispatcher.check()
    return {one.action: one.units["cores"] for one in commands if isinstance(one, Grant)}


def end(dispatcher: Dispatcher, action_id: str, seconds: float, now: float = 1.0) -> dict[str, int]:
    action = dispatcher.registry.actions[action_id]
    ended = Ended(action_id, action.node, action.attempt, action.stage, AttemptResult("ok", True), execution_s=seconds)
    return granted(dispatcher, dispatcher.handle(now, reported(ended)))


def test_a_lone_action_is_granted_the_units_that_help() -> None:
    assert submit(leading(8), request("r", scaled())) == {"r": 8}
    assert submit(leading(4), request("r", scaled())) == {"r": 4}


def test_units_that_do_not_help_are_not_granted() -> None:
    assert submit(leading(8), request("r", scaled(elasticity=Elasticity("amdahl", serial=1.0)))) == {"r": 1}


def test_only_amounts_that_are_allowed_are_granted() -> None:
    assert submit(leading(7), request("r", replace(scaled(), amounts=(1, 2, 4, 8)))) == {"r": 4}


def test_without_a_known_duration_the_fewest_is_granted_and_with_history_more() -> None:
    dispatcher = leading(8)
    assert submit(dispatcher, request("r0", scaled(seconds=None))) == {"r0": 1}
    end(dispatcher, "r0", 10.0)
    assert submit(dispatcher, request("r1", scaled(seconds=None), seq=1), now=2.0) == {"r1": 8}


def test_the_duration_on_one_unit_is_learned_whatever_was_granted() -> None:
    dispatcher = leading(8)
    submit(dispatcher, request("r0", scaled()))
    action = dispatcher.registry.actions["r0"]
    end(dispatcher, "r0", NEARLY_LINEAR.duration(5.0, 8))
    assert abs((dispatcher.cluster.durations.learned.known(action.duration_key)) - 5.0) < 1e-9


def test_without_elastic_scheduling_the_fewest_units_are_granted() -> None:
    assert submit(leading(8, rule=None), request("r", scaled())) == {"r": 1}


def test_equal_work_shares_a_node_evenly() -> None:
    assert submit(leading(8), request("a", scaled(), seq=0), request("b", scaled(), seq=1)) == {"a": 4, "b": 4}


def test_elastic_grants_take_only_units_that_a_node_owns() -> None:
    dispatcher = leading(8)
    dispatcher.handle(0.0, TargetReceived("cores@cpu", 3))
    assert submit(dispatcher, request("r", scaled(), batch="b")) == {"r": 3}


def test_outside_batches_units_are_owned_for_the_most_it_could_use() -> None:
    dispatcher = leading(8)
    dispatcher.handle(0.0, TargetReceived("cores@cpu", 0))
    assert submit(dispatcher, request("r", scaled(most=6))) == {"r": 6}


def test_the_first_is_never_evicted_and_the_evicted_goes_first_when_units_are_free() -> None:
    """Two long actions on two cores: together they end at 8, one after the other at 4 and 8."""
    dispatcher = leading(2, rule="paper")
    assert submit(dispatcher, request("a", scaled(2), seq=0), request("b", scaled(2), seq=1)) == {"a": 2}
    assert submit(dispatcher, request("c", scaled(2), seq=2), now=0.5) == {}
    assert list(end(dispatcher, "a", 4.0)) == ["b"]


def test_no_candidate_is_evicted_behind_rigid_work_that_came_later() -> None:
    """If `b` were evicted, the later `rigid` would overtake it on this node."""
    dispatcher = leading(3, rule="paper")
    rigid = request("rigid", work(), seq=2)
    assert submit(dispatcher, request("a", scaled(2), seq=0), request("b", scaled(2), seq=1), rigid) == {
        "a": 1,
        "b": 1,
        "rigid": 1,
    }


@pytest.mark.parametrize(
    ("waiting", "units"), [(0, [2, 2]), (1, [1] * 4), (2, [1] * 4), (3, [2, 2]), (4, [2, 2]), (5, [1] * 4)]
)
def test_a_node_plans_for_its_share_of_the_queue_rounded_up(waiting: int, units: list[int]) -> None:
    """Two nodes of two cores. An even number of equal actions ends sooner two by two, an odd one with both cores each.

    If each node planned for the whole queue, or for its share rounded down, other numbers of waiting actions would be
    even.
    """
    requests = [request(f"r{at}", scaled(2), seq=at) for at in range(4 + waiting)]
    assert list(submit(leading(2, "n", "m"), *requests).values()) == units


def busy_until_soon(*, seconds: float, batch: str = "") -> Dispatcher:
    """A node of eight cores, seven of which end after so many seconds."""
    dispatcher = leading(8)
    rigid = replace(work(units={"cores": 7}, timeout_s=1000.0), duration_s=seconds)
    assert submit(dispatcher, request("rigid", rigid, batch=batch)) == {"rigid": 7}
    return dispatcher


def test_it_does_not_start_on_one_core_where_many_are_free_in_a_moment() -> None:
    dispatcher = busy_until_soon(seconds=1.0)
    assert submit(dispatcher, request("r", scaled(seconds=100.0), seq=1)) == {}
    assert end(dispatcher, "rigid", 1.0) == {"r": 8}


def test_it_starts_on_one_core_where_nothing_ends_soon() -> None:
    dispatcher = busy_until_soon(seconds=900.0)
    assert submit(dispatcher, request("r", scaled(seconds=100.0), seq=1)) == {"r": 1}


def test_short_elastic_work_is_not_prefetched_where_a_core_is_free() -> None:
    """The node would start it on that core at once, though the leader counts the core as free."""
    dispatcher = Dispatcher(DispatchConfig(elastic=ElasticRules(rule="priced", waits_for_units=True)), SPECS)
    kinds, prefetches = frozenset({"run"}), frozenset({"cores"})
    dispatcher.handle(0.0, NodeJoined("n", "1", "cpu", {"cores": 2}, kinds, prefetches))
    dispatcher.handle(0.0, InventoryReported("n", "1", {}))
    assert submit(dispatcher, request("short", replace(work(), duration_s=0.005))) == {"short": 1}
    assert submit(dispatcher, request("r", scaled(4, seconds=0.015), seq=1)) == {}
    assert end(dispatcher, "short", 0.005, now=0.005) == {"r": 2}


def test_while_it_waits_only_work_that_ends_before_may_use_the_core() -> None:
    dispatcher = busy_until_soon(seconds=1.0)
    short, long = (request(name, replace(work(), duration_s=s), seq=at) for at, (name, s) in
                   enumerate([("short", 0.5), ("long", 5.0)], 2))  # fmt: skip
    assert submit(dispatcher, request("r", scaled(seconds=100.0), seq=1), long, short) == {"short": 1}


def test_units_held_for_it_are_not_granted_behind_it_in_the_same_round() -> None:
    """Seven of eight cores are free, four are its best amount; many actions of one core wait behind it."""
    dispatcher = leading(8)
    rigid = replace(work(timeout_s=1000.0), duration_s=900.0)
    behind = [request(f"rigid{at}", rigid, seq=at + 2) for at in range(20)]
    found = submit(dispatcher, request("first", rigid), request("r", scaled(seconds=100.0), seq=1), *behind)
    assert found["r"] > 1
    assert sum(found.values()) == 8


def test_it_waits_for_no_more_than_is_owned() -> None:
    """It waited for eight cores; then only two are owned."""
    dispatcher = busy_until_soon(seconds=1.0, batch="b")
    assert submit(dispatcher, request("r", scaled(seconds=100.0), batch="b", seq=1)) == {}
    dispatcher.handle(0.5, TargetReceived("cores@cpu", 2))
    assert end(dispatcher, "rigid", 1.0) == {"r": 2}


@example(jobs=LEARNED_BETWEEN, cores=5, rule="paper", nodes=1, patient=False)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.floats(0.1, 100), st.floats(0, 1)), min_size=1, max_size=12),
    st.integers(1, 8),
    st.sampled_from(["paper", "priced"]),
    st.integers(1, 2),
    st.booleans(),
)
def test_everything_is_executed_in_order_and_no_unit_is_granted_twice(
    jobs: list[tuple[int, float, float]], cores: int, rule: Rule, nodes: int, patient: bool
) -> None:
    """Only work that ends before may overtake an action that waits for more units."""
    dispatcher = leading(cores, *[f"n{at}" for at in range(nodes)], rule=rule, patient=patient)
    requests = [
        request(f"r{at}", scaled(most, seconds, Elasticity("amdahl", serial=serial)), seq=at)
        for at, (most, seconds, serial) in enumerate(jobs)
    ]
    begun = list(submit(dispatcher, *requests))
    now, left = 0.0, [*begun]
    while left:
        first = min(left, key=lambda name: dispatcher.registry.actions[name].expected_end_s)
        action = dispatcher.registry.actions[first]
        now = action.expected_end_s
        left.remove(first)
        more = list(end(dispatcher, first, action.expected_s, now))
        begun += more
        left += more
    assert sorted(begun) == sorted(one.id for one in requests)
    if nodes == 1 and not patient:
        assert begun == [one.id for one in requests]
