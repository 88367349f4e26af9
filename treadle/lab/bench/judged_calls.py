"""Judge calls through the mesh on one described GPU: their cost beside direct calls, and after a swap of engines.

A stack of its own has a GPU of 24 GB and three model services of 16 GB, each a real process (`judge_engine`). So a call
of another service than before evicts an engine and loads one.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import msgspec

from treadle.lab.bench import judge_engine
from treadle.lab.bench.bench import Bench
from treadle.lab.bench.closed_loop import Round, closed_loop, median_round, summarised
from treadle.lab.bench.contest import run_rounds
from treadle.lab.bench.cpu_meter import CpuMeter
from treadle.lab.bench.figures import BenchError, BenchFigure, at_most, figure
from treadle.lab.bench.judge_engine import CANARY, SCORE
from treadle.lab.bench.light_http import LightHttp
from treadle.lab.bench.mesh import BenchMesh, own_mesh
from treadle.lab.bench.sizes import GpuSizes

CALLERS: Final = 16
MODEL: Final = "judge"
SWAPPED: Final = ("swapped-a", "swapped-b")
QUESTION: Final = "Question: 2+2?\nAnswer: 4\nMark it from 0 to 10. End with `score: N`."
MOST_ADDED_MS: Final = 3.0
MOST_FIRST_BYTE_MS: Final = 2.0
SERVICES: Final = "proxy,gpu_manager"


class _Output(msgspec.Struct):
    text: str


class _Judged(msgspec.Struct):
    """The part of an answer that is checked here."""

    ended: str = ""
    score: float | None = None
    output: _Output | None = None


class Measured(msgspec.Struct, frozen=True):
    """What an engine says in its answer; see `judge_engine.EngineClock`."""

    port: int
    calls: int
    since_canary_ns: int


_judged: Final = msgspec.json.Decoder(_Judged).decode
_measured: Final = msgspec.json.Decoder(Measured).decode


def measured(answer: bytes) -> Measured:
    """Return what the engine has measured for an action's answer.

    Raises:
        BenchError: it is no judgement of the engine.
    """
    judged = _judged(answer)
    if judged.ended != "ok" or judged.score != SCORE or judged.output is None:
        raise BenchError(f"a judge call ended otherwise than with the score {SCORE}: {answer[:500].decode()}")
    return _measured(judged.output.text.removeprefix(f"score: {SCORE} "))


@dataclass(frozen=True, slots=True)
class Judges:
    """Model services of the bench's stack."""

    mesh: BenchMesh
    http: LightHttp

    async def judge(self, service: str) -> Measured:
        """Submit one judge action and await its answer."""
        params = {
            "service": service,
            "messages": [{"role": "user", "content": QUESTION}],
            "score": {"regex": "score: ([0-9]+)"},
        }
        body = msgspec.json.encode({"kind": "model.judge", "params": params, "timeout_s": 60})
        return measured(await self.http.post("/v1/actions?wait=60", body))


@contextmanager
def judging_mesh() -> Iterator[BenchMesh]:
    """Start a stack with the model services.

    Raises:
        StackError: it did not start.
    """
    with tempfile.TemporaryDirectory() as folder:
        declared = Path(folder) / "services.json"
        entries = {MODEL: _entry(concurrency=CALLERS), **{name: _entry() for name in SWAPPED}}
        declared.write_bytes(msgspec.json.encode(entries))
        settings = {"GPU_MANAGER_DEVICES": '[{"memory_gb": 24}]', "GPU_MANAGER_SERVICES": str(declared)}
        with own_mesh(1, services=SERVICES, settings=settings) as mesh:
            yield mesh


def _entry(concurrency: int = 1) -> dict[str, Any]:
    prompt, expect = CANARY
    return {
        "backend": "process",
        "model": MODEL,
        "command": [sys.executable, "-I", judge_engine.__file__, "--port", "{port}"],
        "memory_gb": {"awake": 16},
        "concurrency": concurrency,
        "canary": {"prompt": prompt, "expect": expect},
        "min_residency_s": 0,
        "keep_connections": True,  # the engine is an asynchronous server
    }


@asynccontextmanager
async def _judges(mesh: BenchMesh) -> AsyncIterator[Judges]:
    async with LightHttp.to(mesh.url) as http:
        yield Judges(mesh, http)


async def judged_calls(bench: Bench) -> list[BenchFigure]:
    """Measure calls of a resident engine beside direct ones; then calls that swap engines.

    The stack starts with a blocking call, because children are bound to the thread that starts them.
    """
    bench.log("  starting a stack with one described GPU")
    with judging_mesh() as mesh:
        async with _judges(mesh) as judges:
            return [*await _beside_direct(bench, judges), *await _after_swaps(bench, judges)]


# ---- beside direct calls ---------------------------------------------------------------------------------------------


