"""A figure is judged by its target; comparisons are of medians of rounds that alternate."""

import os

import pytest

from treadle.lab.bench.closed_loop import Round
from treadle.lab.bench.contest import Contestant, medians, ratio, run_rounds
from treadle.lab.bench.cpu_meter import CpuMeter
from treadle.lab.bench.figures import Target, at_least, at_most, figure
from treadle.lab.bench.processes import used_between
from treadle.lab.bench.table import quantity


@pytest.mark.parametrize(
    ("target", "value", "met"),
    [
        (at_least(1.5), 1.5, True),
        (at_least(1.5), 1.49, False),
        (at_most(3.0), 3.0, True),
        (at_most(3.0), 3.01, False),
        (None, 3.0, None),
    ],
)
def test_a_figure_is_judged_by_its_target(target: Target | None, value: float, met: bool | None) -> None:
    assert figure("one.p50", "a time", value, "ms", target).met is met


def test_a_ratio_is_ours_over_theirs_and_never_over_nothing() -> None:
    assert ratio(3.0, 2.0) == 1.5
    with pytest.raises(ValueError, match="cannot compare"):
        ratio(3.0, 0.0)


async def test_contestants_take_turns_round_by_round() -> None:
    order: list[str] = []

    def contestant(name: str, calls: int) -> Contestant:
        async def one() -> Round:
            order.append(name)
            return Round(calls * len(order), 1.0, 0.1, 0.2)

        return one

    messages: list[str] = []
    results = await run_rounds({"ours": contestant("ours", 10), "theirs": contestant("theirs", 1)}, 2, messages.append)
    assert order == ["ours", "theirs", "ours", "theirs"]
    assert {name: one.rate for name, one in medians(results).items()} == {"ours": 20, "theirs": 3}
    assert len(messages) == 4


async def test_cpu_time_is_counted_for_the_calls_of_the_metered_rounds() -> None:
    async def one() -> Round:
        sum(range(3_000_000))  # some ticks of CPU
        return Round(10, 1.0, 0.1, 0.2)

    meter = CpuMeter({"client": os.getpid()})
    assert meter.figures("single") == []
    before = os.times()
    for _ in range(3):
        await meter.over(one)()
    after = os.times()
    spent_us = (after.user + after.system - before.user - before.system) * 1e6
    assert 0 < meter.per_call_us()["client"] <= spent_us / 30 + 1e6 / 100  # a tick is 10 ms


def test_a_service_that_was_restarted_is_not_counted() -> None:
    assert used_between({"proxy": 5.0, "valkey": 1.0}, {"proxy": 0.5, "valkey": 1.25}) == {"valkey": 0.25}


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(1234.5, "/s", "1,234 /s"), (12.345, "ms", "12.3 ms"), (0.1234, "%", "0.12 %"), (3.0, "x", "3.00 ×")],
)
def test_quantities_have_three_significant_digits(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text
