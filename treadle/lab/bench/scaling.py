"""Benchmark of the planner: a scaled-down workload of DistRS on a mesh of its own, and a replay of the decisions.

Two things are checked. A replay of the planner's stimulus log must give the same decisions. And the mesh must hold the
units that the same planner holds in virtual time, for the same requests.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np

from treadle.lab.bench.bench import Bench
from treadle.lab.bench.figures import BenchError, BenchFigure, at_least, figure
from treadle.lab.bench.mesh import BenchClient, BenchMesh, client
from treadle.lab.bench.sizes import ScalingSizes
from treadle.lab.bench.trainers import RESOURCE, Trainer, together, workflow
from treadle.lab.evaluations.planner_decisions import Comparison, compared, newest_log
from treadle.lab.replay.distrs.evaluation import PolicyRun, run
from treadle.lab.replay.distrs.generate import ITERATIONS, generate
from treadle.lab.replay.distrs.planner_policy import PlannerPolicy
from treadle.lab.replay.distrs.trace import RewardTrace, quicker
from treadle.stack.services import PROXY
from treadle.testing.servers import temporary_home
from treadle.testing.stack import running_stack

SEED = 1
"""Seed of the workload and of the planner's random draws."""
SLOTS = 512
"""Units of the node: more than all requests of two batches."""
HEARTBEAT_S = 0.25
"""Interval of the node's reports."""
REVIEW_S, AHEAD_S, HOLD_S = 1.0, 2.0, 0.5
"""Fastest settings of the planner, because its defaults are made for batches of minutes."""
RELEASE_TIMEOUT_S = 20.0
"""Time within which the mesh must release all units after the last batch."""


@dataclass(frozen=True)
class UnitSeconds:
    """Unit-seconds of the nodes, up to a moment."""

    owned: float
    used: float


@dataclass(frozen=True)
class LiveRun:
    """Measurements of the workload on the mesh."""

    held: UnitSeconds
    """From the end of the first batches to the end of all."""
    delays_s: list[float]
    """Extra delay of each batch that had history."""
    decided: Comparison


async def scaling(bench: Bench) -> list[BenchFigure]:
    """Run tasks in a closed loop as DistRS §3 describes them, all seconds divided; stages sleep and take no core.

    The first batch of a task has no history: all units are held for it, and it is not measured. In virtual time each
    stage has a pool of its own, but the mesh's stages share their slots. The difference is about one percent.

    It starts a stack of its own with a blocking call, because children are bound to the thread that starts them. No
    other task runs meanwhile.
    """
    sizes = bench.sizes.scaling
    trace = workload(sizes)
    with temporary_home() as root:
        logs = root.parent / "stimuli"
        with scaled_mesh(root, logs) as mesh:
            bench.log(f"  {sizes.tasks} tasks, {sizes.batches} batches each, {sizes.requests} requests a batch")
            async with client(mesh) as http:
                held, delays_s = await live(http, trace)
        measured = LiveRun(held, delays_s, compared(newest_log(logs)))
    bench.log(f"  {measured.decided.verdict()}")
    config, seed = measured.decided.header.config, measured.decided.header.seed
    return scaling_figures(measured, run(trace, PlannerPolicy("treadle", trace, config, seed)))


def workload(sizes: ScalingSizes) -> RewardTrace:
    """Return the batches in the middle of DistRS's training, with shorter times. Each request takes all stages, because
    a sleep never fails: a stage that it did not reach takes 0 s.
    """
    chance = np.random.default_rng(SEED)
    whole = generate(chance, architecture="colocated", tasks=sizes.tasks, iterations=ITERATIONS, size=sizes.requests)
    quick = quicker(whole, sizes.times, sizes.batches)
    tasks = [
        replace(task, batches=tuple(replace(one, executions_s=np.nan_to_num(one.executions_s)) for one in task.batches))
        for task in quick.tasks
    ]
    return replace(quick, tasks=tuple(tasks))


