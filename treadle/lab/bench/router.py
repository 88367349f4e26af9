"""The trajectory router: added latency, rate, lag of streams, memory. Beside a direct connection, in the same run."""

import asyncio
import io
import itertools
import os
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import aiohttp
import msgspec

from treadle.lab.bench.bench import Bench
from treadle.lab.bench.bench_engine import EVENTS, MODEL
from treadle.lab.bench.closed_loop import Round, closed_loop, median_round, percentile
from treadle.lab.bench.contest import ratio, run_rounds
from treadle.lab.bench.figures import BenchError, BenchFigure, at_least, at_most, figure
from treadle.lab.bench.mesh import BenchMesh
from treadle.lab.bench.processes import memory_bytes
from treadle.lab.bench.recorded_calls import recorded_calls
from treadle.mesh import mesh_command

CALLERS: Final = 64
STREAMS: Final = 64
TRAJECTORIES: Final = 10_000
PEERS: Final = ("sglang_router", "vllm_router")
LONG_TOKENS: Final = 100_000
BYTES_A_TOKEN: Final = 4
START_S: Final = 30.0
ROUTER: Final = "trajectory_router"
_SENT: Final = re.compile(rb'"sent":(\d+)')


@dataclass(frozen=True, slots=True)
class ModelTarget:
    """An address that answers calls of a model."""

    url: str
    http: aiohttp.ClientSession

    def call(self, tokens: int = 8, trajectories: int = 256, name: str = "t") -> Callable[[], Awaitable[None]]:
        """Return a call with a prompt of `tokens` tokens. Calls go round trajectories whose ids begin with `name`."""
        text = "word" * tokens
        body = msgspec.json.encode({"model": MODEL, "messages": [{"role": "user", "content": text}]})
        names = itertools.cycle([f"{name}{number}" for number in range(trajectories)])

        async def call() -> None:
            headers = {"content-type": "application/json", "x-trajectory-id": next(names)}
            data = body if len(body) < 1 << 16 else io.BytesIO(body)
            async with self.http.post(f"{self.url}/v1/chat/completions", data=data, headers=headers) as response:
                answer = await response.read()
            if response.status != 200:
                raise BenchError(f"{self.url} answered {response.status}: {answer[:300].decode(errors='replace')}")

        return call

    async def lags_ms(self, name: str) -> list[float]:
        """Return how late each event of one streamed answer arrived, ms after the engine has sent it."""
        headers = {"content-type": "application/json", "x-trajectory-id": name}
        body = b'{"stream":true,"model":"%s","messages":[]}' % MODEL.encode()
        lags: list[float] = []
        async with self.http.post(f"{self.url}/v1/chat/completions", data=body, headers=headers) as response:
            async for line in response.content:
                now = time.monotonic_ns()
                if (sent := _SENT.search(line)) is not None:
                    lags.append((now - int(sent[1])) / 1e6)
        if len(lags) != EVENTS:
            raise BenchError(f"a stream of {self.url} had {len(lags)} of {EVENTS} events")
        return lags


