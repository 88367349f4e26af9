"""Tenants by virtual time, beside sorted lists; and the fair queue beside one that scans all tenants."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.policy.order.ebf import EbfKey
from shared.policy.order.ranked_tenants import RankedTenants
from shared.policy.order.tenants import FairQueue
from tests.shared.policy.order.linear_tenants import LinearFairQueue

names = st.integers(0, 8).map(lambda number: f"t{number}")


@given(st.lists(st.tuples(names, st.none() | st.integers(0, 5)), max_size=200), st.integers(0, 9))
def test_tenants_are_ranked_like_a_sorted_list(changes: list[tuple[str, int | None]], most: int) -> None:
    ranked, times = RankedTenants(), dict[str, float]()
    for name, time in changes:
        if time is not None:
            ranked.set(name, time)
            times[name] = time
        elif name in times:
            ranked.remove(name)
            del times[name]
        ranked.check()
        order = sorted((time, name) for name, time in times.items())
        assert list(ranked) == [name for _, name in order]
        assert list(islice(ranked, most)) == [name for _, name in order][:most]
        if order:
            assert ranked.first() == order[0]
            assert list(ranked) == [name for _, name in order], "outdated entries at the top were removed"
        else:
            with pytest.raises(IndexError):
                ranked.first()


@pytest.mark.parametrize("tenants", [2, 7, 60])
@pytest.mark.parametrize("seed", range(6))
def test_the_fair_queue_decides_like_one_that_scans_all_tenants(seed: int, tenants: int) -> None:
    """Random histories of pushes, grants at the head and behind it, refunds, removals and changed weights."""
    rng = Random(seed)
    weights: dict[str, float] = {}
    queue, oracle = FairQueue(weights), LinearFairQueue(weights)
    owner: dict[str, str] = {}
    undo: list[tuple[str, str, EbfKey, float, bool]] = []
    for at in range(1500):
        step = rng.random()
        order = oracle.mixed()
        assert queue.head() == (order[0] if order else None)
        if step < 0.4 or not order:
            tenant, key, action = f"t{rng.randrange(tenants)}", EbfKey(rng.randrange(9), 0.0, (0, at)), f"a{at}"
            owner[action] = tenant
            queue.push(tenant, key, action)
            oracle.push(tenant, key, action)
        elif step < 0.8:
            is_head = rng.random() < 0.6
            action = order[0] if is_head else rng.choice(order)
            tenant, unit_s = owner[action], rng.choice([0.0, 0.5, 1.0, 7.0])
            undo = [(tenant, action, oracle.waiting[tenant][action], unit_s, is_head)]
            for one in (queue, oracle):
                one.charge(tenant, unit_s, ends_turn=is_head)
                one.remove(tenant, action)
        elif step < 0.85 and undo:
            tenant, action, key, unit_s, was_head = undo.pop()
            for one in (queue, oracle):
                one.push(tenant, key, action)
                one.refund(tenant, unit_s, turn=was_head)
        elif step < 0.95:
            action = rng.choice(order)
            undo = []
            assert queue.remove(owner[action], action)
            oracle.remove(owner[action], action)
        else:
            weights[f"t{rng.randrange(tenants)}"] = rng.choice([0.5, 1.0, 4.0])
            undo = []  # a refund comes in the round of its charge, so with the same weight
        queue.check()
        order = oracle.mixed()
        assert list(islice(queue.mixed(), 65)) == order[:65]
        assert list(queue.mixed()) == order
        assert list(queue) == [action for row in oracle.rows() for action in row]
        assert len(queue) == len(order)
