"""An empty peer: its call does nothing. It measures the driver, and the exchange between bench and peer."""

import asyncio

from treadle.lab.bench.peers.rounds import own_channel, serve_rounds


async def call() -> None:
    await asyncio.sleep(0)


async def batch(count: int) -> None:
    await asyncio.gather(*(call() for _ in range(count)))


def main() -> None:
    asyncio.run(serve_rounds(call, batch, own_channel()))


if __name__ == "__main__":
    main()
