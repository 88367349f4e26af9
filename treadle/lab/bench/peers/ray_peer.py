"""Ray: a call of an empty method of one actor. A remote call without durability."""

import asyncio
from typing import Any

import ray

from treadle.lab.bench.peers.rounds import own_channel, serve_rounds

OBJECT_STORE_BYTES = 100 << 20


class NoopActor:
    """The actor."""

    def call(self) -> None:
        return None


async def _run_rounds(actor: Any, channel: int) -> None:
    async def call() -> None:
        await actor.call.remote()

    async def batch(count: int) -> None:
        await asyncio.gather(*[actor.call.remote() for _ in range(count)])

    await serve_rounds(call, batch, channel)


def main() -> None:
    channel = own_channel()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=OBJECT_STORE_BYTES)
    try:
        asyncio.run(_run_rounds(ray.remote(NoopActor).remote(), channel))
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
