"""Many environments requested at once on one node: all become ready, and running environments continue to act."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from statistics import quantiles
from time import perf_counter
from typing import Any

from treadle.lab.bench.bench import Bench
from treadle.lab.bench.figures import BenchError, BenchFigure, at_least, figure
from treadle.lab.bench.mesh import WAIT_S, BenchClient, client

Json = dict[str, Any]
MEMORY_MB = 32
START_S = 900.0
"""Timeout of one environment. Most of them wait for the others."""
PAUSE_S = 0.05
"""Pause between two actions of the running environment."""
SNAPSHOT_DELAY = "the leader publishes waiting work every half second"
SAMPLE_S = 0.5
SAMPLED_ACTIONS = 32
"""Waiting actions whose reason is read, each time."""


@dataclass(slots=True)
class StartBurst:
    """Measurements of one burst of starts."""

    ready_s: list[float] = field(default_factory=list)
    """Seconds from the request to the answer of the first action."""
    failed: Counter[str] = field(default_factory=Counter)
    running_s: list[float] = field(default_factory=list)
    """Seconds of `true` in a running environment during the burst."""
    sampled: int = 0
    with_reason: int = 0
    """Waiting first actions whose state was read, and those of them with a reason."""
    waiting: dict[str, None] = field(default_factory=dict)
    """Unanswered first actions, by age."""


async def starts(bench: Bench) -> list[BenchFigure]:
    """Request far more environments at once than can start at once, while a running one acts."""
    figures: list[BenchFigure] = []
    for image in bench.images:
        runtime = "local" if image == "local" else "docker"
        count = bench.sizes.environment.starts if runtime == "local" else bench.sizes.environment.container_starts
        bench.log(f"  {count} environments at once, {runtime}")
        async with client(bench.mesh) as http:
            burst = await start_burst(http, image, count)
        if burst.failed:
            bench.log(f"  not ready: {dict(burst.failed)}")
        figures += _figures(burst, runtime, count)
    return figures


def _figures(burst: StartBurst, runtime: str, count: int) -> list[BenchFigure]:
    name = f"starts.{runtime}"
    half, late = _spread(burst.ready_s)
    acting, acting_late = _spread(burst.running_s)
    with_reason = burst.with_reason / burst.sampled * 100 if burst.sampled else 100.0
    return [
        figure(
            f"{name}.ready",
            f"of {count} environments requested at once, {runtime}",
            len(burst.ready_s),
            "",
            at_least(count),
        ),
        figure(f"{name}.p50", "from the request to the first answer", half, "s"),
        figure(f"{name}.p99", "and the slowest hundredth", late, "s"),
        figure(
            f"{name}.reasoned",
            "waiting actions with a reason",
            with_reason,
            "%",
            at_least(90, SNAPSHOT_DELAY),
        ),
        figure(f"{name}.running.p50", "`true` in a running environment during the starts", acting * 1e3, "ms"),
        figure(f"{name}.running.p99", "and the slowest hundredth", acting_late * 1e3, "ms"),
    ]


def _spread(seconds: list[float]) -> tuple[float, float]:
    """Return median and 99th percentile; NaN if there are too few."""
    if len(seconds) < 2:
        return float("nan"), float("nan")
    cuts = quantiles(seconds, n=100, method="inclusive")
    return cuts[49], cuts[98]


async def start_burst(http: BenchClient, image: str, count: int) -> StartBurst:
    """Open `count` environments at once, wait until each is ready or has failed, and close them.

    Raises:
        BenchError: the running environment fails.
    """
    burst, opened = StartBurst(), list[str]()
    running = await _open(http, image, opened)
    await _first(http, running, perf_counter())
    over = asyncio.Event()
    beside = [asyncio.create_task(work) for work in (_act(http, running, burst, over), _sample(http, burst, over))]
    try:
        await asyncio.gather(*(_begin(http, image, burst, opened) for _ in range(count)))
    finally:
        over.set()
        ends = await asyncio.gather(*beside, return_exceptions=True)
        await asyncio.gather(*(http.call("DELETE", f"/v1/trajectories/{name}", None) for name in opened))
    for end in ends:
        if isinstance(end, BaseException):
            raise end
    return burst


async def _open(http: BenchClient, image: str, opened: list[str]) -> str:
    body = {"environment": {"image": image, "memory_mb": MEMORY_MB, "disk_mb": 16}}
    opened.append(str((await http.call("POST", "/v1/trajectories", body))["id"]))
    return opened[-1]


async def _begin(http: BenchClient, image: str, burst: StartBurst, opened: list[str]) -> None:
    began = perf_counter()
    trajectory = await _open(http, image, opened)
    body = {"kind": "env.exec", "params": {"argv": ["true"]}, "request_id": "first"}
    action = str((await http.call("POST", f"/v1/trajectories/{trajectory}/actions", body))["id"])
    burst.waiting[action] = None
    answer: Json = {}
    while answer.get("state") != "finished" and perf_counter() - began < START_S:
        answer = await http.call("GET", f"/v1/actions/{action}?wait={WAIT_S}", None)
    del burst.waiting[action]
    if answer.get("passed"):
        burst.ready_s.append(perf_counter() - began)
    else:
        burst.failed[f"{answer.get('ended') or answer.get('state')}: {answer.get('reason')}"[:200]] += 1


async def _first(http: BenchClient, trajectory: str, began: float) -> float:
    body = {"kind": "env.exec", "params": {"argv": ["true"]}, "timeout_s": 60.0}
    answer = await http.call("POST", f"/v1/trajectories/{trajectory}/actions?wait={WAIT_S}", body)
    if answer.get("passed") is not True:
        raise BenchError(f"`true` did not pass: {answer}")
    return perf_counter() - began


async def _act(http: BenchClient, trajectory: str, burst: StartBurst, over: asyncio.Event) -> None:
    while not over.is_set():
        burst.running_s.append(await _first(http, trajectory, perf_counter()))
        await asyncio.sleep(PAUSE_S)


async def _sample(http: BenchClient, burst: StartBurst, over: asyncio.Event) -> None:
    """Read the reasons of the newest waiting actions, which wait longest."""
    while not over.is_set():
        await asyncio.sleep(SAMPLE_S)
        for action in list(burst.waiting)[-SAMPLED_ACTIONS:]:
            answer = await http.call("GET", f"/v1/actions/{action}", None)
            if answer.get("state") == "queued" and action in burst.waiting:
                burst.sampled += 1
                burst.with_reason += bool(answer.get("reason"))
