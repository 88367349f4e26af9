"""dramatiq: a durable queue with its Redis broker and result backend, one worker process.

The callers enqueue on a pool of threads, because its client blocks, so that one fsync of the server serves many of
them. They await the result as its backend does (BRPOPLPUSH on the result's key), but on asyncio connections. This is
its fastest of three variants: enqueueing on the event loop reaches half the rate, awaiting on the threads too nine
tenths.
"""

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from treadle.lab.bench.peers.rounds import own_channel, serve_rounds

URL = "BENCH_REDIS_URL"
RESULT_TIMEOUT_S = 30
WORKER_TIMEOUT_S = 15
SENDERS = 64
"""Threads: as many as callers."""
COLLECTORS = 256
"""Results of a batch that are awaited at once, each on a connection."""


def setup() -> Any:
    """Create the broker and the actor; the worker's command line calls this too."""
    broker = RedisBroker(url=os.environ[URL])
    broker.add_middleware(Results(backend=RedisBackend(url=os.environ[URL])))
    dramatiq.set_broker(broker)

    return dramatiq.actor(noop, store_results=True)


def noop() -> None:
    """The task."""


async def _run_rounds(actor: Any, channel: int) -> None:
    import redis.asyncio

    backend = actor.broker.get_results_backend()
    results = redis.asyncio.Redis.from_url(os.environ[URL], max_connections=512)

    senders = ThreadPoolExecutor(SENDERS)
    loop = asyncio.get_running_loop()

    async def result_of(message: Any) -> None:
        key = backend.build_message_key(message)
        if await results.brpoplpush(key, key, RESULT_TIMEOUT_S) is None:
            raise TimeoutError("no result")

    async def call() -> None:
        await result_of(await loop.run_in_executor(senders, actor.send))

    async def batch(count: int) -> None:
        messages = await asyncio.gather(*(loop.run_in_executor(senders, actor.send) for _ in range(count)))
        gate = asyncio.Semaphore(COLLECTORS)

        async def collect(message: Any) -> None:
            async with gate:
                await result_of(message)

        await asyncio.gather(*map(collect, messages))

    try:
        await serve_rounds(call, batch, channel)
    finally:
        senders.shutdown(wait=False, cancel_futures=True)
        await results.aclose()


def main() -> None:
    import uvloop

    channel = own_channel()
    worker = subprocess.Popen(
        [sys.executable, "-m", "dramatiq", "--processes", "1", "treadle.lab.bench.peers.dramatiq_peer:setup"]
    )
    try:
        uvloop.run(_run_rounds(setup(), channel))
    finally:
        worker.terminate()
        try:
            worker.wait(WORKER_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait(WORKER_TIMEOUT_S)


if __name__ == "__main__":
    main()
