"""Takeover after the kill of a leader with a full journal: time until the next one leads, and its memory."""

import asyncio
import signal
from pathlib import Path
from time import perf_counter
from typing import Final

import psutil

from treadle.lab.bench.bench import Bench
from treadle.lab.bench.figures import BenchError, BenchFigure, at_most, figure
from treadle.lab.bench.mesh import BenchClient, client, own_mesh
from treadle.lab.bench.results import LINES
from treadle.stack.services import PROXY
from treadle.testing.stack import RunningStack

MEGABYTE: Final = 1e6
WITHIN_S: Final = 120.0
PUBLISHED_WITHIN_S: Final = 30.0
EPOCH: Final = "treadle_proxy_leader_epoch "


async def take_over(bench: Bench) -> list[BenchFigure]:
    """Queue actions of many batches that no node runs, kill the leader, and wait until its successor leads.

    The time counts from the kill. It includes the supervisor's pause (0.2 s) and the start of a proxy, which sees that
    the former one has ended. The same kill with an empty journal measures these alone.

    Raises:
        BenchError: no proxy leads in time, or an action is missing.
    """
    count, batches = bench.sizes.queued, bench.sizes.queued_batches
    with own_mesh(1, services=PROXY) as mesh:
        assert mesh.stack is not None, "it is our own"
        async with client(mesh) as http:
            empty_s, empty_bytes = await _killed(mesh.stack, http)
            bench.log(f"  queueing {count:,} actions in {batches} batches")
            await http.declare_task()
            for number in range(batches):
                size = count * (number + 1) // batches - count * number // batches
                await _queue(http, await http.open_batch(size), size)
            took_s, peak_bytes = await _killed(mesh.stack, http)
            await _await_actions(http, count)
    return [
        figure("takeover.empty", "from the kill of a leader to the next one, nothing queued", empty_s, "s"),
        figure("takeover.time", f"the same with {count:,} actions queued", took_s, "s", at_most(60)),
        figure("takeover.memory", "most memory of the new leader", peak_bytes / MEGABYTE, "MB"),
        figure("takeover.action", "of it for an action", (peak_bytes - empty_bytes) / count, "B", at_most(8192)),
    ]


async def _await_actions(http: BenchClient, count: int) -> None:
    """Wait until the new leader has published `count` unanswered actions.

    Raises:
        BenchError: it has published another number.
    """
    began = perf_counter()
    while (known := await _metric(http, "treadle_proxy_unanswered_actions ")) != count:
        if perf_counter() - began > PUBLISHED_WITHIN_S:
            raise BenchError(f"the new leader has {known:,.0f} of {count:,} actions")
        await asyncio.sleep(0.2)


async def _queue(http: BenchClient, batch: str, size: int) -> None:
    for start in range(0, size, LINES):
        numbers = range(start, min(size, start + LINES))
        lines = b"\n".join(b'{"request_id":"r%d"}' % number for number in numbers)
        accepted = await http.submit_all(batch, lines)
        if accepted != len(numbers):
            raise BenchError(f"{accepted} of {len(numbers)} lines were accepted")


async def _killed(stack: RunningStack, http: BenchClient) -> tuple[float, int]:
    """Kill the leading proxy; return the seconds until its successor leads, and the successor's most resident bytes."""
    pid = stack.kill(PROXY, signal.SIGKILL)
    began = perf_counter()
    while not await _leads(stack, http, pid):
        if perf_counter() - began > WITHIN_S:
            raise BenchError(f"no proxy leads {WITHIN_S:.0f} s after the kill of the leader")
        await asyncio.sleep(0.05)
    took_s = perf_counter() - began
    return took_s, _most_resident(stack.pids[PROXY])


async def _leads(stack: RunningStack, http: BenchClient, killed: int) -> bool:
    pid = stack.pids.get(PROXY)
    if pid in (None, killed) or not psutil.pid_exists(pid or 0):
        return False
    return bool(await _metric(http, EPOCH) > 0)


async def _metric(http: BenchClient, name: str) -> float:
    """Return a gauge without labels; 0 if it is missing."""
    lines = (await http.text("/metrics")).splitlines()
    return next((float(line.removeprefix(name)) for line in lines if line.startswith(name)), 0.0)


def _most_resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024
