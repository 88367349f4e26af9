"""Capacity of pools from the reports of nodes."""

from __future__ import annotations

import msgspec
import pytest

from services.scaling_planner import capacity as capacity_module
from services.scaling_planner.capacity import Capacity
from shared.messages.nodes import Bye, Heartbeat, Hello, ServiceCapacity
from shared.policy.scaling.chunked_pools import PlannedService


def hello(node: str, incarnation: str = "1", cores: int = 4, node_class: str = "default") -> Hello:
    capacity = {
        "cores": cores,
        "slots": 10,
        "memory_mb": 4096,
        "starts": 1,
    }  # the last two are environments' to hold: no pool
    return Hello(node=node, incarnation=incarnation, node_class=node_class, capacity=capacity, kinds=[])


def beat(node: str, incarnation: str = "1", **cold_start_s: float) -> Heartbeat:
    return Heartbeat(node=node, incarnation=incarnation, owned={}, used={}, cold_start_s=cold_start_s)


def test_the_nodes_of_a_class_make_its_pools() -> None:
    capacity = Capacity(lost_s=10.0)
    for node in (hello("a"), hello("b", cores=2), hello("c", node_class="big")):
        capacity.receive(100.0, node)
    assert capacity.by_pool(100.0) == {"cores@default": 6, "slots@default": 20, "cores@big": 4, "slots@big": 10}


def test_a_silent_node_counts_again_after_its_next_heartbeat() -> None:
    capacity = Capacity(lost_s=10.0)
    capacity.receive(100.0, hello("a"))
    assert capacity.by_pool(111.0)["cores@default"] == 0
    capacity.receive(112.0, beat("a"))
    assert capacity.by_pool(113.0)["cores@default"] == 4


def test_a_node_that_left_in_good_order_is_forgotten_at_once() -> None:
    capacity = Capacity(lost_s=10.0)
    capacity.receive(100.0, hello("a"))
    capacity.receive(101.0, Bye(node="a", incarnation="1"))
    assert capacity.by_pool(101.0) == {}


def test_late_messages_of_an_old_incarnation_do_not_change_the_new_one() -> None:
    capacity = Capacity(lost_s=10.0)
    capacity.receive(100.0, hello("a", "1", cores=4))
    capacity.receive(101.0, hello("a", "2", cores=8))
    capacity.receive(102.0, Bye(node="a", incarnation="1"))
    capacity.receive(120.0, beat("a", "1"))
    assert capacity.by_pool(105.0) == {"cores@default": 8, "slots@default": 10}
    assert capacity.by_pool(120.0)["cores@default"] == 0


def test_a_hello_of_an_earlier_start_does_not_replace_a_later_one() -> None:
    capacity = Capacity(lost_s=10.0)
    capacity.receive(100.0, msgspec.structs.replace(hello("a", "2", cores=8), generation=2))
    capacity.receive(101.0, msgspec.structs.replace(hello("a", "1", cores=4), generation=1))
    assert capacity.by_pool(101.0)["cores@default"] == 8


def test_a_heartbeat_without_a_hello_changes_nothing() -> None:
    capacity = Capacity(lost_s=10.0)
    capacity.receive(100.0, beat("stranger"))
    assert capacity.by_pool(100.0) == {}


def test_a_pool_starts_as_slowly_as_its_slowest_node() -> None:
    capacity = Capacity(lost_s=10.0)
    for node in (hello("a"), hello("b"), hello("c", node_class="big")):
        capacity.receive(100.0, node)
    assert capacity.cold_start_s(100.0) == {}
    for message in (beat("a", cores=0.3), beat("b", cores=2.04), beat("c", cores=9.0)):
        capacity.receive(100.0, message)
    assert capacity.cold_start_s(100.0) == {"cores@default": 2.1, "cores@big": 9.0}
    capacity.receive(101.0, beat("b", cores=0.1))
    capacity.receive(101.0, Bye(node="c", incarnation="1"))
    assert capacity.stimulus(102.0).cold_start_s == {"cores@default": 0.3}
    capacity.receive(115.0, beat("b", cores=0.1))
    assert capacity.cold_start_s(115.0) == {"cores@default": 0.1}, "a silent node has no capacity"


def test_nodes_beyond_the_bound_are_forgotten_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity_module, "MAX_NODES", 2)
    capacity = Capacity(lost_s=10.0)
    for name in ("a", "b", "c"):
        capacity.receive(100.0, hello(name))
        capacity.receive(100.0, beat(name, cores=1.0))
    assert capacity.by_pool(100.0)["cores@default"] == 8
    assert capacity.cold_start_s(100.0) == {"cores@default": 1.0}


def test_services_of_a_pool_are_those_of_its_live_nodes_with_the_worst_of_each_number() -> None:
    def serving(node: str, concurrency: int, restore_s: float, *degrees: int) -> Heartbeat:
        one = ServiceCapacity(resource="gpus", degrees=[*degrees], concurrency=concurrency, restore_s=restore_s)
        return msgspec.structs.replace(beat(node), services={"judge": one})

    capacity = Capacity(lost_s=10.0)
    for node in ("a", "b", "c"):
        capacity.receive(100.0, hello(node, node_class="big" if node == "c" else "default"))
    capacity.receive(101.0, serving("a", 8, 1.01, 1))
    capacity.receive(101.0, serving("b", 4, 0.5, 1, 2))
    capacity.receive(101.0, serving("c", 64, 0.0, 8))
    assert capacity.stimulus(101.0).services == {
        "gpus@default": {"judge": PlannedService((1, 2), 4, 1.1)},
        "gpus@big": {"judge": PlannedService((8,), 64, 0.0)},
    }
    capacity.receive(102.0, Bye(node="b", incarnation="1"))
    assert capacity.services(102.0)["gpus@default"] == {"judge": PlannedService((1,), 8, 1.1)}
    assert capacity.services(120.0) == {}
