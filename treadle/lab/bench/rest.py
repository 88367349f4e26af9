"""The idle mesh, and writes of batch history."""

import asyncio
from time import perf_counter

from treadle.lab.bench.bench import Bench
from treadle.lab.bench.figures import BenchFigure, at_least, at_most, figure
from treadle.lab.bench.history_write import measure_history_write
from treadle.lab.bench.processes import cpu_by_service, memory_bytes, used_between

MEGABYTE = 1e6


async def at_rest(bench: Bench) -> list[BenchFigure]:
    """CPU of each service and memory of the idle stack, interpreters of sandboxes included."""
    pids, sizes = bench.mesh.pids, bench.sizes
    bench.log(f"  resting for {sizes.settle_s + sizes.rest_s:.0f} s")
    await asyncio.sleep(sizes.settle_s)
    before, started = cpu_by_service(pids), perf_counter()
    await asyncio.sleep(sizes.rest_s)
    used, elapsed = used_between(before, cpu_by_service(pids)), perf_counter() - started
    memory = await asyncio.to_thread(memory_bytes, pids["treadle"])
    return [
        *(
            figure(f"rest.cpu.{name}", f"{name} at rest, of a core", seconds / elapsed * 100, "%", at_most(1.0))
            for name, seconds in used.items()
        ),
        figure("rest.memory", "the whole idle stack (PSS)", memory / MEGABYTE, "MB", at_most(600)),
    ]


async def history(bench: Bench) -> list[BenchFigure]:
    """Write histories of ended batches to Postgres, with a commit for each batch."""
    url = bench.mesh.database_url
    assert url is not None, "only for a stack of our own"
    rate = await measure_history_write(url, bench.sizes.history_rows)
    return [figure("history.rate", "batch history written to Postgres", rate, "rows/s", at_least(200_000))]
