"""Units of outstanding requests of which quotas let only some run at once: against all ways to spread them."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.policy.model.quotas import Level, QuotaLimits, Rate
from shared.policy.scaling.outstanding import least_units, most_units
from shared.policy.scaling.quota_supply import (
    NOT_SET,
    ObservedQuota,
    granted_in_s,
    most_at_once,
    rate_text,
    supply_at,
)
from shared.policy.scaling.workload import Stage


def stages_of(widths: list[tuple[str, int]]) -> list[Stage]:
    return [Stage(f"s{at}", 1.0, 10.0, pool, units) for at, (pool, units) in enumerate(widths)]


workflows = st.lists(st.tuples(st.sampled_from(["cpu", "gpu"]), st.integers(1, 3)), min_size=1, max_size=3)


@given(workflows, st.data())
@settings(deadline=None)
def test_the_most_units_are_those_of_the_best_spread(widths: list[tuple[str, int]], data: st.DataObject) -> None:
    stages = stages_of(widths)
    counts = [float(data.draw(st.integers(0, 2))) for _ in stages]
    caps = [float(data.draw(st.integers(0, 3))) for _ in stages]
    requests = [present for present, count in enumerate(counts) for _ in range(int(count))]
    best = 0.0
    for at in itertools.product(*(range(present, len(stages)) for present in requests)):
        mine = [place for place in at if stages[place].drawn_from == "cpu"]
        best = max(best, sum(min(mine.count(p), caps[p]) * stages[p].units for p in set(mine)))
    assert most_units(stages, counts, "cpu", caps) == best


@given(workflows, st.data())
def test_without_limits_the_most_units_are_the_same_by_both_ways(
    widths: list[tuple[str, int]], data: st.DataObject
) -> None:
    stages = stages_of(widths)
    counts = [data.draw(st.sampled_from([0.0, 1.0, 5.0, math.inf])) for _ in stages]
    assert most_units(stages, counts, "cpu", [math.inf] * len(stages)) == most_units(stages, counts, "cpu")


def test_a_stage_that_is_held_back_needs_no_worker() -> None:
    stages = stages_of([("cpu", 1), ("cpu", 3)])
    assert least_units(stages, [5.0, 0.0], "cpu") == 4
    assert least_units(stages, [5.0, 0.0], "cpu", {"s1"}) == 1


@pytest.mark.parametrize(
    ("limits", "missing", "running", "most"),
    [
        (QuotaLimits((7.0,)), (), 0, 3.0),  # two of each request
        (QuotaLimits((1.0,)), (), 0, 0.0),
        (QuotaLimits((), (Rate(2.0, 1.0, 6.0),)), (0.0,), 0, 13.0),  # the burst, and 10 s of 2 a second
        (QuotaLimits((), (Rate(2.0, 1.0, 6.0),)), (6.0,), 0, 10.0),
        (QuotaLimits((), (Rate(2.0, 1.0, 6.0),)), (6.0,), 2, 12.0),
        (QuotaLimits((), (Rate(9.0),)), (4.0,), 1, 3.0),  # a budget: one runs, and two are left
        (QuotaLimits((3.0,)), (), 4, 4.0),  # what runs has its amounts
    ],
)
def test_the_most_at_once_by_each_sort_of_limit(
    limits: QuotaLimits, missing: tuple[float, ...], running: int, most: float
) -> None:
    observed = {"q": ObservedQuota(limits, tuple(Level(one, 0.0) for one in missing))}
    stage = Stage("s", 1.0, 10.0, "cpu", quotas={"q": 2.0})
    assert most_at_once(supply_at(0.0, observed), stage, running) == most


def test_no_known_quota_is_no_limit_and_one_that_is_not_set_gives_nothing() -> None:
    stage = Stage("s", 1.0, 10.0, "cpu", quotas={"q": 1.0})
    assert most_at_once({}, stage, 0) == math.inf
    assert most_at_once({"q": (NOT_SET,)}, stage, 0) == 0.0
    assert granted_in_s({"q": (NOT_SET,)}, stage.quotas) == math.inf
    assert granted_in_s({}, stage.quotas) == 0.0


def test_the_levels_refill_until_the_supply_is_taken() -> None:
    observed = {"q": ObservedQuota(QuotaLimits((), (Rate(1.0, 4.0),)), (Level(1.0, 100.0),))}
    assert granted_in_s(supply_at(101.0, observed), {"q": 1.0}) == 3.0


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (Rate(10.0, 1.0), "10/s"),
        (Rate(200_000.0, 60.0, unit="tokens"), "200,000 tokens/m"),
        (Rate(1000.0, 86400.0), "1,000/d"),
        (Rate(3.0, 5.0), "3 in 5 s"),
        (Rate(0.5, 3600.0), "0.5/h"),
        (Rate(50.0, unit="usd"), "50 usd in all"),
    ],
)
def test_a_rate_for_people(rate: Rate, text: str) -> None:
    assert rate_text(rate) == text
