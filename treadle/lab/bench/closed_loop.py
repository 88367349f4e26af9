"""A closed loop of callers and its latencies. Standard library only, because the peers' interpreter runs it too."""

import asyncio
import math
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import perf_counter


@dataclass(frozen=True, slots=True)
class Round:
    """One round of load. Latencies in seconds, by the caller's clock."""

    calls: int
    elapsed_s: float
    p50_s: float
    p99_s: float

    @property
    def rate(self) -> float:
        """Calls a second."""
        return self.calls / self.elapsed_s


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile: the smallest value that ``percent`` of all values do not exceed.

    Args:
        ordered: ascending, not empty.
        percent: in (0, 100].
    """
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def summarised(took: Sequence[float], elapsed_s: float) -> Round:
    """Return a round from the seconds of its calls."""
    ordered = sorted(took)
    return Round(len(ordered), elapsed_s, percentile(ordered, 50), percentile(ordered, 99))


def median_round(rounds: Sequence[Round]) -> Round:
    """Return the median over the rounds of each figure (not one particular round): ``rate`` is the median rate."""
    rate = statistics.median(one.rate for one in rounds)
    calls = sum(one.calls for one in rounds)
    return Round(
        calls,
        calls / rate,
        statistics.median(one.p50_s for one in rounds),
        statistics.median(one.p99_s for one in rounds),
    )


async def closed_loop(
    call: Callable[[], Awaitable[object]], *, callers: int, seconds: float, spread_s: float = 0.0
) -> Round:
    """Run ``callers`` tasks that call again after each answer, for ``seconds``; await the calls in flight.

    Args:
        spread_s: callers start evenly over this time instead of at once.
    Raises:
        Exception: the first a call raised; the others are cancelled.
    """
    took: list[float] = []
    started = perf_counter()

    async def caller(number: int) -> None:
        await asyncio.sleep(spread_s * number / callers)
        begun = perf_counter()
        while begun - started < seconds:
            await call()
            ended = perf_counter()
            took.append(ended - begun)
            begun = ended

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(callers):
                group.create_task(caller(number))
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return summarised(took, perf_counter() - started)
