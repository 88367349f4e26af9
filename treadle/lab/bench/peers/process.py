"""A peer as a process that runs rounds: a line of JSON in, a line of JSON out."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from treadle.lab.bench.closed_loop import Round
from treadle.lab.bench.cpu_meter import CpuMeter
from treadle.lab.bench.figures import BenchError, Skipped

START_TIMEOUT_S = 90.0
ROUND_SLACK_S = 60.0
STOP_TIMEOUT_S = 20.0
PEERS = ("dramatiq", "litellm", "ray", "sglang_router", "throttled", "vllm_router")
CHECKOUT = Path(__file__).parents[4]
"""Folder from which the peer imports ``treadle.lab.bench.closed_loop``: all peers use the same loop."""


class PeerProcess:
    """A running peer after its warm-up."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.meter = CpuMeter({name: process.pid})
        """CPU meter of its rounds: client, workers and their children; without the server of its queue."""
        self.pid = process.pid
        self._process = process

    async def round(self, callers: int, seconds: float) -> Round:
        """Run one round of its empty task.

        Raises:
            BenchError: it failed, or did not answer in time.
        """
        return await self._run_rounds({"callers": callers, "seconds": seconds}, seconds + ROUND_SLACK_S)

    async def batch(self, count: int) -> Round:
        """Run `count` empty tasks, all sent before the first result is awaited.

        Raises:
            BenchError: it failed, or did not answer in time.
        """
        return await self._run_rounds({"batch": count}, ROUND_SLACK_S)

    async def _run_rounds(self, asked: Mapping[str, float], timeout_s: float) -> Round:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(asked) + b"\n")
        return msgspec.json.decode(await self._line(timeout_s), type=Round)

    async def ready(self) -> None:
        """Wait until it is ready."""
        await self._line(START_TIMEOUT_S)

    async def _line(self, timeout_s: float) -> bytes:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise BenchError(f"{self.name} did not answer in {timeout_s:.0f} s") from None
        if not line:
            raise BenchError(
                f"{self.name} ended; run it alone to see why: python -m treadle.lab.bench.peers.{self.name}_peer"
            )
        return line


@asynccontextmanager
async def running_peer(python: Path, name: str, environ: Mapping[str, str]) -> AsyncIterator[PeerProcess]:
    """Run the peer of the module ``treadle.lab.bench.peers.<name>_peer``; kill its process group at the end.

    Raises:
        BenchError: it did not become ready.
    """
    process = await asyncio.create_subprocess_exec(
        python,
        "-m",
        f"treadle.lab.bench.peers.{name}_peer",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        cwd=CHECKOUT,
        env={"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": os.environ.get("HOME", "/tmp"), **environ},
        start_new_session=True,
    )
    peer = PeerProcess(name, process)
    try:
        await peer.ready()
        yield peer
    finally:
        await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Close its input, which ends it; then kill the rest of its process group."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@asynccontextmanager
async def running_peers(
    python: Path, redis_url: str, log: Callable[[str], None]
) -> AsyncIterator[tuple[Mapping[str, PeerProcess], list[Skipped]]]:
    """Yield the started peers, and the reasons for the missing ones.

    Args:
        redis_url: a server of the peers, as durable as the mesh's (appendfsync always).
    """
    environ = {"BENCH_REDIS_URL": redis_url, "RAY_USAGE_STATS_ENABLED": "0"}
    peers: dict[str, PeerProcess] = {}
    skipped: list[Skipped] = []
    async with AsyncExitStack() as stack:
        for name in PEERS:
            log(f"starting {name}")
            try:
                peers[name] = await stack.enter_async_context(running_peer(python, name, environ))
            except BenchError as error:
                skipped.append(Skipped(name, str(error)))
        yield peers, skipped
