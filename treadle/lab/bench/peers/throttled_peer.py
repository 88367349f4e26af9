"""throttled-py: its asyncio GCRA over Redis, one call of the limiter for each call.

It holds nothing, so there is no release: a call is one round trip. The limit is never reached.
"""

import asyncio
import os
from datetime import timedelta
from typing import Any

from throttled.asyncio import RateLimiterType, Throttled, rate_limiter, store

from treadle.lab.bench.peers.rounds import own_channel, serve_rounds

URL = "BENCH_REDIS_URL"
LIMIT = 1_000_000_000


async def _run_rounds(channel: int) -> None:
    limiter: Any = Throttled(
        using=RateLimiterType.GCRA.value,
        quota=rate_limiter.per_duration(timedelta(seconds=1), limit=LIMIT, burst=LIMIT),
        store=store.RedisStore(server=os.environ[URL]),
    )

    async def call() -> None:
        if (await limiter.limit("bench")).limited:
            raise RuntimeError("the limit was reached")

    async def batch(count: int) -> None:
        await asyncio.gather(*(call() for _ in range(count)))

    await serve_rounds(call, batch, channel)


def main() -> None:
    import uvloop

    uvloop.run(_run_rounds(own_channel()))


if __name__ == "__main__":
    main()
