"""Pools of chunks: units that model services need together, against all ways to spread their requests."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.policy.scaling.chunked_pools import PlannedService, chunk_of, whole_chunks
from shared.policy.scaling.outstanding import least_units, most_units
from shared.policy.scaling.planner import Planner
from shared.policy.scaling.stimuli import (
    BatchAdded,
    BatchRemoved,
    Command,
    FirstRequestArrived,
    NodesChanged,
    PublishTarget,
    TimerFired,
    WantResidency,
)
from shared.policy.scaling.workload import OpenedBatch, Stage
from tests.shared.policy.scaling.planning import NOW, past

GPUS = "gpus@default"
stages_of = st.lists(
    st.tuples(st.sampled_from(["gpu", "gpu", "cpu"]), st.sampled_from([1, 2, 4]), st.integers(1, 4)),
    min_size=1,
    max_size=3,
)


def workflow(given: list[tuple[str, int, int]]) -> tuple[list[Stage], dict[str, PlannedService]]:
    stages = [
        Stage(f"s{at}", 1.0, 10.0, pool, units, service=f"m{at}" if pool == "gpu" else "")
        for at, (pool, units, _) in enumerate(given)
    ]
    return stages, {
        stage.service: PlannedService((stage.units,), share)
        for stage, (_, _, share) in zip(stages, given, strict=True)
        if stage.service
    }


@given(stages_of, st.data())
@settings(deadline=None)
def test_the_most_is_enough_for_each_spread_and_at_most_a_chunk_of_each_service_more(
    given: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    stages, services = workflow(given)
    counts = [float(data.draw(st.integers(0, 2))) for _ in stages]
    caps = [float(data.draw(st.integers(0, 4))) for _ in stages]
    limited = data.draw(st.booleans())
    requests = [present for present, count in enumerate(counts) for _ in range(int(count))]
    best = 0.0
    for at in itertools.product(*(range(present, len(stages)) for present in requests)):
        units = 0
        for place in set(at):
            if stages[place].drawn_from == "gpu":
                here = min(at.count(place), caps[place]) if limited else at.count(place)
                units += math.ceil(here / services[stages[place].service].concurrency) * stages[place].units
        best = max(best, units)
    most = most_units(stages, counts, "gpu", caps if limited else None, services)
    more = sum(stage.units for stage, (_, _, share) in zip(stages, given, strict=True) if stage.service and share > 1)
    assert best <= most <= best + more
    if not more:
        assert most == best
    assert most_units(stages, counts, "gpu", None, services) <= most_units(stages, counts, "gpu"), "engines are shared"


@pytest.mark.parametrize(("requests", "units"), [(0, 0), (1, 2), (8, 2), (9, 4), (64, 16), (math.inf, math.inf)])
def test_of_one_service_the_most_is_exact(requests: float, units: float) -> None:
    stage = Stage("judge", 1.0, 10.0, GPUS, 2, service="judge")
    assert most_units([stage], [requests], GPUS, None, {"judge": PlannedService((2,), 8)}) == units


def test_the_least_is_one_chunk_because_services_take_turns() -> None:
    stages, _ = workflow([("gpu", 1, 1), ("gpu", 4, 1), ("gpu", 2, 1)])
    assert least_units(stages, [9.0, 0.0, 0.0], "gpu") == 7
    assert least_units(stages, [9.0, 0.0, 0.0], "gpu", chunked=True) == 4
    assert least_units(stages, [0.0, 0.0, 9.0], "gpu", chunked=True) == 2
    assert least_units(stages, [9.0, 0.0, 0.0], "gpu", {"s1"}, chunked=True) == 2
    assert least_units(stages, [0.0, 0.0, 0.0], "gpu", chunked=True) == 0


@given(st.integers(0, 100), st.sampled_from([1, 2, 4, 8]), st.integers(0, 100))
def test_targets_are_whole_chunks_or_all_there_is(units: int, chunk: int, ceiling: int) -> None:
    rounded = whole_chunks(units, chunk, ceiling)
    assert rounded <= ceiling
    assert rounded == ceiling or (rounded % chunk == 0 and units <= rounded < units + chunk)


def test_the_chunk_is_the_widest_of_the_pool() -> None:
    stages, _ = workflow([("gpu", 2, 1), ("cpu", 8, 1)])
    assert chunk_of([stages, []], "gpu") == 2
    assert chunk_of([], "gpu") == 1


# ---- the planner -----------------------------------------------------------------------------------------------------


def judged(batch: str, *services: tuple[str, int], size: int | None = 4) -> OpenedBatch:
    stages = tuple(Stage(name, 1.0, 10.0, GPUS, degree, service=name) for name, degree in services)
    return OpenedBatch(batch, "ada", "judged", size, stages, 2.0, 64.0, NOW)


class Pool:
    """A planner of one pool of GPUs."""

    def __init__(self, gpus: int = 16, concurrency: int = 1, restore_s: float = 0.0, cold_start_s: float = 0.0) -> None:
        self.planner = Planner()
        services = {name: PlannedService((1, 2, 4), concurrency, restore_s) for name in ("a", "b", "c")}
        self.planner.handle(NOW, NodesChanged({GPUS: gpus}, {GPUS: cold_start_s}, {GPUS: services}))

    def handle(self, now: float, stimulus: object) -> list[Command]:
        commands = self.planner.handle(now, stimulus)  # type: ignore[arg-type]
        self.planner.check()
        return commands

    @property
    def target(self) -> int:
        return self.planner.targets[GPUS]


@pytest.mark.parametrize(("concurrency", "target"), [(1, 8), (2, 4), (4, 2), (64, 2)])
def test_a_batch_without_history_gets_chunks_for_all_requests_at_once(concurrency: int, target: int) -> None:
    pool = Pool(concurrency=concurrency)
    pool.handle(NOW, BatchAdded(judged("one", ("a", 2)), ()))
    assert pool.target == target


def test_a_pool_without_batches_falls_to_zero() -> None:
    pool = Pool()
    assert pool.target == 0
    pool.handle(NOW, BatchAdded(judged("one", ("a", 4)), ()))
    assert pool.target == 16
    pool.handle(NOW + 1, BatchRemoved("one"))
    pool.handle(pool.planner.wake_s(), TimerFired())
    assert pool.target == 0


def test_several_services_in_one_pool_need_one_chunk_and_targets_are_multiples_of_the_widest() -> None:
    batch, other = judged("one", ("a", 1), ("b", 4)), judged("two", ("c", 1), size=1)
    before = past((1.0,) * 4, (0.0, 100.0, 200.0, 300.0))
    before = replace(
        before, opened=replace(batch, batch="before"), record=replace(before.record, executions_s=((1.0,) * 4,) * 2)
    )
    pool = Pool()
    commands = pool.handle(NOW, BatchAdded(batch, (before,)))
    assert [one.chunk for one in commands if isinstance(one, PublishTarget)] == [4]
    pool.handle(NOW, FirstRequestArrived("one", NOW))
    assert pool.target == 4, "the requests come one after the other, and the services take turns"
    pool.handle(NOW, BatchAdded(other, ()))
    assert pool.target == 8, "five are needed"


def test_a_model_is_wanted_until_the_first_request_arrives() -> None:
    pool, batch = Pool(), judged("one", ("a", 2), ("b", 1), ("a", 2))
    wanted = [WantResidency(GPUS, "a", 2, "one"), WantResidency(GPUS, "b", 1, "one")]

    def wants(commands: list[Command]) -> list[WantResidency]:
        return [one for one in commands if isinstance(one, WantResidency)]

    assert wants(pool.handle(NOW, BatchAdded(batch, ()))) == wanted
    assert wants(pool.handle(pool.planner.wake_s(), TimerFired())) == wanted, "it is repeated at each review"
    assert wants(pool.handle(NOW + 20, FirstRequestArrived("one", NOW + 20))) == []


@pytest.mark.parametrize(("restore_s", "early_s"), [(0.0, 3.0), (12.0, 12.0)])
def test_a_pool_is_warmed_up_one_measured_restore_before_the_first_request(restore_s: float, early_s: float) -> None:
    batch = judged("one", ("a", 2))
    before = replace(past(gap_s=50.0), opened=replace(batch, batch="before", first_arrival_at=NOW + 50))
    pool = Pool(restore_s=restore_s, cold_start_s=3.0)
    assert pool.handle(NOW, BatchAdded(batch, (before,))) == []
    assert pool.planner.wake_s() == NOW + 50 - early_s
    commands = pool.handle(pool.planner.wake_s(), TimerFired())
    assert WantResidency(GPUS, "a", 2, "one") in commands
    assert pool.target >= 2


@pytest.mark.parametrize(("concurrency", "target"), [(1, 8), (4, 2), (2, 4)])
def test_a_batch_with_history_gets_the_engines_that_its_requests_share(concurrency: int, target: int) -> None:
    batch = replace(judged("one", ("a", 2)), max_extra_delay_s=0.0)
    before = replace(past((4.0,) * 4), opened=replace(batch, batch="before"))
    pool = Pool(concurrency=concurrency)
    pool.handle(NOW, BatchAdded(batch, (before,)))
    pool.handle(NOW, FirstRequestArrived("one", NOW))
    assert pool.target == target
