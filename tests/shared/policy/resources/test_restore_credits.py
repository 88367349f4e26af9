"""Credits towards restores: the largest loss of the latest calls, spent by a restore."""

import random
from itertools import accumulate

import pytest

from shared.policy.model.chunks import SIZES
from shared.policy.resources import restore_credits
from shared.policy.resources.restore_credits import RestoreCredits


def credit(paid_by: RestoreCredits, service: str, size: int) -> float:
    return float(paid_by.of(service)[SIZES.index(size)])


@pytest.mark.parametrize("seed", range(200))
def test_a_credit_is_the_largest_loss_of_the_latest_calls_since_a_restore(seed: int) -> None:
    rng = random.Random(seed)
    paid_by, taken = RestoreCredits(), dict.fromkeys(SIZES, 0.0)
    losses: dict[int, list[float]] = {size: [] for size in SIZES}
    paid = dict.fromkeys(SIZES, 0.0)
    for _ in range(rng.randint(1, 60)):
        costs = {size: rng.uniform(1.0, 4.0) / size**0.5 for size in SIZES}
        size, restores = rng.choice(SIZES), rng.random() < 0.2
        before = credit(paid_by, "s", size)
        paid_by.granted("s", costs, size, restores=restores)
        for other in SIZES:
            lost = costs[size] - costs[other]
            losses[other].append(lost)
            paid[other] += max(0.0, lost)
        if restores:
            taken[size] += before
            losses[size] = []
        for other in SIZES:
            sums = [0.0, *accumulate(reversed(losses[other]))]
            assert credit(paid_by, "s", other) == pytest.approx(max(sums))
    assert all(taken[size] <= paid[size] + 1e-9 for size in SIZES), "a restore takes no more than was lost before"


def test_credits_are_those_of_a_service_and_the_caller_may_keep_them() -> None:
    paid_by = RestoreCredits()
    paid_by.granted("a", {1: 5.0, 2: 3.0}, 1, restores=False)
    kept = paid_by.of("a")
    paid_by.granted("a", {1: 5.0, 2: 3.0}, 1, restores=False)
    assert (kept[1], credit(paid_by, "a", 2), credit(paid_by, "b", 2)) == (2.0, 4.0, 0.0)


def test_credits_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore_credits, "MOST_SERVICES", 2)
    paid_by = RestoreCredits()
    for service in "abc":
        paid_by.granted(service, {1: 5.0, 2: 3.0}, 1, restores=False)
    assert [credit(paid_by, service, 2) for service in "abc"] == [0.0, 0.0, 2.0]
