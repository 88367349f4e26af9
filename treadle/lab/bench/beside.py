"""Single actions of one tenant beside a bulk call of another: the wait that others' work causes."""

import asyncio
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from treadle.lab.bench.actions import NOOP
from treadle.lab.bench.bench import Bench
from treadle.lab.bench.closed_loop import Round, summarised
from treadle.lab.bench.figures import BenchError, BenchFigure, at_most, figure
from treadle.lab.bench.mesh import BenchClient, client

PAUSE_S = 0.01
"""Pause between two single actions. So their own load is small beside the bulk call's."""
OTHER = "bench-beside"
"""Tenant of the single actions."""


@dataclass(frozen=True, slots=True)
class _Beside:
    bulk_rate: float
    """Reward requests a second, from the bulk call to the last result."""
    submitting: Round
    """Single actions that began before the bulk call was answered."""
    executing: Round | None
    """Those that began between its answer and the last result; None: there were none."""


async def beside_a_bulk(bench: Bench) -> list[BenchFigure]:
    """Call one empty action after another, from the start of another tenant's bulk call to its last result."""
    size, rounds = bench.sizes.beside, []
    async with client(bench.mesh) as http, client(bench.mesh, tenant=OTHER) as other:
        await http.declare_task()
        try:
            await _beside(http, other, min(size, 512))  # warm-up
            for number in range(1, bench.sizes.rounds + 1):
                rounds.append(one := await _beside(http, other, size))
                bench.log(
                    f"  round {number} of {bench.sizes.rounds}: bulk {one.bulk_rate:,.0f}/s, beside it {_shown(one)}"
                )
        finally:
            await http.delete_task()
    single = [one.submitting for one in rounds]
    after = [one.executing for one in rounds if one.executing is not None]
    what = f"single action beside another tenant's {size:,} lines"
    made = [
        figure("beside.one.p50", f"{what}, p50", median(one.p50_s for one in single) * 1e3, "ms", at_most(25)),
        figure("beside.one.p99", f"{what}, p99", median(one.p99_s for one in single) * 1e3, "ms", at_most(100)),
        figure("beside.bulk.rate", "the bulk call's rate meanwhile", median(one.bulk_rate for one in rounds), "/s"),
    ]
    if after:
        what = "single action while the rest of the lines is executed"
        made += [
            figure("beside.rest.p50", f"{what}, p50", median(one.p50_s for one in after) * 1e3, "ms", at_most(25)),
            figure("beside.rest.p99", f"{what}, p99", median(one.p99_s for one in after) * 1e3, "ms", at_most(100)),
        ]
    return made


def _shown(one: _Beside) -> str:
    parts = [("submitting", one.submitting), ("executing", one.executing)]
    return "; ".join(
        f"{name}: {part.calls} actions, p50 {part.p50_s * 1e3:.1f} ms, p99 {part.p99_s * 1e3:.1f} ms"
        for name, part in parts
        if part is not None
    )


async def _beside(http: BenchClient, other: BenchClient, size: int) -> _Beside:
    lines = b"\n".join(b'{"request_id":"r%d"}' % number for number in range(size))
    batch = await http.open_batch(size)
    started = perf_counter()
    accepted_at: list[float] = []

    async def submit_and_read() -> float:
        accepted = await http.submit_all(batch, lines)
        if accepted != size:
            raise BenchError(f"{accepted:,} of {size:,} reward requests were accepted")
        accepted_at.append(perf_counter())
        ok = 0
        tail = b""
        async for piece in http.follow(batch):
            whole, newline, tail = (tail + piece).rpartition(b"\n")
            ok += (whole + newline).count(b'"ended":"ok"')
        if ok != size:
            raise BenchError(f"of {size:,} reward requests {ok:,} were answered with ok")
        return perf_counter()

    bulk = asyncio.create_task(submit_and_read(), name="bulk")
    took: list[tuple[float, float]] = []
    try:
        while not bulk.done():
            begun = perf_counter()
            await other.act(NOOP)
            took.append((begun, perf_counter() - begun))
            await asyncio.wait([bulk], timeout=PAUSE_S)
    finally:
        bulk.cancel()
    elapsed = await bulk - started
    (boundary,) = accepted_at
    submitting = [seconds for begun, seconds in took if begun < boundary]
    executing = [seconds for begun, seconds in took if begun >= boundary]
    return _Beside(
        size / elapsed, summarised(submitting, elapsed), summarised(executing, elapsed) if executing else None
    )
