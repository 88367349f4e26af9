"""Model services on few GPUs: cases by hand, laws of each system, and the mesh against its own nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shared.policy.model.chunks import Chunk
from shared.policy.model.elasticity import RIGID, Elasticity
from shared.policy.serving.model import InstanceId
from treadle.lab.replay.gpu.assumptions import CLUSTER, ENGINES, Engines, GpuCluster
from treadle.lab.replay.gpu.evaluation import DEFAULT, FIXED, OURS, STATIC, SYSTEMS, VARIANTS, GpuSetting
from treadle.lab.replay.gpu.evaluation import replay as replay_batch
from treadle.lab.replay.gpu.fifo_swapper import FifoSwapper
from treadle.lab.replay.gpu.measures import GpuRun
from treadle.lab.replay.gpu.rollout import Done, ModelServing, run_batch
from treadle.lab.replay.gpu.simulated_mesh import GpuMesh, GpuRules
from treadle.lab.replay.gpu.simulated_node import SimulatedGpuNode, restore_s
from treadle.lab.replay.gpu.static_partition import StaticPartition
from treadle.lab.replay.gpu.trace import GpuBatch, GpuCall, ModelService
from treadle.lab.replay.search.virtual_time import VirtualTime
from treadle.lab.replay.tangram.simulated_mesh import SimulationError

ONE = GpuCluster(nodes=1, gpus=1)
PLAIN = replace(ENGINES, restore_s=2.0, evict_s=0.5, canary_s=0.25, action_s=0.0)
SMALL = replace(DEFAULT, size=64, rollout=replace(DEFAULT.rollout, token_s=0.002))
"""64 calls within half a minute: all of them meet others."""


def drawn(setting: GpuSetting, seed: int) -> GpuBatch:
    return setting.batch(np.random.default_rng(seed))


def replay(system: str, setting: GpuSetting, seed: int) -> GpuRun:
    return replay_batch(system, setting, drawn(setting, seed))


def services(*names: str, gb: float = 60.0, concurrency: int = 1) -> dict[str, ModelService]:
    return {name: ModelService(name, gb, RIGID, 1.0, concurrency, (1,)) for name in names}


def batch(named: dict[str, ModelService], *calls: tuple[str, float]) -> GpuBatch:
    made = (GpuCall(number, service, due_s, 1.0) for number, (service, due_s) in enumerate(calls))
    return GpuBatch(tuple(named.values()), tuple(made))


def mesh(
    named: dict[str, ModelService],
    calls: GpuBatch,
    rules: GpuRules,
    cluster: GpuCluster = ONE,
    engines: Engines = PLAIN,
) -> GpuRun:
    time, run = VirtualTime(), GpuRun("mesh", cluster.all_gpus)
    serving = GpuMesh(time, named, cluster, engines, rules, run)
    run_batch(time, serving, calls, run)
    serving.dispatcher.check()
    return run


def waits(run: GpuRun) -> list[float]:
    return [round(queue_s + overhead_s, 6) for queue_s, overhead_s in zip(run.queue_s, run.overhead_s, strict=True)]


@pytest.mark.parametrize("variant", ["vLLM sleep level 2", "vLLM sleep level 1"])
def test_engines_that_are_restored_slowly_execute_before_they_are_evicted(variant: str) -> None:
    """A restore of 6.5 s is longer than a turn. With turns from the grant on, six of ten calls restored an engine."""
    run = replay(FIXED, replace(VARIANTS[variant], size=1024), 1)
    assert run.swaps < 350, "restores for 1,000 calls"
    assert run.mean_queue_s < 10


# ---- by hand -----------------------------------------------------------------------------------------------------


def test_an_engine_is_restored_once_and_then_resident() -> None:
    named = services("a")
    run = mesh(named, batch(named, ("a", 0.0), ("a", 10.0)), GpuRules(degree=1))
    assert run.restores == 1
    assert waits(run) == [2.25, 0.0]
    assert run.ended_s == pytest.approx(11.0)


def test_another_service_evicts_it_first() -> None:
    named = services("a", "b")
    run = mesh(named, batch(named, ("a", 0.0), ("b", 10.0), ("a", 20.0)), GpuRules(degree=1))
    assert run.restores == 3
    assert waits(run) == [2.25, 2.75, 2.75]


def test_two_small_services_stay_on_one_gpu() -> None:
    named = services("a", "b", gb=30.0)
    run = mesh(named, batch(named, ("a", 0.0), ("b", 10.0), ("a", 20.0)), GpuRules(degree=1))
    assert run.restores == 2
    assert waits(run) == [2.25, 2.25, 0.0]


def test_calls_of_one_service_are_batched_before_a_swap() -> None:
    named = services("a", "b")
    order = batch(named, ("a", 0.0), ("b", 0.1), ("a", 0.2), ("b", 0.3), ("a", 0.4))
    assert mesh(named, order, GpuRules(degree=1, swap_wait_s=60.0)).restores == 2
    assert mesh(named, order, GpuRules(degree=1, swap_wait_s=0.0)).restores == 5


def test_calls_share_an_engine_up_to_its_concurrency() -> None:
    named = services("a", concurrency=2)
    run = mesh(named, batch(named, ("a", 0.0), ("a", 0.0), ("a", 0.0)), GpuRules(degree=1))
    assert run.ended_s == pytest.approx(2.25 + 1.0 + 1.0)


def test_a_restore_copies_the_part_of_each_gpu() -> None:
    one = ModelService("a", 51.6, RIGID, 1.0)
    assert restore_s(one, 1, ENGINES) == pytest.approx(ENGINES.wake_s + 2.0)
    assert restore_s(one, 4, ENGINES) == pytest.approx(ENGINES.wake_s + 0.5)
    assert restore_s(one, 4, PLAIN) == 2.0


def test_degrees_that_do_not_fit_are_not_offered() -> None:
    named = {"a": ModelService("a", 150.0, Elasticity("amdahl", serial=1.0), 1.0)}
    run = mesh(named, batch(named, ("a", 0.0)), GpuRules(), GpuCluster(nodes=1, gpus=8))
    assert run.degrees[0] in (4, 8)


def test_static_replicas_take_calls_by_load() -> None:
    named, time, run = services("a", "b"), VirtualTime(), GpuRun("static", 4)
    calls = batch(named, ("a", 0.0), ("a", 0.0), ("a", 0.5), ("b", 0.5))
    run_batch(time, StaticPartition(time, named, 2, 1, 0.25, run), calls, run)
    assert run.queue_s == [0.0, 0.0, 0.0, 0.75]
    assert run.ended_s == pytest.approx(2.5)


def test_nobody_passes_the_head_of_the_fifo_swapper() -> None:
    named, time, run = services("a", "b"), VirtualTime(), GpuRun("fifo", 1)
    calls = batch(named, ("a", 0.0), ("b", 0.1), ("a", 0.2))
    run_batch(time, FifoSwapper(time, named, 1, 1, {"a": 3.0, "b": 5.0}, 0.0, run), calls, run)
    assert run.restores == 3
    assert run.queue_s == pytest.approx([0.0, 3.9, 9.8])
    assert run.overhead_s == [3.0, 5.0, 3.0]


def test_the_fifo_swapper_evicts_what_was_used_least_recently() -> None:
    named, time, run = services("a", "b", "c"), VirtualTime(), GpuRun("fifo", 2)
    calls = batch(named, ("a", 0.0), ("b", 10.0), ("a", 20.0), ("c", 30.0), ("a", 40.0), ("b", 50.0))
    run_batch(time, FifoSwapper(time, named, 2, 1, dict.fromkeys(named, 1.0), 0.0, run), calls, run)
    assert run.overhead_s == [1.0, 1.0, 0.0, 1.0, 0.0, 1.0]


# ---- laws ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mix", ["MOPD", "MOPD+Search"])
@pytest.mark.parametrize("system", SYSTEMS)
def test_each_call_is_served_once_and_its_parts_add_up(system: str, mix: str) -> None:
    setting = replace(SMALL, mix=mix)  # type: ignore[arg-type]
    run, calls = replay(system, setting, 1), drawn(setting, 1)
    assert run.calls == len(calls.calls) == 64 * (1 + (mix == "MOPD+Search"))
    assert min(run.queue_s) >= -1e-9
    assert min(run.overhead_s) >= ENGINES.action_s - 1e-9
    assert run.act_s == pytest.approx(run.mean_queue_s + run.mean_execution_s + run.mean_overhead_s)
    assert run.ended_s >= max(call.due_s for call in calls.calls)
    assert run.restores == 0 if system == STATIC else 0 < run.restores <= run.calls


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_same_seed_gives_the_same_run_and_another_one_does_not(system: str) -> None:
    assert replay(system, SMALL, 1) == replay(system, SMALL, 1)
    assert replay(system, SMALL, 2).execution_s != replay(system, SMALL, 1).execution_s


def test_a_fixed_degree_executes_as_long_as_the_static_partition() -> None:
    ours, static = replay(FIXED, SMALL, 1), replay(STATIC, SMALL, 1)
    assert set(ours.degrees) == {4}
    assert sorted(ours.execution_s) == pytest.approx(sorted(static.execution_s))


def test_dearer_restores_take_longer() -> None:
    dear = replace(SMALL, engines=replace(ENGINES, restore_s=20.0))
    assert replay(FIXED, dear, 1).mean_overhead_s > replay(FIXED, SMALL, 1).mean_overhead_s
    assert replay(STATIC, dear, 1) == replay(STATIC, SMALL, 1)


def test_two_services_on_one_gpu_are_an_error() -> None:
    named, time = services("a", "b", gb=30.0), VirtualTime()
    node = SimulatedGpuNode(time, named, ONE, PLAIN, lambda: None)
    admitted = list[str]()
    node.want("1", "a", (0,), lambda: admitted.append("1"))
    while not admitted:
        assert time.step()
    assert node.resident() == {"a": frozenset({Chunk(0, 1)}), "b": frozenset()}
    node._using["1"] = node._using["1"]._replace(service="b@1")
    with pytest.raises(SimulationError, match="2 uses a@1 on GPU 0 beside 1"):
        node._admit("2", InstanceId("a@1", node._using["1"].chunk))


def test_calls_that_wait_forever_are_an_error() -> None:
    class Silent(ModelServing):
        def call(self, call: GpuCall, done: Done) -> None:
            pass

    named = services("a")
    with pytest.raises(SimulationError, match="1 calls wait at 1 s"):
        run_batch(VirtualTime(), Silent(), batch(named, ("a", 1.0)), GpuRun("silent", 0))


def test_variants_differ_from_the_evaluation_in_what_they_name() -> None:
    assert VARIANTS["as it is"] == GpuSetting()
    assert len({repr(one) for one in VARIANTS.values()}) == len(VARIANTS)
    assert DEFAULT.cluster == CLUSTER
    assert OURS in SYSTEMS
