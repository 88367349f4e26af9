"""Upstream servers, and leases of client processes that are killed: the server counts the calls that it has at once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from aiohttp import web

from treadle.client.asynchronous import AsyncTreadle
from treadle.lab.bench import lease_caller
from treadle.lab.bench.bench import Bench
from treadle.lab.bench.figures import BenchError, BenchFigure, at_most, figure

PROGRAMS: Final = 8
MOST_AT_ONCE: Final = 6
"""Concurrency of the quota, and of the upstream."""
CALL_S: Final = 0.02
START_S: Final = 60.0
"""Limit of the start of all programs."""
FREE_S: Final = lease_caller.TTL_S + 1.0
"""Time within which all is free that killed programs held."""


@asynccontextmanager
async def serving(answer: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[str]:
    """Serve an upstream on a free port; yield its address."""
    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@dataclass
class BusyServer:
    """An upstream server that counts the calls that it has at once. A call lasts `CALL_S`, whoever waits for it."""

    calls: int = 0
    inside: int = 0
    highest: int = 0

    async def answer(self, _: web.Request) -> web.Response:
        self.calls += 1
        self.inside += 1
        self.highest = max(self.highest, self.inside)
        try:
            await asyncio.sleep(CALL_S)
        finally:
            self.inside -= 1
        return web.Response()


async def killed_callers(bench: Bench, quota: str) -> list[BenchFigure]:
    """Kill one of several client programs with SIGKILL each second and start another.

    Raises:
        BenchError: they did not start.
    """
    server = BusyServer()
    async with serving(server.answer) as url, AsyncTreadle(bench.mesh.url) as mesh:
        await mesh.quotas.set(quota, concurrency=MOST_AT_ONCE)
        with _programs(bench.mesh.url, url, quota) as programs:
            await _until_all_call(server)
            for number in range(bench.sizes.kills):
                await asyncio.sleep(1.0)
                at = number % PROGRAMS
                _kill([programs[at]])
                programs[at] = _started(bench.mesh.url, url, quota)
            await asyncio.sleep(1.0)
        ended_s = perf_counter()
        held = (await mesh.quotas.view(quota)).held
        while held and perf_counter() - ended_s < FREE_S:
            await asyncio.sleep(0.05)
            held = (await mesh.quotas.view(quota)).held
    what = f"{PROGRAMS} programs of which one is killed each second"
    return [
        figure("quota.killed.most", f"{what}: most calls at once", server.highest, "", at_most(MOST_AT_ONCE)),
        figure("quota.killed.calls", f"{what}: calls", server.calls, ""),
        figure("quota.killed.held", f"held {FREE_S:g} s after all were killed", held, "", at_most(0)),
    ]


async def _until_all_call(server: BusyServer) -> None:
    began = perf_counter()
    while server.calls < PROGRAMS * lease_caller.CALLERS:
        if perf_counter() - began > START_S:
            raise BenchError(f"{PROGRAMS} client programs made {server.calls} calls in {START_S:g} s")
        await asyncio.sleep(0.05)


@contextmanager
def _programs(mesh: str, upstream: str, quota: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    programs: list[subprocess.Popen[bytes]] = []
    try:
        programs.extend(_started(mesh, upstream, quota) for _ in range(PROGRAMS))
        yield programs
    finally:
        _kill(programs)


def _kill(programs: list[subprocess.Popen[bytes]]) -> None:
    for one in programs:
        one.kill()
    for one in programs:
        one.wait()


def _started(mesh: str, upstream: str, quota: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", lease_caller.__name__, mesh, upstream, quota])