async def _beside_direct(bench: Bench, judges: Judges) -> list[BenchFigure]:
    """Call through the mesh and the same engine directly, in turn."""
    sizes = bench.sizes
    port = (await judges.judge(MODEL)).port
    async with LightHttp.to(f"http://127.0.0.1:{port}") as engine:
        body = msgspec.json.encode(
            {
                "model": MODEL,
                "messages": [{"role": "user", "content": QUESTION}],
                "max_tokens": 256,
                "temperature": 0.0,
            }
        )
        directly = partial(engine.post, "/v1/chat/completions", body)
        through = partial(judges.judge, MODEL)
        await _alternating(directly, through, min(0.5, sizes.seconds))  # warm-up
        meter = CpuMeter(judges.mesh.pids)
        pairs: list[tuple[Round, Round]] = []

        async def one_caller() -> Round:
            pairs.append(pair := await _alternating(directly, through, sizes.seconds))
            return pair[1]

        for _ in range(sizes.rounds):
            await meter.over(one_caller)()
        many = await run_rounds(
            {
                "direct": partial(closed_loop, directly, callers=CALLERS, seconds=sizes.seconds),
                "judge": partial(closed_loop, through, callers=CALLERS, seconds=sizes.seconds),
            },
            sizes.rounds,
            bench.log,
        )
    direct, judged = (median_round([pair[side] for pair in pairs]) for side in (0, 1))
    return [
        *_added("gpu.judge.one", "judge call, one caller", direct, judged, judged_most_ms=MOST_ADDED_MS),
        *meter.figures("gpu.judge.one"),
        *_added(
            f"gpu.judge.{CALLERS}",
            f"judge call, {CALLERS} callers without a pause",
            median_round(many["direct"]),
            median_round(many["judge"]),
        ),
        figure(f"gpu.judge.{CALLERS}.rate", f"judge calls, {CALLERS} callers", median_round(many["judge"]).rate, "/s"),
    ]


async def _alternating(directly: partial[Any], through: partial[Any], seconds: float) -> tuple[Round, Round]:
    """Make a direct call and one through the mesh in turn, at least once each."""
    took: tuple[list[float], list[float]] = ([], [])
    started = perf_counter()
    while not took[1] or perf_counter() - started < seconds:
        for call, times in zip((directly, through), took, strict=True):
            began = perf_counter()
            await call()
            times.append(perf_counter() - began)
    elapsed_s = perf_counter() - started
    return summarised(took[0], elapsed_s), summarised(took[1], elapsed_s)


def _added(
    name: str, what: str, direct: Round, judged: Round, judged_most_ms: float | None = None
) -> list[BenchFigure]:
    added_ms = (judged.p50_s - direct.p50_s) * 1e3
    target = None if judged_most_ms is None else at_most(judged_most_ms)
    return [
        figure(f"{name}.direct.p50", f"{what}: the same engine directly, p50", direct.p50_s * 1e3, "ms"),
        figure(f"{name}.p50", f"{what}, p50", judged.p50_s * 1e3, "ms"),
        figure(f"{name}.p99", f"{what}, p99", judged.p99_s * 1e3, "ms"),
        figure(f"{name}.added.p50", f"{what}: p50 less that of direct calls", added_ms, "ms", target),
    ]


# ---- after a swap ----------------------------------------------------------------------------------------------------


async def _after_swaps(bench: Bench, judges: Judges) -> list[BenchFigure]:
    """Call two services in turn, so that each call loads an engine."""
    bench.log("  each call swaps engines")
    sizes: GpuSizes = bench.sizes.gpu
    late_s, swap_s = list[float](), list[float]()
    started = perf_counter()
    for service in itertools.cycle(SWAPPED):
        began = perf_counter()
        seen = await judges.judge(service)
        swap_s.append(perf_counter() - began)
        if seen.calls != 1 or seen.since_canary_ns <= 0:
            raise BenchError(f"the engine of {service} was not loaded for this call: {seen}")
        late_s.append(seen.since_canary_ns / 1e9)
        if len(late_s) >= sizes.swaps and perf_counter() - started >= bench.sizes.seconds:
            break
        if perf_counter() - started >= sizes.swaps_s:
            break
    return first_byte_figures(late_s, swap_s)


def first_byte_figures(late_s: list[float], swap_s: list[float]) -> list[BenchFigure]:
    """Return the figures of calls that each loaded an engine.

    Args:
        late_s: from the engine's answer to its canary to the first byte of the call.
        swap_s: from the call to its answer.
    """
    late, swap = summarised(late_s, 1.0), summarised(swap_s, 1.0)
    what = f"from the canary's answer to the call's first byte, {len(late_s)} swaps"
    target = at_most(MOST_FIRST_BYTE_MS)
    return [
        figure("gpu.first_byte.p50", f"{what}, p50", late.p50_s * 1e3, "ms", target),
        figure("gpu.first_byte.p99", f"{what}, p99", late.p99_s * 1e3, "ms", target),
        figure("gpu.swap.p50", "a call that stops one engine and starts another, p50", swap.p50_s * 1e3, "ms"),
    ]
