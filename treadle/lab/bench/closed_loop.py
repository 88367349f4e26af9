"""A closed loop of callers, and what they saw. Standard library alone: the peers' interpreter runs it as well."""

import asyncio
import math
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import perf_counter


@dataclass(frozen=True, slots=True)
class Round:
    """One round of load. Latencies in seconds, as the caller's clock saw them."""

    calls: int
    elapsed_s: float
    p50_s: float
    p99_s: float

    @property
    def rate(self) -> float:
        """Calls a second."""
        return self.calls / self.elapsed_s


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile: the smallest value that ``percent`` of all values do not exceed.

    Args:
        ordered: ascending, not empty.
        percent: in (0, 100].
    """
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def summarised(took: Sequence[float], elapsed_s: float) -> Round:
    """The round of calls that ``took`` so many seconds each."""
    ordered = sorted(took)
    return Round(len(ordered), elapsed_s, percentile(ordered, 50), percentile(ordered, 99))


def median_round(rounds: Sequence[Round]) -> Round:
    """Each figure's median over the rounds (not one particular round): ``rate`` is the median rate."""
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
    """``callers`` tasks, each calling again as soon as it is answered, for ``seconds``; calls under way are awaited.

    Args:
        spread_s: callers begin evenly over this time instead of all at once.
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
