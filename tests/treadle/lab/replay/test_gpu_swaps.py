"""Swaps of one GPU: ours against LRU and Belady on random traces, and both against brute force."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random

import numpy as np
import pytest

from shared.policy.dispatch.config import DispatchConfig
from treadle.lab.replay.gpu.swaps import SEEDS, TRACES, belady_swaps, count_swaps, lru_swaps, random_trace


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_in_order_as_lru_at_most_and_with_reordering_as_belady_at_most(seed: int, slots: int) -> None:
    """The second one is no theorem: it needs a queue, and these traces have loads of 0.7 to 1.2."""
    found = count_swaps(np.random.default_rng(seed), seed, slots)
    assert found.calls == TRACES.calls
    assert found.in_order <= found.lru, found
    assert found.reordered <= found.belady, found
    assert found.reordered_p99_s <= found.services * (TRACES.turn_s + TRACES.restore_s), found


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_with_the_turn_of_the_mesh_as_belady_at_most(seed: int, slots: int) -> None:
    traces = replace(TRACES, turn_s=DispatchConfig().swap_wait_s)
    assert traces.turn_s < TRACES.turn_s
    found = count_swaps(np.random.default_rng(seed), seed, slots, traces)
    assert found.reordered <= found.belady, found


def test_belady_is_the_optimum_and_lru_is_not_below_it() -> None:
    random = Random(1)
    for _ in range(60):
        slots = random.randint(1, 3)
        order = tuple(random.choice("abcd") for _ in range(9))
        assert belady_swaps(order, slots) == optimum(order, slots) <= lru_swaps(order, slots)


def test_by_hand() -> None:
    assert lru_swaps("abaacabc", 1) == 7
    assert lru_swaps("abcabc", 2) == 6
    assert belady_swaps("abcabc", 2) == 4


def test_a_trace_has_the_calls_of_its_seed() -> None:
    first, again, other = (random_trace(np.random.default_rng(seed), 1) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert [call.due_s for call in first.calls] == sorted(call.due_s for call in first.calls)


def optimum(order: tuple[str, ...], slots: int) -> int:
    @cache
    def least(at: int, held: frozenset[str]) -> int:
        if at == len(order):
            return 0
        if order[at] in held:
            return least(at + 1, held)
        if len(held) < slots:
            return 1 + least(at + 1, held | {order[at]})
        return 1 + min(least(at + 1, held - {one} | {order[at]}) for one in held)

    return least(0, frozenset())