async def routed_calls(bench: Bench) -> list[BenchFigure]:
    """Measure calls of a model through the stack's router, and directly; then through a replica that does not lead."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as http,
        _engine() as (engine_url, _),
        _leader(bench.mesh, http) as (router_url, pid),
    ):
        async with http.post(f"{router_url}/workers", json={"url": engine_url}) as response:
            if response.status != 202:
                raise BenchError(f"the router refused the engine: {await response.text()}")
        direct, routed = ModelTarget(engine_url, http), ModelTarget(router_url, http)
        return [
            *await _latencies(bench, direct, routed),
            *await _rates(bench, direct, routed),
            *await _streams(bench, direct, routed),
            await _memory(routed, pid),
            await _followed(bench, direct, http),
            await _killed(bench, router_url, http),
            *await _recorded(bench, router_url, engine_url, http),
        ]


async def _latencies(bench: Bench, direct: ModelTarget, routed: ModelTarget) -> list[BenchFigure]:
    figures: list[BenchFigure] = []
    for name, tokens, what in (("one", 8, "one caller"), ("long", LONG_TOKENS, f"a prompt of {LONG_TOKENS:,} tokens")):
        rounds = await run_rounds(
            {place: _round(target.call(tokens), 1, bench.sizes.seconds) for place, target in _both(direct, routed)}
            | (_peers(bench, 1) if name == "one" else {}),
            bench.sizes.rounds,
            bench.log,
        )
        p50_ms = {place: median_round(these).p50_s * 1e3 for place, these in rounds.items()}
        added = p50_ms["routed"] - p50_ms["direct"]
        figures += [
            figure(f"router.{name}.direct.p50", f"{what}, without the router, p50", p50_ms["direct"], "ms"),
            figure(
                f"router.{name}.added.p50",
                f"{what}: added by the router, p50",
                added,
                "ms",
                at_most(1.5) if name == "one" else None,
            ),
        ]
        for peer in PEERS:
            if peer in p50_ms:
                added = p50_ms[peer] - p50_ms["direct"]
                figures.append(figure(f"router.{peer}.added.p50", f"{peer}: {what}, added, p50", added, "ms"))
    return figures


async def _rates(bench: Bench, direct: ModelTarget, routed: ModelTarget) -> list[BenchFigure]:
    rounds = await run_rounds(
        {place: _round(target.call(), CALLERS, bench.sizes.seconds) for place, target in _both(direct, routed)}
        | _peers(bench, CALLERS),
        bench.sizes.rounds,
        bench.log,
    )
    rates = {place: median_round(these).rate for place, these in rounds.items()}
    figures = [
        figure("router.rate", f"calls through the router, {CALLERS} callers", rates["routed"], "/s", at_least(1000)),
        figure("router.rate/direct", "the same by calls without it", ratio(rates["routed"], rates["direct"]), "x"),
    ]
    for peer in PEERS:
        if peer in rates:
            least = at_least(0.5) if peer == "vllm_router" else None
            by_rate = ratio(rates["routed"], rates[peer])
            figures += [
                figure(f"router.{peer}.rate", f"{peer}: {CALLERS} callers", rates[peer], "/s"),
                figure(f"router.rate/{peer}", f"our rate by that of {peer}", by_rate, "x", least),
            ]
    return figures


async def _streams(bench: Bench, direct: ModelTarget, routed: ModelTarget) -> list[BenchFigure]:
    late_ms: dict[str, float] = {}
    for place, target in _both(direct, routed):
        lags = await asyncio.gather(*(target.lags_ms(f"s{number}") for number in range(STREAMS)))
        late_ms[place] = percentile(sorted(lag for one in lags for lag in one), 99)
        bench.log(f"  {STREAMS} streams, {place}: p99 of an event's lag {late_ms[place]:.1f} ms")
    what = f"{STREAMS} streams: an event's lag, p99"
    return [
        figure("router.stream.direct.p99", f"{what}, without the router", late_ms["direct"], "ms"),
        figure(
            "router.stream.added.p99", f"{what}, added by it", late_ms["routed"] - late_ms["direct"], "ms", at_most(5.0)
        ),
    ]


async def _memory(routed: ModelTarget, pid: int) -> BenchFigure:
    """Let many trajectories make a call each, and read the router's memory."""
    call = routed.call(trajectories=TRAJECTORIES)
    waiting = asyncio.Semaphore(CALLERS)

    async def once() -> None:
        async with waiting:
            await call()

    await asyncio.gather(*(once() for _ in range(TRAJECTORIES)))
    what = f"memory of the router with {TRAJECTORIES:,} live trajectories"
    return figure("router.memory", what, memory_bytes(pid) / 1e6, "MB", at_most(200.0))


async def _followed(bench: Bench, direct: ModelTarget, http: aiohttp.ClientSession) -> BenchFigure:
    """A replica admits by messages with the leader."""
    async with _replica(bench.mesh, http) as (url, _):
        rounds = await run_rounds(
            {
                place: _round(target.call(), 1, bench.sizes.seconds)
                for place, target in _both(direct, ModelTarget(url, http))
            },
            bench.sizes.rounds,
            bench.log,
        )
    p50_ms = {place: median_round(these).p50_s * 1e3 for place, these in rounds.items()}
    added_ms = p50_ms["routed"] - p50_ms["direct"]
    return figure("router.replica.added.p50", "one caller: added by a replica that does not lead, p50", added_ms, "ms")


