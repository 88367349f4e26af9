"""Program that calls an upstream server under leases until it is killed. Arguments: mesh, upstream, quota."""

from __future__ import annotations

import asyncio
import sys
from typing import Final

import aiohttp

from treadle.client.asynchronous import AsyncTreadle
from treadle.client.errors import LeaseLost, QuotaTaken, Transient

TTL_S: Final = 1.5
"""Time after which what a killed program held is free."""
CALLERS: Final = 4
"""Callers of one program."""


async def _call(mesh: AsyncTreadle, http: aiohttp.ClientSession, quota: str) -> None:
    while True:
        try:
            async with mesh.quota(quota, ttl_s=TTL_S, wait_s=30.0), http.get("/") as reply:
                await reply.read()
        except (QuotaTaken, LeaseLost):
            continue
        except Transient:  # the store is away
            await asyncio.sleep(0.1)


async def _main(mesh_url: str, upstream: str, quota: str) -> None:
    async with AsyncTreadle(mesh_url) as mesh, aiohttp.ClientSession(upstream) as http, asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(_call(mesh, http, quota))


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
