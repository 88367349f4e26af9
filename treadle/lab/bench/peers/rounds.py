"""The peer's side of the exchange with the bench; it runs in the peers' interpreter, so only the standard library."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from time import perf_counter

from treadle.lab.bench.closed_loop import Round, closed_loop

WARM_UP_S = 0.5


Batch = Callable[[int], Awaitable[object]]
"""Send that many calls, all before the first result is awaited, and collect their results."""


async def serve_rounds(call: Callable[[], Awaitable[object]], batch: Batch, channel: int) -> None:
    """Report readiness, then run one round for each line of standard input until it ends.

    A line is `{"callers", "seconds"}` for a closed loop, or `{"batch"}` for so many calls at once.
    """
    await closed_loop(call, callers=64, seconds=WARM_UP_S)
    _send(channel, {})
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        result = await (at_once(batch, asked["batch"]) if "batch" in asked else closed_loop(call, **asked))
        _send(channel, asdict(result))


async def at_once(batch: Batch, count: int) -> Round:
    """Run a batch as a round; its latencies are those of the whole batch."""
    began = perf_counter()
    await batch(count)
    took = perf_counter() - began
    return Round(count, took, took, took)


def own_channel() -> int:
    """Return standard output as a private descriptor; output of the peer's libraries goes to standard error."""
    channel = os.dup(1)
    os.dup2(2, 1)
    return channel


def _send(channel: int, answer: dict[str, float]) -> None:
    os.write(channel, json.dumps(answer).encode() + b"\n")
