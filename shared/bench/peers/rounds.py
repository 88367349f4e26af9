"""The peer's side of the talk with the bench; runs under the peers' interpreter, so standard library alone."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict

from shared.bench.closed_loop import closed_loop

WARM_UP_S = 0.5


async def serve_rounds(call: Callable[[], Awaitable[object]], channel: int) -> None:
    """Say that we are ready, then play one round for each line of standard input until it ends."""
    await closed_loop(call, callers=64, seconds=WARM_UP_S)
    _say(channel, {})
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        played = await closed_loop(call, **json.loads(line))
        _say(channel, asdict(played))


def own_channel() -> int:
    """Standard output as a descriptor for us alone; what the peer's libraries print goes to standard error."""
    channel = os.dup(1)
    os.dup2(2, 1)
    return channel


def _say(channel: int, answer: dict[str, float]) -> None:
    os.write(channel, json.dumps(answer).encode() + b"\n")
