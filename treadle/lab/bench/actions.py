"""Single empty actions: the cost of the mesh itself."""

from functools import partial

from treadle.lab.bench.bench import MESH, Bench
from treadle.lab.bench.closed_loop import Round, closed_loop
from treadle.lab.bench.contest import DRAMATIQ_P50_MS, DRAMATIQ_RATE, RAY_RATE, medians, ratio, run_rounds
from treadle.lab.bench.figures import BenchError, BenchFigure, at_least, at_most, figure
from treadle.lab.bench.mesh import BenchClient, Call, client

NOOP = b'{"kind":"noop"}'

RATE_OF_DRAMATIQ, RATE_OF_RAY = 1.5, 1.1
P50_OF_DRAMATIQ, P99_OF_DRAMATIQ = 0.6, 1.0


def _noop(http: BenchClient) -> Call:
    return partial(http.act, NOOP)


async def single_actions(bench: Bench) -> list[BenchFigure]:
    """Many callers, each submitting one action and awaiting its answer."""
    sizes, meter = bench.sizes, bench.meter()
    async with bench.warm(_noop, sizes.callers) as call:
        ours = meter.over(partial(closed_loop, call, callers=sizes.callers, seconds=sizes.seconds))
        results = medians(await run_rounds(bench.against(ours, "dramatiq", "ray"), sizes.rounds, bench.log))
    own = results.pop(MESH)
    return [
        *_absolute(own, sizes.callers, judged=not results),
        *(made for name, peer in results.items() for made in _beside(name, own, peer)),
        *meter.figures("single"),
        *(
            made
            for name in results
            for made in bench.peers[name].meter.figures("single", "CPU a call costs {}, its client and workers")
        ),
    ]


def _absolute(own: Round, callers: int, *, judged: bool) -> list[BenchFigure]:
    rate = at_least(
        max(RATE_OF_DRAMATIQ * DRAMATIQ_RATE, RATE_OF_RAY * RAY_RATE), "1.5x dramatiq, 1.1x Ray, as recorded"
    )
    p50 = at_most(P50_OF_DRAMATIQ * DRAMATIQ_P50_MS, "0.6x dramatiq as recorded")
    who = f"{callers} callers"
    return [
        figure("single.rate", f"single actions, {who}", own.rate, "/s", rate if judged else None),
        figure("single.p50", f"single action, {who}, p50", own.p50_s * 1e3, "ms", p50 if judged else None),
        figure("single.p99", f"single action, {who}, p99", own.p99_s * 1e3, "ms"),
    ]


def _beside(name: str, own: Round, peer: Round) -> list[BenchFigure]:
    """Return the peer's figures, and ours relative to them."""
    bounds = {"dramatiq": (RATE_OF_DRAMATIQ, P50_OF_DRAMATIQ, P99_OF_DRAMATIQ), "ray": (RATE_OF_RAY, None, None)}
    rate, p50, p99 = bounds[name]
    return [
        figure(f"single.{name}.rate", f"{name}, the same callers", peer.rate, "/s"),
        figure(f"single.{name}.p50", f"{name}, p50", peer.p50_s * 1e3, "ms"),
        figure(f"single.{name}.p99", f"{name}, p99", peer.p99_s * 1e3, "ms"),
        figure(f"single.rate/{name}", f"rate over {name}'s", ratio(own.rate, peer.rate), "x", at_least(rate)),
        figure(
            f"single.p50/{name}", f"p50 over {name}'s", ratio(own.p50_s, peer.p50_s), "x", at_most(p50) if p50 else None
        ),
        figure(
            f"single.p99/{name}", f"p99 over {name}'s", ratio(own.p99_s, peer.p99_s), "x", at_most(p99) if p99 else None
        ),
    ]


async def one_caller(bench: Bench) -> list[BenchFigure]:
    """One caller: the round trip without batching."""
    sizes, meter = bench.sizes, bench.meter()
    async with bench.warm(_noop, 1) as call:
        loop = meter.over(partial(closed_loop, call, callers=1, seconds=sizes.seconds))
        own = medians(await run_rounds({MESH: loop}, sizes.rounds, bench.log))[MESH]
    return [
        figure("one.p50", "single action, one caller, p50", own.p50_s * 1e3, "ms", at_most(3.0)),
        figure("one.p99", "single action, one caller, p99", own.p99_s * 1e3, "ms"),
        *meter.figures("one"),
    ]


ONE_SECOND = b'{"kind":"sleep","params":{"seconds":1.0}}'


async def sleeping(bench: Bench) -> list[BenchFigure]:
    """Many one-second actions at once: overhead of the mesh on longer work.

    Callers start evenly over a second, so that the load is steady and has no peak each second.
    """
    sizes = bench.sizes
    overhead_s = execution_s = 0.0
    async with client(bench.mesh) as http:
        await closed_loop(_noop(http), callers=sizes.sleepers, seconds=0.2)  # opens the connections

        async def call() -> None:
            nonlocal overhead_s, execution_s
            act = (await http.act(ONE_SECOND)).act
            if act is None:
                raise BenchError("a finished action was answered without its completion time (`act`)")
            overhead_s += act.overhead_s
            execution_s += act.execution_s

        bench.log(f"  {sizes.sleepers} in flight for {sizes.sleep_waves} s")
        seen = await closed_loop(call, callers=sizes.sleepers, seconds=sizes.sleep_waves, spread_s=1.0)
    many = f"{sizes.sleepers} one-second actions in flight"
    return [
        figure("sleep.overhead", f"overhead of execution, {many}", overhead_s / execution_s * 100, "%", at_most(2.0)),
        figure("sleep.caller", f"wait of a caller beyond the second, {many}, p50", (seen.p50_s - 1) * 1e3, "ms"),
    ]
