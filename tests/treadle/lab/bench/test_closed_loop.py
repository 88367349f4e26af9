"""Rates and percentiles follow their definitions."""

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.lab.bench.closed_loop import Round, closed_loop, median_round, percentile, summarised

values = st.lists(st.floats(0, 1e6), min_size=1).map(sorted)


@given(values, st.floats(0.1, 100))
def test_a_percentile_is_the_smallest_value_that_enough_do_not_exceed(ordered: list[float], percent: float) -> None:
    found = percentile(ordered, percent)
    enough = math.ceil(len(ordered) * percent / 100)
    assert sum(value <= found for value in ordered) >= enough
    assert sum(value < found for value in ordered) < enough


def test_percentiles_of_a_hundred_values_are_those_values() -> None:
    ordered = [float(value) for value in range(1, 101)]
    assert [percentile(ordered, percent) for percent in (1, 50, 99, 100)] == [1, 50, 99, 100]


def test_a_round_counts_its_calls_over_its_time() -> None:
    one = summarised([0.3, 0.1, 0.2], elapsed_s=0.6)
    assert one == Round(calls=3, elapsed_s=0.6, p50_s=0.2, p99_s=0.3)
    assert one.rate == pytest.approx(5)


def test_the_median_of_rounds_takes_each_figure_for_itself() -> None:
    rounds = [Round(100, 1.0, 0.5, 0.9), Round(300, 1.0, 0.1, 0.8), Round(200, 1.0, 0.4, 5.0)]
    middle = median_round(rounds)
    assert middle.rate == pytest.approx(200)
    assert (middle.calls, middle.p50_s, middle.p99_s) == (600, 0.4, 0.9)


async def test_every_caller_calls_again_as_soon_as_it_is_answered() -> None:
    under_way = most = 0

    async def call() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1

    result = await closed_loop(call, callers=3, seconds=0.02)
    assert most == 3
    assert under_way == 0
    assert result.calls >= 3


async def test_a_failing_call_ends_the_loop_with_its_own_error() -> None:
    async def call() -> None:
        raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing"):
        await closed_loop(call, callers=2, seconds=60)
