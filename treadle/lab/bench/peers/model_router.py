"""A router of others in front of the bench's engine, called over HTTP as ours is. It runs in the peers' interpreter."""

import asyncio
import itertools
import json
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import aiohttp

from treadle.lab.bench.bench_engine import MODEL
from treadle.lab.bench.peers.rounds import own_channel, serve_rounds

START_S = 60.0
TRAJECTORIES = 256

Command = Callable[[str, int, int], Sequence[str]]
"""Arguments of a router: (engine's address, port, port of its metrics)."""


async def _run_rounds(program: str, arguments: Command, channel: int) -> None:
    engine = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "treadle.lab.bench.bench_engine",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert engine.stdout is not None
    engine_url = f"http://127.0.0.1:{int(await engine.stdout.readline())}"
    port, metrics = _free_port(), _free_port()
    executable = Path(sys.executable).with_name(program)
    router = await asyncio.create_subprocess_exec(executable, *arguments(engine_url, port, metrics))
    try:
        await _serve(f"http://127.0.0.1:{port}", channel)
    finally:
        for process in (router, engine):
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)


async def _serve(url: str, channel: int) -> None:
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "word" * 8}]}).encode()
    names = itertools.cycle([f"t{number}" for number in range(TRAJECTORIES)])
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    async with aiohttp.ClientSession(connector=connector) as http:

        async def call() -> None:
            name = next(names)
            headers = {"content-type": "application/json", "x-session-id": name, "x-smg-routing-key": name}
            async with http.post(f"{url}/v1/chat/completions", data=body, headers=headers) as response:
                await response.read()
            if response.status != 200:
                raise RuntimeError(f"it answered {response.status}")

        async def batch(count: int) -> None:
            await asyncio.gather(*(call() for _ in range(count)))

        await _ready(call)
        await serve_rounds(call, batch, channel)


async def _ready(call: Callable[[], Awaitable[None]]) -> None:
    """Wait until a call succeeds."""
    async with asyncio.timeout(START_S):
        while True:
            try:
                await call()
            except (RuntimeError, aiohttp.ClientError):
                await asyncio.sleep(0.2)
            else:
                return


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def serve(program: str, arguments: Command) -> None:
    """Run rounds through a router until standard input ends."""
    import uvloop

    uvloop.run(_run_rounds(program, arguments, own_channel()))
