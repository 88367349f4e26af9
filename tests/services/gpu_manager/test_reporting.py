"""Reports of a node's model services: what the leader, the planner and people see."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest

from services.gpu_manager.devices import GpuDevice
from services.gpu_manager.kinds import GPUS
from services.gpu_manager.reporting import cold_start_s, page_of, service_capacity, services_of
from shared.model_services.entries import read_entries
from shared.node.identity import NodeIdentity
from shared.policy.model.chunks import Chunk
from shared.policy.serving.model import InstanceId, Level, State
from shared.policy.serving.node_view import InstanceView
from shared.runtime.clock import SYSTEM_CLOCK

ENTRY = {"backend": "process", "model": "m", "command": ["x", "{port}"], "memory_gb": {"awake": 16}, "degrees": [1, 2]}
ENTRIES = read_entries(msgspec.json.encode({"a": {**ENTRY, "concurrency": 4}, "b": ENTRY}))
NODE = NodeIdentity("n", "1", "default", 1)


def view(gpu: int, state: State, level: Level | None = None, service: str = "a", **measured_s: float) -> InstanceView:
    measured = {name.replace("_", " "): took_s for name, took_s in measured_s.items()}
    instance = InstanceId(service, Chunk(gpu, 1))
    return InstanceView(instance, state, 0.0, "", None, level, (), (), 1.0, 0.0, None, measured)


def test_released_gpus_are_reported_and_a_service_that_is_being_restored_counts_as_resident() -> None:
    views = [view(0, "restoring"), view(1, "evicted", "asleep1"), view(2, "running")]
    report = services_of(NODE, ENTRIES, views, [24.0] * 4, released=(3, 1))
    assert (report.released, report.bad) == ([1, 3], [])
    assert report.services[0].resident == [(0, 1), (2, 1)]


def test_a_chunk_whose_load_yields_is_unusable_for_its_service() -> None:
    views = [replace(view(0, "loading"), yields=True), view(1, "loading")]
    (one, other) = services_of(NODE, ENTRIES, views, [24.0] * 4).services
    assert (one.resident, one.unusable) == ([(1, 1)], [(0, 1)])
    assert other.unusable == []


def test_the_reason_of_the_engine_that_is_probed_first_is_reported() -> None:
    quarantined = [replace(view(gpu, "quarantined"), why="a wrong canary", probe_s=90.0 - gpu) for gpu in range(3)]
    quarantined.append(replace(view(3, "quarantined"), why="it dies", probe_s=math.inf))
    late = replace(view(0, "loading", service="b"), yields=True)
    one, other = services_of(NODE, ENTRIES, [*quarantined, late], [24.0] * 4, offset_s=1000.0).services
    assert one.why_unusable == "quarantined: a wrong canary; the next probe is at 1970-01-01T00:18:08Z"
    assert other.why_unusable == "its load or restore is late"
    (one, _) = services_of(NODE, ENTRIES, quarantined[3:], [24.0] * 4).services
    assert one.why_unusable == "quarantined: it dies"


def test_the_address_of_an_engine_is_published_while_it_answers_calls() -> None:
    states: list[State] = ["loading", "restoring", "resident", "running", "draining", "evicting", "evicted", "unknown"]
    views = [view(number, state) for number, state in enumerate(states)]
    addresses = {one.instance: f"http://h:{one.instance.chunk.first}" for one in views}
    page = page_of(NODE, ENTRIES, views, [], SYSTEM_CLOCK, addresses=addresses)
    assert [one.state for one in page.engines if one.address] == ["resident", "running"]


def test_restores_are_reported_by_degree_and_those_of_sleeping_engines_by_chunk() -> None:
    views = [view(0, "evicted", "asleep1", restore_cold=8.0, restore_asleep1=2.0), view(1, "cold", service="b")]
    views.append(replace(view(2, "cold", restore_cold=9.0), instance=InstanceId("a", Chunk(2, 2))))
    views += [view(1, "evicted", "asleep2", restore_asleep1=2.0), view(3, "restoring", "asleep1", restore_asleep1=2.0)]
    report = services_of(NODE, ENTRIES, views, [24.0] * 4)
    assert [one.restore_s for one in report.services] == [{1: 8.0, 2: 9.0}, {}]
    assert [one.asleep for one in report.services] == [[(0, 1, 2.0), (1, 1, 0.0)], []]


def test_the_restore_of_a_sleeping_engine_counts_elsewhere_until_a_load_is_measured() -> None:
    (one, _) = services_of(NODE, ENTRIES, [view(0, "evicted", "asleep1", restore_asleep1=2.0)], [24.0] * 4).services
    assert (one.restore_s, one.asleep) == ({1: 2.0}, [(0, 1, 2.0)])


SPLIT = {**ENTRY, "memory_gb": {"awake": {"1": 30, "2": 16}, "asleep": {"1": 2, "2": 1}}}


def test_memory_is_reported_by_degree_and_chunks_that_have_too_little_are_unusable() -> None:
    entries = read_entries(msgspec.json.encode({"split": SPLIT}))
    split = services_of(NODE, entries, [], [24.0, 24.0, 48.0, 12.0]).services[0]
    assert (split.awake_gb, split.awake_gb_by) == (30.0, {1: 30.0, 2: 16.0})
    assert sorted(split.unusable) == [(0, 1), (1, 1), (2, 2), (3, 1)]
    assert [one.unusable for one in services_of(NODE, ENTRIES, [], [24.0] * 4).services] == [[], []]
    offer = page_of(NODE, entries, [], [], SYSTEM_CLOCK).services["split"]
    assert (offer.awake_gb, offer.asleep_gb) == (30.0, 2.0)


def test_the_reported_eviction_is_to_the_level_that_costs_least() -> None:
    sleepy = view(
        0, "resident", evict_cold=1.0, restore_cold=60.0, evict_asleep1=10.0, restore_asleep1=2.0, evict_asleep2=0.5,
        restore_asleep2=16.0,
    )  # fmt: skip
    stopped = replace(view(2, "cold", evict_cold=3.0, restore_cold=9.0), instance=InstanceId("a", Chunk(2, 2)))
    report = services_of(NODE, ENTRIES, [sleepy, stopped, view(1, "resident", service="b")], [24.0] * 4)
    assert [one.evict_s for one in report.services] == [{1: 10.0, 2: 3.0}, {}]


def test_a_cold_start_is_an_acquisition_and_a_restore() -> None:
    views = [view(0, "cold", restore_cold=8.0, evict_cold=1.0), view(1, "evicted", "asleep1", restore_asleep1=2.0)]
    assert cold_start_s([]) == {}
    assert cold_start_s(views) == {GPUS: 5.0}
    assert cold_start_s(views, 3.0) == {GPUS: 8.0}


@pytest.mark.parametrize(
    ("views", "restore_s"),
    [
        ([], 0.0),
        ([view(0, "evicted", "asleep1", restore_cold=8.0, restore_asleep1=2.0)], 2.5),
        ([view(0, "cold", restore_cold=8.0, restore_asleep1=2.0)], 8.5),
        ([view(0, "evicted", "asleep2", restore_cold=8.0, restore_asleep1=2.0)], 8.5),
        ([view(0, "cold", service="b", restore_cold=8.0)], 0.0),
    ],
    ids=["nothing is measured", "asleep", "stopped", "another level", "another service"],
)
def test_the_restore_of_a_service_is_the_one_from_where_its_engine_is(
    views: list[InstanceView], restore_s: float
) -> None:
    found = service_capacity(ENTRIES, views, 0.5)["a"]
    assert (found.resource, found.degrees, found.concurrency, found.restore_s) == (GPUS, [1, 2], 4, restore_s)


def test_a_page_has_the_ownership_of_each_gpu() -> None:
    devices = [GpuDevice(gpu, 24.0, "described", False) for gpu in range(2)]
    page = page_of(NODE, ENTRIES, [], devices, SYSTEM_CLOCK, lambda gpu: ("held", "") if gpu else ("unknown", "no"))
    assert [(one.ownership, one.why) for one in page.gpus] == [("unknown", "no"), ("held", "")]
    assert [one.ownership for one in page_of(NODE, ENTRIES, [], devices, SYSTEM_CLOCK).gpus] == ["", ""]