async def _killed(bench: Bench, router_url: str, http: aiohttp.ClientSession) -> BenchFigure:
    """Kill one of two engines under load, and count what its clients notice."""
    errors, routed = 0, ModelTarget(router_url, http).call(name="killed")

    async def call() -> None:
        nonlocal errors
        try:
            await routed()
        except (BenchError, aiohttp.ClientError):
            errors += 1

    async with _engine() as (url, process):
        async with http.post(f"{router_url}/workers", json={"url": url}) as response:
            response.raise_for_status()
        await closed_loop(call, callers=CALLERS, seconds=bench.sizes.seconds / 2)  # pins trajectories to both
        async with asyncio.timeout(START_S):
            while not await _trajectories(f"{router_url}/workers/{quote(url, safe='')}", http):  # noqa: ASYNC110
                await asyncio.sleep(0.1)  # the router stores what its workers do once a second
        running = asyncio.create_task(closed_loop(call, callers=CALLERS, seconds=bench.sizes.seconds))
        await asyncio.sleep(bench.sizes.seconds / 2)
        process.kill()
        await running
        async with http.delete(f"{router_url}/workers/{quote(url, safe='')}") as response:
            response.raise_for_status()
    return figure("router.killed.errors", "errors of clients when one of two workers is killed", errors, "", at_most(0))


async def _trajectories(worker_url: str, http: aiohttp.ClientSession) -> int:
    async with http.get(worker_url) as response:
        return int((await response.json())["trajectories"])


async def _recorded(bench: Bench, router_url: str, former: str, http: aiohttp.ClientSession) -> list[BenchFigure]:
    """Let another engine take the place of the former one: one that reports ids."""
    async with _engine("--ids") as (engine_url, _):
        async with http.post(f"{router_url}/workers", json={"url": engine_url}) as response:
            response.raise_for_status()
        async with http.delete(f"{router_url}/workers/{quote(former, safe='')}") as response:
            response.raise_for_status()
        return await recorded_calls(bench, router_url, engine_url, http)


def _peers(bench: Bench, callers: int) -> dict[str, Callable[[], Awaitable[Round]]]:
    """Return a round of each router of others, before an engine of its own."""

    def contestant(name: str) -> Callable[[], Awaitable[Round]]:
        return lambda: bench.peers[name].round(callers, bench.sizes.seconds)

    return {name: contestant(name) for name in PEERS if name in bench.peers}


def _both(direct: ModelTarget, routed: ModelTarget) -> tuple[tuple[str, ModelTarget], ...]:
    return ("direct", direct), ("routed", routed)


def _round(call: Callable[[], Awaitable[None]], callers: int, seconds: float) -> Callable[[], Awaitable[Round]]:
    return lambda: closed_loop(call, callers=callers, seconds=seconds)


@asynccontextmanager
async def _engine(*options: str) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """Yield address and process of an engine without a model."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "treadle.lab.bench.bench_engine",
        *options,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_S):
            port = int(await process.stdout.readline())
        yield f"http://127.0.0.1:{port}", process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def _leader(mesh: BenchMesh, http: aiohttp.ClientSession) -> AsyncIterator[tuple[str, int]]:
    """Yield address and process of the stack's router, or of one of our own if it has none. It is the only one, so it
    leads.
    """
    if mesh.stack is not None and ROUTER in mesh.pids:
        yield mesh.stack.urls[ROUTER], mesh.pids[ROUTER]
        return
    async with _replica(mesh, http) as started:
        yield started


@asynccontextmanager
async def _replica(mesh: BenchMesh, http: aiohttp.ClientSession) -> AsyncIterator[tuple[str, int]]:
    """Run another router of the same mesh as the stack does; yield its address and process."""
    assert mesh.redis_url is not None and mesh.database_url is not None, "it has a stack of its own"  # noqa: PT018
    stores = {"TREADLE_REDIS_URL": mesh.redis_url, "TREADLE_DATABASE_URL": mesh.database_url}
    port = _free_port()
    process = await asyncio.create_subprocess_exec(
        *mesh_command("treadle.stack.serve", "trajectory_router", "services.trajectory_router.app:create_app"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, **stores, "TRAJECTORY_ROUTER_PORT": str(port)},
    )
    url = f"http://127.0.0.1:{port}"
    try:
        async with asyncio.timeout(START_S):
            while not await _ready(url, http):  # noqa: ASYNC110  # a state of another process
                await asyncio.sleep(0.05)
        yield url, process.pid
    except TimeoutError:
        raise BenchError(f"the router was not ready in {START_S:g} s") from None
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            await process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


async def _ready(url: str, http: aiohttp.ClientSession) -> bool:
    try:
        async with http.get(f"{url}/readyz") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False
