"""Learned amounts: above four uses of five, whatever their distribution, and not moved by an absurd one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from shared.policy.model.quotas import FIRST_ESTIMATE, QuotaLimits, Rate
from shared.policy.order.estimates import Durations
from shared.policy.resources.quota_estimates import MOST_KEYS, Estimate, QuotaEstimates

KEY = ("ada", "t", "tokens")
USES: dict[str, Callable[[random.Random], float]] = {
    "narrow": lambda rng: rng.uniform(750.0, 850.0),
    "log-normal": lambda rng: rng.lognormvariate(6.5, 0.8),
    "two sorts": lambda rng: rng.choice([100.0, 100.0, 4000.0]) * rng.uniform(0.9, 1.1),
    "long tail": lambda rng: 200.0 * rng.paretovariate(1.5),
}


@pytest.mark.parametrize("name", USES)
def test_the_estimate_is_above_four_uses_of_five(name: str) -> None:
    rng, estimates, above = random.Random(7), QuotaEstimates(), 0
    for number in range(6_000):
        used = USES[name](rng)
        above += number >= 1_000 and used > estimates.expect(KEY, None)
        estimates.learn(KEY, used)
    assert 0.15 <= above / 5_000 <= 0.27


def test_one_absurd_use_does_not_move_it_and_moves_the_mean_with_its_deviation_far() -> None:
    """Why the estimate is a quantile."""
    rng, estimates, means = random.Random(3), QuotaEstimates(), Durations()
    for _ in range(500):
        used = rng.uniform(700.0, 900.0)
        estimates.learn(KEY, used)
        means.learn(KEY, used)
    for one in (estimates, means):
        one.learn(KEY, 1e6)
    assert estimates.expect(KEY, None) <= 900.0
    assert (means.single(KEY) or 0.0) + (means.spread(KEY) or 0.0) > 90_000


def test_it_follows_work_that_uses_ten_times_as_much() -> None:
    estimates = QuotaEstimates()
    for _ in range(200):
        estimates.learn(KEY, 100.0)
    assert estimates.expect(KEY, None) == pytest.approx(100.0)
    for _ in range(30):
        estimates.learn(KEY, 1000.0)
    assert estimates.expect(KEY, None) == pytest.approx(1000.0)


def test_work_that_used_nothing_reserves_something() -> None:
    """An amount of 0 would fit a quota of which nothing is left."""
    estimates = QuotaEstimates()
    for _ in range(9):
        estimates.learn(KEY, 0.0)
    assert estimates.expect(KEY, None) == FIRST_ESTIMATE
    assert estimates.expect(KEY, QuotaLimits((), (Rate(0.5, 60.0),))) == 0.5


@pytest.mark.parametrize(
    ("limits", "amount"),
    [
        (None, 500.0),
        (QuotaLimits((), (Rate(1000.0, 60.0),)), 500.0),
        (QuotaLimits((), (Rate(1000.0, 60.0, 200.0), Rate(300.0, 1.0))), 200.0),
        (QuotaLimits((64.0,), (Rate(1000.0),)), 64.0),
        (QuotaLimits((0.0,)), 500.0),  # it gives nothing, and 0 would fit
    ],
)
def test_it_is_capped_at_the_smallest_limit(limits: QuotaLimits | None, amount: float) -> None:
    estimates = QuotaEstimates()
    assert estimates.expect(KEY, limits) == 1.0
    estimates.learn(KEY, 500.0)
    assert estimates.expect(KEY, limits) == amount


def test_the_oldest_are_forgotten_and_changes_are_reported_once() -> None:
    estimates = QuotaEstimates()
    for number in range(MOST_KEYS):
        estimates.learn(("ada", f"t{number}", "tokens"), 5.0)
    seen = estimates.version
    assert len(estimates.changed_since(0)) == MOST_KEYS
    estimates.learn(("ada", "t0", "tokens"), 5.0)
    estimates.learn(("ada", "new", "tokens"), 6.0)
    changed = estimates.changed_since(seen)
    assert changed == {
        ("ada", "t0", "tokens"): Estimate(5.0, (5.0, 5.0)),
        ("ada", "new", "tokens"): Estimate(6.0, (6.0,)),
    }
    assert len(estimates.by_key) == MOST_KEYS
    assert ("ada", "t1", "tokens") not in estimates.by_key
    assert all(math.isfinite(one.amount) for one in estimates.by_key.values())
