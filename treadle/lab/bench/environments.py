"""Trajectories' environments through the proxy, on the stack's own node."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from statistics import median
from time import perf_counter
from typing import Any

from shared.messages.environments import LOCAL
from treadle.lab.bench.bench import Bench
from treadle.lab.bench.containers import by_the_engine
from treadle.lab.bench.episodes import play_episode
from treadle.lab.bench.figures import BenchError, BenchFigure, at_least, at_most, figure
from treadle.lab.bench.mesh import WAIT_S, BenchClient, client
from treadle.lab.bench.processes import cpu_by_service, cpu_named, used_between

Json = dict[str, Any]
MEMORY_MB = 48
CALLS = 15
"""Calls of update and exec through the engine's API, which are slow."""
OPEN_AT_ONCE = 4
"""More at once do not let an engine create more containers per second."""


@asynccontextmanager
async def trajectory(
    http: BenchClient, image: str, **environment: Any
) -> AsyncIterator[Callable[..., Awaitable[Json]]]:
    """Open a trajectory and close it at the end; yield (kind, params, timeout_s) -> answer."""
    opened = await http.call("POST", "/v1/trajectories", _body(image, environment))
    path = f"/v1/trajectories/{opened['id']}"

    async def act(kind: str, params: Json, timeout_s: float = 60.0, **more: Any) -> Json:
        body = {"kind": kind, "params": params, "timeout_s": timeout_s, **more}
        return await http.call("POST", f"{path}/actions?wait={WAIT_S}", body)

    try:
        yield act
    finally:
        await http.call("DELETE", path, None)


def _body(image: str, environment: Json) -> Json:
    return {"environment": {"image": image, "memory_mb": MEMORY_MB, **environment}}


def runtime_of(image: str) -> str:
    """Return the runtime's name in figures."""
    return "local" if image == LOCAL else "docker"


async def acting(bench: Bench) -> list[BenchFigure]:
    """`true` in a live environment with one caller: grant, thaw, run, freeze, answer."""
    figures: list[BenchFigure] = []
    for image in bench.images:
        runtime = runtime_of(image)
        bench.log(f"  {bench.sizes.environment.actions} times `true`, {runtime}")
        async with client(bench.mesh) as http, trajectory(http, image) as act:
            taken = [
                await _timed(act, "env.exec", {"argv": ["true"]}) for _ in range(bench.sizes.environment.actions + 20)
            ][20:]
            name = f"acting.{runtime}.p50"
            figures.append(
                figure(name, f"`true` in a live {runtime} environment", median(taken) * 1e3, "ms", at_most(10))
            )
    for image in bench.images:
        if image != LOCAL:
            bench.log(f"  {CALLS} times update and exec through the engine's API")
            slow_s = median(await by_the_engine(image, CALLS))
            figures.append(figure("acting.engine.p50", "the same by update + exec through the API", slow_s * 1e3, "ms"))
    return figures


async def _timed(act: Callable[..., Awaitable[Json]], kind: str, params: Json) -> float:
    began = perf_counter()
    answer = await act(kind, params)
    taken = perf_counter() - began
    if answer.get("passed") is not True:
        raise BenchError(f"{kind} did not pass: {answer}")
    return taken


async def episodes(bench: Bench) -> list[BenchFigure]:
    """Two dozen environments at once with fifty actions each: files, shells, background processes, time limits."""
    sizes, figures = bench.sizes.environment, list[BenchFigure]()
    for image in bench.images:
        runtime = runtime_of(image)
        bench.log(f"  {sizes.environments} environments, {sizes.steps} actions each, {runtime}")

        async def one(http: BenchClient, seed: int, image: str = image) -> int:
            async with trajectory(http, image) as act:
                answers, wrong = await play_episode(act, seed, sizes.steps)
            if wrong:
                bench.log(f"  {wrong[0]}")
            return len(answers) - len(wrong)

        async with client(bench.mesh) as http:
            began = perf_counter()
            right = sum(await asyncio.gather(*(one(http, seed) for seed in range(sizes.environments))))
            taken = perf_counter() - began
        total = sizes.environments * sizes.steps
        name, what = (
            f"episodes.{runtime}",
            f"actions of {sizes.environments} x {sizes.steps} whose answer is right, {runtime}",
        )
        figures += [
            figure(name, what, right, "", at_least(total)),
            figure(f"{name}.rate", "and so many a second", total / taken, "/s"),
        ]
    return figures


