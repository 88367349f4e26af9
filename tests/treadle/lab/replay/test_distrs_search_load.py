"""The load that the search is measured on."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from shared.policy.scaling.search import search
from shared.policy.scaling.workload import ExpectedBatch
from treadle.lab.replay.distrs.search_load import search_load


def drawn(requests: int, batches: int = 6, seed: int = 1) -> tuple[list[ExpectedBatch], dict[str, int]]:
    return search_load(requests, batches, chance=np.random.default_rng(seed))


@pytest.mark.parametrize(("requests", "batches"), [(16_000, 6), (120, 6), (7, 3), (6, 6), (1, 1)])
def test_there_are_as_many_requests_as_asked_for_and_batches_differ_by_one_at_most(requests: int, batches: int) -> None:
    load, ceilings = drawn(requests, batches)
    sizes = [batch.requests.size for batch in load]
    assert (len(sizes), sum(sizes)) == (batches, requests)
    assert max(sizes) - min(sizes) <= 1
    assert ceilings == {"compile": requests, "run": requests}


def test_every_batch_overlaps_the_next() -> None:
    load, _ = drawn(600)
    for batch, following in pairwise(sorted(load, key=lambda batch: float(batch.requests.arrivals_s[0]))):
        assert following.requests.arrivals_s[0] < batch.completion_s


def test_its_search_finds_a_plan_below_the_ceilings() -> None:
    load, ceilings = drawn(600)
    plan = search(load, ceilings)
    assert plan.outcome.feasible
    assert all(0 < plan.units[pool] < most for pool, most in ceilings.items())


def test_equally_seeded_chances_give_the_same_load() -> None:
    def arrivals(seed: int) -> list[list[float]]:
        return [batch.requests.arrivals_s.tolist() for batch in drawn(60, seed=seed)[0]]

    assert arrivals(1) == arrivals(1) != arrivals(2)


@pytest.mark.parametrize(("requests", "batches"), [(5, 6), (0, 1), (5, 0)])
def test_each_batch_needs_a_request(requests: int, batches: int) -> None:
    with pytest.raises(ValueError, match="need a request each"):
        drawn(requests, batches)
