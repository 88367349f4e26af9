"""Nobody: a call that does nothing at all. What the driver itself costs, and the talk between bench and peer."""

import asyncio

from shared.bench.peers.rounds import own_channel, serve_rounds


async def call() -> None:
    await asyncio.sleep(0)


def main() -> None:
    asyncio.run(serve_rounds(call, own_channel()))


if __name__ == "__main__":
    main()