async def idle(bench: Bench) -> list[BenchFigure]:
    """Idle environments with a busy loop left in each."""
    sizes, figures = bench.sizes.environment, list[BenchFigure]()
    for image in bench.images:
        runtime = runtime_of(image)
        bench.log(f"  making {sizes.idle} environments, {runtime}")
        async with client(bench.mesh) as http:
            began = perf_counter()
            opened = await _open_busy(http, image, sizes.idle)
            made_s = perf_counter() - began
            try:
                bench.log(f"  resting for {sizes.idle_s:.0f} s")
                await asyncio.sleep(2.0)
                figures += await _at_rest(bench, runtime)
            finally:
                for name in opened:
                    await http.call("DELETE", f"/v1/trajectories/{name}", None)
                await _until_empty(http)
        figures.append(
            figure(f"idle.{runtime}.made", f"environments made a second, {runtime}", sizes.idle / made_s, "/s")
        )
    return figures


async def _open_busy(http: BenchClient, image: str, count: int) -> list[str]:
    at_once = asyncio.Semaphore(OPEN_AT_ONCE)
    opened: list[str] = []

    async def one() -> None:
        async with at_once:
            view = await http.call("POST", "/v1/trajectories", _body(image, {"memory_mb": 32, "disk_mb": 16}))
            opened.append(str(view["id"]))
            body = {"kind": "env.bash", "params": {"line": "while true; do :; done &"}, "timeout_s": 60}
            answer = await http.call("POST", f"/v1/trajectories/{view['id']}/actions?wait={WAIT_S}", body)
            if answer.get("passed") is not True:
                raise BenchError(f"an environment was not made: {answer}")

    await asyncio.gather(*(one() for _ in range(count)))
    return opened


async def _at_rest(bench: Bench, runtime: str) -> list[BenchFigure]:
    sizes, manager = bench.sizes.environment, {"cpu_manager": bench.mesh.pids["cpu_manager"]}
    before, inside, began = cpu_by_service(manager), cpu_named("bash"), perf_counter()
    await asyncio.sleep(sizes.idle_s)
    taken = perf_counter() - began
    used = used_between(before, cpu_by_service(manager))["cpu_manager"]
    busy_s = cpu_named("bash") - inside
    what = f"{sizes.idle} idle {runtime} environments, a busy loop left in each, of a core"
    return [
        figure(f"idle.{runtime}.environments", what, busy_s / taken * 100, "%", at_most(0.5)),
        figure(
            f"idle.{runtime}.manager",
            "their manager and all it started, of a core",
            used / taken * 100,
            "%",
            at_most(2),
        ),
    ]


async def _until_empty(http: BenchClient) -> None:
    for _ in range(600):
        (node,) = (await http.call("GET", "/v1/nodes", None))["nodes"]
        if not node["used"].get("memory_mb"):
            return
        await asyncio.sleep(0.2)
    raise BenchError("environments were not ended in two minutes")


async def overhead(bench: Bench) -> list[BenchFigure]:
    """Table 1 of ARL-Tangram (§6.4) at small scale: closed loops of thinking and acting, tools short, rewards long."""
    sizes, figures = bench.sizes.environment, list[BenchFigure]()
    for image in bench.images:
        runtime = runtime_of(image)
        bench.log(f"  {sizes.trainers} trajectories of {sizes.turns} turns, {runtime}")
        async with client(bench.mesh) as http:
            spent = await asyncio.gather(*(_turns(http, image, seed, sizes.turns) for seed in range(sizes.trainers)))
        acts = [act for one in spent for act in one]
        execution_s = sum(act["execution_s"] for act in acts)
        share = sum(act["overhead_s"] for act in acts) / execution_s * 100
        queue = sum(act["queue_s"] for act in acts) / execution_s * 100
        figures += [
            figure(
                f"overhead.{runtime}", f"overhead of actions over their execution, {runtime}", share, "%", at_most(2)
            ),
            figure(f"overhead.{runtime}.queue", "and their queueing", queue, "%"),
            figure(f"overhead.{runtime}.execution", "mean execution", execution_s / len(acts) * 1e3, "ms"),
        ]
    return figures


async def _turns(http: BenchClient, image: str, seed: int, turns: int) -> list[Json]:
    """One trajectory: tool actions of 1 ms to some 100, each after a thought, then a reward of seconds."""
    rng = random.Random(seed)
    acts: list[Json] = []
    async with trajectory(http, image) as act:
        await act("env.exec", {"argv": ["true"]})
        for turn in range(turns):
            await asyncio.sleep(rng.uniform(0.2, 0.6))
            lasts_s = min(rng.lognormvariate(-2.5, 1.0), 1.0) if turn + 1 < turns else rng.uniform(1.0, 3.0)
            answer = await act("env.exec", {"argv": ["sleep", f"{lasts_s:.3f}"]})
            if answer.get("passed") is not True:
                raise BenchError(f"`sleep` did not pass: {answer}")
            acts.append(answer["act"])
    return acts
