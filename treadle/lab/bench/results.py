"""Results of a batch larger than Valkey: answered, archived, and read again complete and in order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Final

import asyncpg
from redis.asyncio import Redis

from treadle.lab.bench.bench import Bench
from treadle.lab.bench.figures import BenchError, BenchFigure, at_most, figure
from treadle.lab.bench.mesh import BenchClient, BenchMesh, client, own_mesh

VALKEY_MIB: Final = 256
LINES: Final = 2000
"""Of one bulk call."""
SAMPLE_S: Final = 0.2
ARCHIVED_WITHIN_S: Final = 120.0
BUSY_PAUSE_S: Final = 0.2
"""Pause before rejected lines are sent again."""
MEGABYTE: Final = 1e6


async def archived_results(bench: Bench) -> list[BenchFigure]:
    """Send one batch through a Valkey of 256 MiB as fast as the proxy accepts it, follow it, then read it again.

    Raises:
        BenchError: a result is missing, doubled or out of order.
    """
    count = bench.sizes.results
    settings = {"STACK_VALKEY_MAXMEMORY_MIB": str(VALKEY_MIB), "PROXY_ARCHIVE_AFTER_S": "5"}
    with own_mesh(2, services="proxy,cpu_manager", settings=settings) as mesh:
        async with client(mesh, timeout_s=None) as http, _peak_memory(mesh) as peak:
            await http.declare_task()
            batch = await http.open_batch(count)
            bench.log(f"  {count:,} results through a Valkey of {VALKEY_MIB} MiB")
            began = perf_counter()
            following = asyncio.create_task(_read(http.follow(batch)))
            await _send(http, batch, count)
            first = await following
            answered_s = perf_counter() - began
            await _archived(mesh, batch)
            began = perf_counter()
            again = await _read(http.results(batch))
            read_s = perf_counter() - began
        row_bytes = await _row_bytes(mesh, batch)
    if first != again or len(set(again)) != count or again != sorted(again):
        raise BenchError(f"of {count:,} results {len(first):,} were followed, and {len(again):,} read again")
    return [
        figure("results.answered", f"{count:,} results answered and followed", count / answered_s, "/s"),
        figure("results.read", "the same results read again, in order", count / read_s, "/s"),
        figure("results.valkey", "most memory of Valkey meanwhile", peak[0] / MEGABYTE, "MB", at_most(268)),
        figure("results.row", "a result in Postgres, indexes included", row_bytes, "B"),
    ]


async def _send(http: BenchClient, batch: str, count: int) -> None:
    for start in range(0, count, LINES):
        numbers = range(start, min(count, start + LINES))
        lines = b"\n".join(b'{"request_id":"r%d"}' % number for number in numbers)
        while await http.submit_all(batch, lines, repeats=True) < len(numbers):  # noqa: ASYNC110  # polls the proxy
            await asyncio.sleep(BUSY_PAUSE_S)


async def _archived(mesh: BenchMesh, batch: str) -> None:
    """Wait until the last result has moved to Postgres.

    Raises:
        BenchError: it has not moved in time.
    """
    assert mesh.redis_url is not None, "our own stack has one"
    began = perf_counter()
    async with Redis.from_url(mesh.redis_url) as redis:
        while left := await redis.xlen(f"results:{batch}"):
            if perf_counter() - began > ARCHIVED_WITHIN_S:
                raise BenchError(f"{left:,} results have not moved to Postgres within {ARCHIVED_WITHIN_S:.0f} s")
            await asyncio.sleep(SAMPLE_S)


async def _read(pieces: AsyncIterator[bytes]) -> list[tuple[int, int]]:
    """Return the cursors of a stream of results, as numbers."""
    cursors: list[tuple[int, int]] = []
    tail = b""
    async for piece in pieces:
        *whole, tail = (tail + piece).split(b"\n")
        for line in whole:
            ms, _, seq = line[len(b'{"cursor":"') : line.index(b'",')].partition(b"-")
            cursors.append((int(ms), int(seq)))
    return cursors


@asynccontextmanager
async def _peak_memory(mesh: BenchMesh) -> AsyncIterator[list[int]]:
    """Yield the most `used_memory` of Valkey, sampled every `SAMPLE_S`."""
    assert mesh.redis_url is not None, "our own stack has one"
    peak = [0]
    over = asyncio.Event()
    async with Redis.from_url(mesh.redis_url) as redis:

        async def watch() -> None:
            while not over.is_set():  # redis-py may swallow a cancel that races a reply
                peak[0] = max(peak[0], (await redis.info("memory"))["used_memory"])
                await asyncio.sleep(SAMPLE_S)

        watching = asyncio.create_task(watch())
        try:
            yield peak
        finally:
            over.set()
            await watching


async def _row_bytes(mesh: BenchMesh, batch: str) -> float:
    assert mesh.database_url is not None, "our own stack has one"
    connection = await asyncpg.connect(mesh.database_url.replace("+asyncpg", ""))
    try:
        rows: int = await connection.fetchval("SELECT count(*) FROM answers WHERE batch = $1", batch)
        size: int = await connection.fetchval("SELECT pg_total_relation_size('answers')")
    finally:
        await connection.close()
    return size / max(1, rows)
