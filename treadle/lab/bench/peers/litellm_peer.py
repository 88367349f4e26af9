"""LiteLLM: the limiter of its proxy (`max_parallel_requests`) over Redis, a slot acquired and released for each call.

It is called inside one process, as its proxy does; no call of HTTP is measured. The limit is never reached.
"""

import asyncio
import os
import uuid
from typing import Any

from treadle.lab.bench.peers.rounds import own_channel, serve_rounds

URL = "BENCH_REDIS_URL"
LIMIT = 1_000_000_000
KEY, NAME = "api_key", "bench"


def _limiter() -> Any:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise an import reads it from the network
    from litellm.caching.caching import DualCache, RedisCache
    from litellm.proxy.hooks.parallel_request_limiter_v3 import _PROXY_MaxParallelRequestsHandler_v3
    from litellm.proxy.utils import InternalUsageCache

    return _PROXY_MaxParallelRequestsHandler_v3(
        InternalUsageCache(DualCache(redis_cache=RedisCache(url=os.environ[URL])))
    )


async def _run_rounds(channel: int) -> None:
    limiter = _limiter()
    descriptor: Any = {"key": KEY, "value": NAME, "rate_limit": {"max_parallel_requests": LIMIT}}
    _, _, (gauge,) = limiter._collect_windowed_keys_and_gauges([descriptor], skip_tpm_check=True)

    async def call() -> None:
        slot = uuid.uuid4().hex
        found = await limiter.should_rate_limit([descriptor], parallel_slot_id=slot)
        if found["overall_code"] != "OK":
            raise RuntimeError(f"the limiter answered {found}")
        await limiter._release_parallel_request_slots({"slot_id": slot, "gauges": (gauge["scope"],)})

    async def batch(count: int) -> None:
        await asyncio.gather(*(call() for _ in range(count)))

    await serve_rounds(call, batch, channel)


def main() -> None:
    import uvloop

    uvloop.run(_run_rounds(own_channel()))


if __name__ == "__main__":
    main()
