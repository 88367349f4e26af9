"""Comparison of systems under the same load, in turn."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from treadle.lab.bench.closed_loop import Round, median_round

DRAMATIQ_RATE = 1_220.0
"""Measured once, for runs without `--peers`: two cores, Python 3.11, loopback, an empty task, 64 asyncio callers, one
worker process; the median of interleaved rounds. So are the next two. Rates depend on the machine: `--peers` measures
them again."""
DRAMATIQ_P50_MS = 54.0
RAY_RATE = 1_560.0

Contestant = Callable[[], Awaitable[Round]]
"""Run of one round."""


async def run_rounds(
    contestants: Mapping[str, Contestant], rounds: int, log: Callable[[str], None]
) -> dict[str, Sequence[Round]]:
    """Run the rounds of all contestants in turn: every first round, then every second one, and so on.

    Args:
        log: receives a line for each round.
    """
    results: dict[str, list[Round]] = {name: [] for name in contestants}
    for number in range(1, rounds + 1):
        for name, contestant in contestants.items():
            one = await contestant()
            results[name].append(one)
            log(
                f"  round {number} of {rounds}, {name}: {one.rate:,.0f}/s, "
                f"p50 {one.p50_s * 1e3:.1f} ms, p99 {one.p99_s * 1e3:.1f} ms"
            )
    return {name: tuple(these) for name, these in results.items()}


def medians(results: Mapping[str, Sequence[Round]]) -> dict[str, Round]:
    return {name: median_round(rounds) for name, rounds in results.items()}


def ratio(ours: float, theirs: float) -> float:
    """``ours / theirs``.

    Raises:
        ValueError: theirs is not above zero.
    """
    if not theirs > 0:
        raise ValueError(f"cannot compare {ours} with {theirs}")
    return ours / theirs
