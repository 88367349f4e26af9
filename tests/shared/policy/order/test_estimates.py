"""Learned durations: mean, spread, and single-unit seconds of elastic work."""

from __future__ import annotations

from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.policy.model.elasticity import Elasticity
from shared.policy.order.estimates import UNKNOWN_FRACTION, Durations

ONE, OTHER = ("ada", "t", "run"), ("bob", "t", "run")
SECONDS = st.floats(1e-3, 3600.0)


def learned(seconds: list[float], weight: float = 0.1) -> Durations:
    durations = Durations(weight=weight)
    for value in seconds:
        durations.learn(ONE, value)
    return durations


def test_an_unseen_kind_has_no_duration() -> None:
    durations = learned([2.0])

    assert (durations.single(OTHER), durations.spread(OTHER), durations.known(OTHER)) == (None, None, 0.0)
    assert durations.expect(OTHER, 30.0) == 30.0 * UNKNOWN_FRACTION


def test_one_execution_has_no_spread() -> None:
    assert (learned([2.0]).single(ONE), learned([2.0]).spread(ONE)) == (2.0, 0.0)


@given(st.lists(SECONDS, min_size=1, max_size=30), st.floats(0.01, 0.99))
def test_mean_and_spread_are_those_of_the_values_weighted_by_age(seconds: list[float], weight: float) -> None:
    durations = learned(seconds, weight)

    newest_first = [weight * (1 - weight) ** age for age in range(len(seconds) - 1)]
    weights = [*newest_first, (1 - weight) ** (len(seconds) - 1)][::-1]
    mean = sum(share * value for share, value in zip(weights, seconds, strict=True))
    variance = sum(share * (value - mean) ** 2 for share, value in zip(weights, seconds, strict=True))

    assert durations.single(ONE) == pytest.approx(mean)
    assert durations.spread(ONE) == pytest.approx(variance**0.5, rel=1e-6, abs=1e-6 * max(seconds))


def test_two_equal_weights_are_the_plain_mean_and_deviation() -> None:
    durations = learned([4.0, 8.0], weight=0.5)

    assert (durations.single(ONE), durations.spread(ONE)) == (fmean([4, 8]), pstdev([4, 8]))


@given(SECONDS, st.lists(st.integers(1, 64), min_size=1), st.floats(0.0, 1.0))
def test_executions_on_many_and_on_few_units_teach_the_same(single_s: float, granted: list[int], serial: float) -> None:
    elasticity = Elasticity("amdahl", serial=serial)

    durations = learned([elasticity.single(elasticity.duration(single_s, units), units) for units in granted])

    assert durations.single(ONE) == pytest.approx(single_s)
    assert durations.spread(ONE) == pytest.approx(0.0, abs=1e-6 * single_s)
