"""Measurements by name, and a run of some of them."""

import os
import platform
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import Final

import aiohttp

from treadle.lab.bench.actions import one_caller, single_actions, sleeping
from treadle.lab.bench.bench import Bench
from treadle.lab.bench.beside import beside_a_bulk
from treadle.lab.bench.bulk import in_bulk
from treadle.lab.bench.decisions import decisions
from treadle.lab.bench.dispatch import dispatch
from treadle.lab.bench.environments import acting, episodes, idle, overhead
from treadle.lab.bench.figures import BenchError, BenchFigure, BenchReport, Machine, Skipped
from treadle.lab.bench.gpu import gpus
from treadle.lab.bench.loop_time import loop_ms
from treadle.lab.bench.mesh import BenchMesh
from treadle.lab.bench.programs import graded_programs
from treadle.lab.bench.quota import quota_leases
from treadle.lab.bench.rest import at_rest, history
from treadle.lab.bench.results import archived_results
from treadle.lab.bench.router import routed_calls
from treadle.lab.bench.scaling import scaling
from treadle.lab.bench.starts import starts
from treadle.lab.bench.takeover import take_over


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement and its summary."""

    run: Callable[[Bench], Awaitable[list[BenchFigure]]]
    summary: str
    own_only: bool = False
    """It reads processes and servers, so it needs a stack of our own."""
    starts_its_own: bool = False
    """It uses no stack, or starts what it needs. Another one beside it would cost it time."""


MEASUREMENTS: dict[str, Measurement] = {
    "rest": Measurement(at_rest, "a stack at rest: CPU and memory", own_only=True),
    "single": Measurement(single_actions, "single empty actions, many callers"),
    "one": Measurement(one_caller, "single empty actions, one caller"),
    "bulk": Measurement(in_bulk, "reward requests in bulk"),
    "beside": Measurement(beside_a_bulk, "single empty actions of one tenant beside a bulk call of another"),
    "programs": Measurement(graded_programs, "graded Python programs"),
    "router": Measurement(routed_calls, "calls of a model through the trajectory router", own_only=True),
    "quota": Measurement(quota_leases, "leases of quotas: cost, use of an upstream's limit, tenants' shares"),
    "sleep": Measurement(sleeping, "one-second actions"),
    "history": Measurement(history, "batch histories", own_only=True),
    "results": Measurement(
        archived_results, "results beyond Valkey's memory, read again", own_only=True, starts_its_own=True
    ),
    "takeover": Measurement(take_over, "a leader is killed with a full journal", own_only=True, starts_its_own=True),
    "scaling": Measurement(scaling, "a small DistRS workload under the planner", own_only=True),
    "decisions": Measurement(
        decisions, "decisions on cores: 1,280 elastic actions on five nodes of 256 cores", starts_its_own=True
    ),
    "dispatch": Measurement(dispatch, "cost of a decision by nodes, waiting actions and tenants", starts_its_own=True),
    "gpu": Measurement(
        gpus, "GPUs: chunks, evictions, swaps, and judge calls through the mesh", own_only=True, starts_its_own=True
    ),
    "acting": Measurement(acting, "`true` in a live environment"),
    "episodes": Measurement(episodes, "24 environments with 50 actions each, every answer checked"),
    "overhead": Measurement(overhead, "overhead of actions in environments (ARL-Tangram, Table 1)"),
    "starts": Measurement(starts, "1,000 environments requested at once on one node", own_only=True),
    "idle": Measurement(idle, "200 idle environments with a busy loop left in each", own_only=True),
}
"""In the order of a run: the idle mesh first, before any load."""

NO_STACK: Final = BenchMesh("")
"""Mesh of a run in which each measurement starts its own."""

BROKEN = (BenchError, aiohttp.ClientError, OSError, TimeoutError)
"""Errors that end one measurement only."""


def need_a_stack(names: Iterable[str]) -> bool:
    """Return whether one of the measurements uses the stack of the whole run."""
    return any(not MEASUREMENTS[name].starts_its_own for name in names)


async def run_all(bench: Bench, names: Iterable[str], skipped: Iterable[Skipped] = ()) -> BenchReport:
    """Run the measurements ``names``, one after another.

    Args:
        skipped: known gaps of the report.
    """
    machine = Machine(os.cpu_count() or 1, platform.python_version(), os.getloadavg()[0], loop_ms())
    figures: list[BenchFigure] = []
    left_out, failed = list(skipped), []
    started = perf_counter()
    for name in names:
        measurement = MEASUREMENTS[name]
        if measurement.own_only and not bench.mesh.pids and bench.mesh is not NO_STACK:
            left_out.append(Skipped(name, "reads processes and servers: it needs a stack of its own (no --url)"))
            continue
        bench.log(f"{name}: {measurement.summary}")
        try:
            figures += await measurement.run(bench)
        except BROKEN as error:
            failed.append(Skipped(name, f"{type(error).__name__}: {error}"))
            bench.log(f"  failed: {error}")
    return BenchReport(
        machine=machine, took_s=perf_counter() - started, figures=figures, skipped=left_out, failed=failed
    )