@contextmanager
def scaled_mesh(root: Path, logs: Path) -> Iterator[BenchMesh]:
    """Start a stack with a fast planner and stimulus logs.

    Raises:
        StackError: it did not start.
    """
    environ = {
        "CPU_MANAGER_NODE": "bench",
        "CPU_MANAGER_SLOTS": str(SLOTS),
        "CPU_MANAGER_HEARTBEAT_S": str(HEARTBEAT_S),
        "SCALING_PLANNER_STIMULUS_LOGS": str(logs),
        "SCALING_PLANNER_SEED": str(SEED),
        "SCALING_PLANNER_REVIEW_S": str(REVIEW_S),
        "SCALING_PLANNER_LOOK_AHEAD_S": str(AHEAD_S),
        "SCALING_PLANNER_STABILIZATION_S": str(HOLD_S),
    }
    with running_stack(root, environ=environ) as stack:
        yield BenchMesh(stack.urls[PROXY])


async def live(http: BenchClient, trace: RewardTrace) -> tuple[UnitSeconds, list[float]]:
    """Run the workload. Return the unit-seconds from when each task had history, and the extra delays of those batches.

    Raises:
        BenchError: a batch is not complete, or the mesh does not release unused units.
    """
    for task in trace.tasks:
        await http.declare_task(task.task, workflow(trace.stages, trace.max_extra_delay_s))
    trainers = [Trainer(http, task, trace.stages) for task in trace.tasks]
    await together(trainer.train(0, 1) for trainer in trainers)
    before = await _await_release(http)
    apart_s = [task.batches[0].gap_s for task in trace.tasks]  # between their starts, as in virtual time
    await together(
        trainer.train(1, len(trainer.traced.batches), wait_s) for trainer, wait_s in zip(trainers, apart_s, strict=True)
    )
    after = await _await_release(http)
    delays_s = [await _delay_s(http, batch) for trainer in trainers for batch in trainer.done[1:]]
    return UnitSeconds(after.owned - before.owned, after.used - before.used), delays_s


async def _await_release(http: BenchClient) -> UnitSeconds:
    """Wait until no unit is held; return the unit-seconds so far."""
    deadline = perf_counter() + RELEASE_TIMEOUT_S
    while True:
        nodes = [node for node in await http.nodes() if RESOURCE in node.capacity]
        owned = sum(node.owned.get(RESOURCE, SLOTS) for node in nodes)
        if nodes and not owned:
            return UnitSeconds(
                sum(node.owned_unit_s[RESOURCE] for node in nodes), sum(node.used_unit_s[RESOURCE] for node in nodes)
            )
        if perf_counter() > deadline:
            raise BenchError(
                f"{owned:,} {RESOURCE} are still held {RELEASE_TIMEOUT_S:.0f} s after the last batch ended"
            )
        await asyncio.sleep(HEARTBEAT_S / 2)


async def _delay_s(http: BenchClient, batch: str) -> float:
    found = await http.read_batch(batch)
    if found.state != "complete" or found.extra_delay_s is None:
        raise BenchError(f"batch {batch} is {found.state}, with {found.answered:,} answers, not complete")
    return found.extra_delay_s


def scaling_figures(measured: LiveRun, virtual: PolicyRun) -> list[BenchFigure]:
    made, held = measured.decided, measured.held
    what = f"of {made.stimuli:,} stimuli, decided the same again"
    if made.differences:
        what += f"; first otherwise: {made.differences[0].sentence()}"
    held_then, executed_then = float(virtual.worker_s.sum()), float(virtual.busy_s.sum())
    ratio, ratio_then = held.owned / held.used, held_then / executed_then
    batches = f"{len(measured.delays_s)} batches"
    return [
        figure("scaling.same", what, 100.0 * made.same_share, "%", at_least(100.0)),
        figure("scaling.decisions", "decisions: targets and expected completions", made.decisions, ""),
        figure(
            "scaling.delay", f"mean extra delay, {batches} with history", 1e3 * float(np.mean(measured.delays_s)), "ms"
        ),
        figure("scaling.virtual.delay", "the same in virtual time", 1e3 * virtual.mean_delay_s, "ms"),
        figure(
            "scaling.normalised", f"held over executed ({held.owned:,.0f} over {held.used:,.0f} slot-s)", ratio, "x"
        ),
        figure(
            "scaling.virtual.normalised",
            f"the same in virtual time ({held_then:,.0f} over {executed_then:,.0f})",
            ratio_then,
            "x",
        ),
    ]
