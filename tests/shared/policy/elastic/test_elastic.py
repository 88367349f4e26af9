"""Elastic scheduling compared with an oracle that tries every split."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.policy.elastic import arrange, eviction
from shared.policy.elastic.eviction import Rows, fluid_starts_s, grow
from shared.policy.elastic.scheduling import LOOKED_AT, Rule, Scalable, allot, enough, price, warm
from shared.policy.model.elasticity import RIGID, Elasticity
from tests.shared.policy.elastic.elastic_oracle import (
    allot_slowly,
    cheapest_s,
    concave,
    cost_s,
    lasts_s,
    lawless,
    modelled,
    objective_s,
    queued_s,
    scalable,
)

ALL = 1_000
rules: st.SearchStrategy[Rule] = st.sampled_from(["paper", "priced"])
whole = st.one_of(lawless(), concave())
anything = st.one_of(whole, modelled())
busy = st.lists(st.integers(-2, 40).map(float), max_size=5)
spares = st.integers(0, 8)


def free_for(candidates: list[Scalable], spare: int) -> int:
    return spare + sum(one.amounts[0] for one in candidates)


@given(st.lists(whole, min_size=1, max_size=4), spares, st.lists(whole, max_size=4), busy, st.integers(0, 4),
       st.integers(1, 3))  # fmt: skip
@settings(deadline=None, max_examples=300)
def test_it_decides_as_algorithm_1_does(
    candidates: list[Scalable],
    spare: int,
    waiting: list[Scalable],
    busy_until_s: list[float],
    evictable: int,
    depth: int,
) -> None:
    free = free_for(candidates, spare)
    granted = allot(candidates, free, waiting, busy_until_s, evictable=evictable, depth=depth, rule="paper")
    assert granted == allot_slowly(candidates, free, waiting, busy_until_s, evictable, depth)


@given(st.lists(anything, min_size=1, max_size=4), spares, st.lists(anything, max_size=4), busy, rules)
@settings(deadline=None, max_examples=200)
def test_grants_are_allowed_and_fit_and_leave_no_room_for_the_evicted(
    candidates: list[Scalable], spare: int, waiting: list[Scalable], busy_until_s: list[float], rule: Rule
) -> None:
    free = free_for(candidates, spare)
    for evictable in range(len(candidates) + 2):
        granted = allot(candidates, free, waiting, busy_until_s, evictable=evictable, rule=rule)
        assert max(1, len(candidates) - evictable) <= len(granted) <= len(candidates)
        assert all(units in one.amounts for one, units in zip(candidates, granted, strict=False))
        assert sum(granted) <= free
        if len(granted) < len(candidates):
            assert free - sum(granted) < candidates[len(granted)].amounts[0]


@given(st.lists(anything, min_size=1, max_size=4), spares, st.lists(anything, max_size=4), busy, rules)
@settings(deadline=None, max_examples=200)
def test_eviction_never_makes_the_objective_worse_and_each_split_is_the_best_of_all(
    candidates: list[Scalable], spare: int, waiting: list[Scalable], busy_until_s: list[float], rule: Rule
) -> None:
    free = free_for(candidates, spare)
    owned = free + len(busy_until_s)
    each = price(owned - spare, owned) if rule == "priced" else 0.0
    before = float("inf")
    for evictable in range(len(candidates)):
        granted = allot(candidates, free, waiting, busy_until_s, evictable=evictable, rule=rule)
        kept = candidates[: len(granted)]
        assert cost_s(kept, granted, each) == pytest.approx(cheapest_s(kept, free, each))
        objective = objective_s(candidates, granted, waiting, free, busy_until_s, 2, each)
        assert objective <= before + 1e-9
        before = objective


@given(st.lists(st.one_of(concave(), modelled()), min_size=1, max_size=4), spares, st.sampled_from([0.0, 0.3]))
@settings(deadline=None)
def test_marginal_gains_find_the_best_split_if_concave_and_detect_if_not(
    some: list[Scalable], spare: int, each: float
) -> None:
    units, lasts = np.concatenate([one.units for one in some]), np.concatenate([one.durations_s for one in some])
    rows = Rows(units, lasts, lasts * (1 + each * units), np.cumsum([0, *(len(one.amounts) for one in some)]))
    try:
        more = grow(rows, spare)
    except ValueError:
        assert any(steps_gain_more_and_more(one, each) for one in some)
    else:
        split = [one.amounts[extra] for one, extra in zip(some, more, strict=True)]
        assert sum(more) <= spare
        assert cost_s(some, split, each) == pytest.approx(cheapest_s(some, free_for(some, spare), each))


def steps_gain_more_and_more(one: Scalable, each: float) -> bool:
    """Return whether an amount is left out, or a step gains more than the one before it, up to the cheapest."""
    costs = [cost_s([one], [units], each) for units in one.amounts]
    best = costs.index(min(costs))
    gains = -np.diff(costs[: best + 1])
    return one.amounts[best] - one.amounts[0] > best or bool((np.diff(gains) > 0).any())


@given(anything, st.integers(2, 5), spares, busy, rules)
@settings(deadline=None)
def test_among_equals_the_first_gets_no_fewer(
    one: Scalable, count: int, spare: int, busy_until_s: list[float], rule: Rule
) -> None:
    if one.amounts != tuple(range(one.amounts[0], one.amounts[-1] + 1)) or steps_gain_more_and_more(one, 0.0):
        one = scalable(one.amounts, 10.0, RIGID)
    candidates = [one] * count
    granted = allot(candidates, free_for(candidates, spare), [], busy_until_s, evictable=ALL, rule=rule)
    assert list(granted) == sorted(granted, reverse=True)


@pytest.mark.parametrize(
    ("lasts_s", "count", "spare", "held"),
    [
        ((3.06123448961131, 1.7347063761361183, 1.0347063761361184, 0.9347063761361184), 5, 2, 1),
        ((5.762024215250641, 4.662024215250641, 3.562024215250641, 3.462024215250641), 5, 7, 4),
        ((5.737962528222433, 4.637962528222433, 3.5379625282224327, 2.837962528222433, 2.137962528222433), 4, 7, 5),
    ],
)
def test_sums_that_differ_by_rounding_are_equal(lasts_s: tuple[float, ...], count: int, spare: int, held: int) -> None:
    one = Scalable(tuple(range(1, len(lasts_s) + 1)), np.array(lasts_s))
    granted = allot([one] * count, free_for([one] * count, spare), [], [30.0] * held, evictable=0)
    assert list(granted) == sorted(granted, reverse=True)


LINEAR = Elasticity("power", exponent=1.0)
NEARLY = Elasticity("table", table=((1, 1.0), (2, 0.8)))


def test_two_that_scale_go_one_after_the_other() -> None:
    """On one core each, both take 8 s. One after the other on both cores: 4 s and 8 s."""
    candidates = [scalable((1, 2), 8.0, LINEAR)] * 2
    assert allot(candidates, 2, [], [], evictable=1, rule="paper") == (2,)
    assert allot(candidates, 2, [], [], evictable=0, rule="paper") == (1, 1)


def test_the_second_amount_of_the_first_waiting_action_makes_eviction_pay() -> None:
    """At its fewest units the evicted action would end after 4 + 8 s, no better than starting at once."""
    candidates = [scalable((1, 2), 8.0, LINEAR)] * 2
    assert allot(candidates, 2, [], [], evictable=1, depth=1, rule="paper") == (1, 1)


def test_those_behind_are_counted_beyond_those_looked_at() -> None:
    """Evicting the second saves these two 1 s, but a unit is held 2 s longer, and twenty actions wait for it."""
    candidates = [scalable((1, 2), 8.0, NEARLY)] * 2
    other, too_wide = scalable((1,), 8.0, RIGID), scalable((3,), 8.0, RIGID)
    assert allot(candidates, 2, [], [], evictable=1, rule="paper") == (2,)
    assert allot(candidates, 2, [other] * 20, [], evictable=1, rule="paper") == (1, 1)
    assert allot(candidates, 2, [too_wide] * LOOKED_AT + [other] * 20, [], evictable=1, rule="paper") == (1, 1)
    assert allot(candidates, 2, [too_wide] * LOOKED_AT, [], evictable=1, rule="paper") == (2,)


@given(st.lists(st.integers(0, 20).map(float), min_size=1, max_size=6), st.integers(1, 40))
@settings(deadline=None)
def test_a_liquid_waits_as_many_small_drops_do(unit_free_s: list[float], work_s: int) -> None:
    drops = [scalable((1,), 0.1, RIGID)] * (10 * work_s)
    waited = queued_s(unit_free_s, drops, 1, 0.0) - 0.1 * len(drops)
    assert fluid_starts_s(np.sort(unit_free_s), len(drops), work_s) == pytest.approx(waited, abs=0.1 * len(drops))


def test_a_visit_of_0_s_starts_when_the_first_unit_is_free() -> None:
    assert fluid_starts_s(np.array([3.0, 9.0]), 4, 0.0) == 12.0
    assert fluid_starts_s(np.array([3.0, 9.0]), 0, 0.0) == 0.0


def test_a_price_leaves_units_to_future_arrivals() -> None:
    wide = scalable(range(1, 33), 60.0, Elasticity("amdahl", serial=0.05))
    assert allot([wide], 64, [], [50.0] * 192, evictable=0, rule="paper") == (32,)
    granted = [allot([wide], 256 - held, [], [50.0] * held, evictable=0)[0] for held in range(0, 256, 32)]
    assert granted == sorted(granted, reverse=True)
    assert granted[0] == 32
    assert granted[-1] < 16


def test_the_price_rises_with_the_load_to_one_at_most() -> None:
    prices = [price(held, 256) for held in range(257)]
    assert prices == sorted(prices)
    assert prices[0] == 1 / 256
    assert prices[-1] == 1.0
    assert price(0, 1) == price(1, 1) == 1.0


@pytest.mark.parametrize("load", [0.0, 0.25, 0.5, 0.75])
@pytest.mark.parametrize("waiting", [0, 10, 40])
def test_the_price_of_a_queue_is_the_delay_of_all_until_it_is_empty(load: float, waiting: int) -> None:
    """One server as fast as 100 units, and evenly spaced actions of one unit-second."""
    units = 100
    arrivals_s = [0.0] * waiting
    if load:
        arrivals_s += [number / (units * load) for number in range(1, 20 * units)]

    def waits_s(begin_s: float) -> float:
        total_s, free_s = 0.0, begin_s
        for at_s in arrivals_s:
            total_s += max(0.0, free_s - at_s)
            free_s = max(free_s, at_s) + 1.0 / units
        return total_s

    each = price(round(load * units), units, waiting) - price(round(load * units), units)
    assert (waits_s(1.0 / units) - waits_s(0.0)) == pytest.approx(each, rel=0.05, abs=0.011)


@given(anything, spares, busy)
@settings(deadline=None)
def test_the_head_waits_for_the_amount_that_ends_first_prices_included(
    head: Scalable, free: int, busy_until_s: list[float]
) -> None:
    starts = sorted([0.0] * free + [max(0.0, until) for until in busy_until_s])
    able = [units for units in head.amounts if units <= len(starts)]
    found = enough(head, free, busy_until_s)
    if not able:
        assert found == head.amounts[0]
        return
    each = price(min(len(starts), len(busy_until_s) + head.amounts[0]), len(starts))
    ends = {units: starts[units - 1] + lasts_s(head, units) * (1 + each * units) for units in able}
    assert found in able
    assert ends[found] <= min(ends.values()) + 1e-9


def test_the_head_waits_for_a_core_that_is_free_soon_and_not_for_one_that_is_long_held() -> None:
    head = scalable((1, 2), 8.0, LINEAR)
    assert enough(head, 1, [0.01, 90.0, 90.0]) == 2
    assert enough(head, 1, [60.0, 90.0, 90.0]) == 1


def test_candidates_that_do_not_fit_are_an_error_and_no_candidates_get_nothing() -> None:
    with pytest.raises(ValueError, match="need 1 more than the 1 that are free"):
        allot([scalable((2,), 1.0, RIGID)], 1, [], [], evictable=0)
    assert allot([], 4, [], [1.0], evictable=0) == ()


@pytest.mark.parametrize("amounts", [(), (0, 1), (2, 1), (1, 1)])
def test_amounts_ascend_from_one_or_more(amounts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        Scalable(amounts, np.ones(len(amounts)))


@pytest.mark.parametrize("durations", [[1.0], [1.0, -1.0], [1.0, float("nan")]])
def test_every_amount_has_a_duration(durations: list[float]) -> None:
    with pytest.raises(ValueError, match="needs a duration"):
        Scalable((1, 2), np.array(durations))


def test_after_warming_no_decision_waits_for_a_compiler() -> None:
    """Each loop that is called from outside is compiled for one kind of arguments, whatever a caller passes."""
    warm()
    sets, one = scalable((1, 4), 9.0, LINEAR), scalable((1,), 1.0, RIGID)
    ends = np.linspace(1.0, 9.0, 8)
    ends.flags.writeable = False
    allot([sets, sets], 5, [one] * (LOOKED_AT + 1), ends, evictable=1, depth=3, rule="paper")
    allot([one, one], 2, [], ends[::2], evictable=0)
    allot([one], 1, [], [], evictable=0)
    loops = [eviction._evict, eviction._cheapest, eviction._concave, arrange._arrange]
    assert [len(loop.signatures) for loop in loops] == [1] * len(loops)


def test_warming_can_be_done_again() -> None:
    warm()
    warm()
