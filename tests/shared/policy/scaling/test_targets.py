"""The part of a plan that is needed soon, and the stabilization window against flapping."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.policy.scaling.search import ExpectedBatch, search
from shared.policy.scaling.targets import StabilizedTarget, needed_within, peak_units
from tests.shared.policy.scaling.scaling_oracle import amid, three_pool_units

moments = st.integers(0, 12).map(float)


@given(st.lists(st.tuples(moments, st.integers(0, 6).map(float), st.integers(1, 3)), max_size=8))
def test_peak_units_are_those_of_some_moment(visits: list[tuple[float, float, int]]) -> None:
    starts, lasts, units = (np.array(column) for column in zip(*visits, strict=True)) if visits else ([], [], [])
    found = peak_units(np.array(starts, float), np.array(lasts, float), np.array(units, int))
    held = [
        sum(units for start, last, units in visits if start <= at < start + last or (last == 0 and start == at))
        for at, _, _ in visits
    ]
    assert found == max(held, default=0)


@given(amid(), three_pool_units, st.integers(0, 40).map(float))
@settings(deadline=None)
def test_more_is_never_needed_later_of_what_begins_before(
    open_batches: list[ExpectedBatch], pools: dict[str, int], until_s: float
) -> None:
    plan = search(open_batches, pools)
    soon, at_all = needed_within(plan, until_s), needed_within(plan, math.inf)
    assert soon.keys() == at_all.keys() == plan.units.keys()
    assert all(soon[pool] <= at_all[pool] for pool in soon)
    assert at_all == {pool: plan.outcome.peak_units[pool] for pool in at_all}


@given(amid(), three_pool_units)
@settings(deadline=None)
def test_before_anything_begins_nothing_is_needed(open_batches: list[ExpectedBatch], pools: dict[str, int]) -> None:
    later = [
        replace(
            one,
            completion_s=one.completion_s + 100.0,
            requests=replace(
                one.requests,
                arrivals_s=one.requests.arrivals_s + 100.0,
                ready_s=one.requests.ready_s + 100.0,
                running=np.zeros_like(one.requests.running),
            ),
        )
        for one in open_batches
    ]
    assert not any(needed_within(search(later, pools), 99.0).values())


demands = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.integers(0, 5)), min_size=1, max_size=30)


@given(demands, st.sampled_from([0.0, 1.0, 4.0]))
def test_the_target_is_the_most_that_was_wanted_within_the_time(
    steps: list[tuple[float, int]], stabilization_s: float
) -> None:
    stabilized, now, wanted_at = StabilizedTarget(), 0.0, []
    for pause, wanted in steps:
        now += pause
        wanted_at.append((now, wanted))
        until = [at for at, _ in wanted_at[1:]] + [now]
        lately = [units for (_, units), end in zip(wanted_at[:-1], until, strict=False) if end > now - stabilization_s]
        assert stabilized.target(now, wanted, stabilization_s) == max([wanted, *lately])


@given(demands, st.sampled_from([1.0, 4.0]))
def test_a_stabilized_target_falls_at_its_reported_time(steps: list[tuple[float, int]], stabilization_s: float) -> None:
    stabilized, now = StabilizedTarget(), 0.0
    for pause, wanted in steps:
        now += pause
        held = stabilized.target(now, wanted, stabilization_s)
    falls = stabilized.decreases_at_s(stabilization_s)
    assert (falls == math.inf) == (held == wanted)
    if falls < math.inf:
        assert now < falls <= now + stabilization_s
        assert stabilized.target(falls, wanted, stabilization_s) < held
