"""Reward requests in bulk: one call submits them, one stream returns the results."""

from functools import partial
from time import perf_counter

from treadle.lab.bench.bench import MESH, Bench
from treadle.lab.bench.closed_loop import Round
from treadle.lab.bench.contest import DRAMATIQ_RATE, medians, ratio, run_rounds
from treadle.lab.bench.figures import BenchError, BenchFigure, at_least, figure
from treadle.lab.bench.mesh import BenchClient, client

OF_DRAMATIQ = 5.0
AT_ONCE = "dramatiq, all at once"


async def in_bulk(bench: Bench) -> list[BenchFigure]:
    """Submit a batch in one call; the clock stops when the last result has been read."""
    sizes, meter = bench.sizes, bench.meter()
    async with client(bench.mesh) as http:
        await http.declare_task()
        try:
            await batch_round(http, min(sizes.bulk, 512))  # warm-up: a trainer's workflow is known too
            ours = meter.over(partial(batch_round, http, sizes.bulk))
            contestants = bench.against(ours, "dramatiq")
            if (dramatiq := bench.peers.get("dramatiq")) is not None:
                contestants[AT_ONCE] = dramatiq.meter.over(partial(dramatiq.batch, sizes.bulk))
            results = medians(await run_rounds(contestants, sizes.rounds, bench.log))
        finally:
            await http.delete_task()
    own, peer = results[MESH], results.get("dramatiq")
    target = None if peer else at_least(OF_DRAMATIQ * DRAMATIQ_RATE, "5x dramatiq as recorded")
    made = [figure("bulk.rate", f"actions in bulk, {sizes.bulk:,} a batch", own.rate, "/s", target)]
    if peer:
        beside = ratio(own.rate, peer.rate)
        made.append(figure("bulk.rate/dramatiq", "bulk rate over dramatiq's", beside, "x", at_least(OF_DRAMATIQ)))
        made += _at_once(own, results[AT_ONCE])
    return [*made, *meter.figures("bulk")]


def _at_once(own: Round, peer: Round) -> list[BenchFigure]:
    """Figures of dramatiq with the same number of tasks, all sent before the first result is awaited."""
    beside = ratio(own.rate, peer.rate)
    return [
        figure("bulk.dramatiq.rate", f"dramatiq, {peer.calls:,} sent, then collected", peer.rate, "/s"),
        figure("bulk.rate/dramatiq.bulk", "bulk rate over that", beside, "x"),
    ]


async def batch_round(http: BenchClient, size: int) -> Round:
    """Run one batch as a round; its latencies are those of the whole batch.

    Raises:
        BenchError: not every request was accepted, or answered with `ok`.
    """
    lines = b"\n".join(b'{"request_id":"r%d"}' % number for number in range(size))
    batch = await http.open_batch(size)
    started = perf_counter()
    accepted = await http.submit_all(batch, lines)
    if accepted != size:
        raise BenchError(f"{accepted:,} of {size:,} reward requests were accepted")
    answered = ok = 0
    tail = b""
    async for piece in http.follow(batch):
        *whole, tail = (tail + piece).split(b"\n")
        answered += len(whole)
        ok += sum(b'"ended":"ok"' in line for line in whole)
    took = perf_counter() - started
    if not (ok == answered == size):
        raise BenchError(f"of {size:,} reward requests {answered:,} were answered, {ok:,} of them ok")
    return Round(size, took, took, took)
