"""Ownership of GPUs: what is drained, given away and acquired, and never otherwise."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from shared.policy.resources.chunk_states import blocks_of
from shared.policy.serving.ownership import Acquire, Drain, GpuOwnership, Release, UseAgain

NOBODY: frozenset[int] = frozenset()


def held(gpus: int, **fields: float) -> GpuOwnership:
    """Return a node that has acquired all of its GPUs."""
    node = GpuOwnership(gpus, **{"release_after_s": 0.0, **fields})  # type: ignore[arg-type]
    everything = tuple(range(gpus))
    assert node.settle(0.0, gpus, NOBODY, NOBODY) == [Acquire(everything)]
    assert node.ended(0.0) == [UseAgain(everything)]
    assert node.unavailable == ()
    return node


def test_after_a_start_nothing_is_used_before_it_was_acquired() -> None:
    node = GpuOwnership(2)
    assert set(node.unavailable) == {0, 1}
    assert node.settle(0.0, 1, NOBODY, NOBODY) == [Acquire((0,))]
    assert set(node.unavailable) == {0, 1}, "the hook has not ended"
    assert node.settle(0.0, 2, NOBODY, NOBODY) == [], "one call at a time"
    assert node.ended(1.0) == [UseAgain((0,))]
    assert set(node.unavailable) == {1}


def test_what_was_not_acquired_after_a_start_is_given_away_again() -> None:
    assert GpuOwnership(2).settle(0.0, 0, NOBODY, NOBODY) == [Release((0, 1))]


def test_gpus_above_the_share_are_drained_before_they_are_given_away() -> None:
    node = held(2, release_after_s=10.0)
    assert node.settle(1.0, 0, {0}, {0, 1}) == [], "the share may grow again at once"
    assert node.settle(11.0, 0, {0}, {0, 1}) == [Drain((1,))], "GPU 0 works"
    assert node.settle(12.0, 0, NOBODY, {0, 1}) == [Drain((0,))]
    assert node.settle(13.0, 0, NOBODY, {0}) == [Release((1,))]
    assert node.settle(14.0, 0, NOBODY, NOBODY) == []
    assert node.ended(15.0) == []
    assert node.settle(15.0, 0, NOBODY, NOBODY) == [Release((0,))]


def test_a_share_that_grows_takes_back_what_is_drained_without_a_hook() -> None:
    node = held(2)
    assert node.settle(1.0, 0, NOBODY, {0, 1}) == [Drain((0, 1))]
    assert node.settle(2.0, 1, NOBODY, {0, 1}) == [UseAgain((0,))]
    assert node.settle(3.0, 2, NOBODY, NOBODY) == [UseAgain((1,))]


@pytest.mark.parametrize("share", [0, 2])
def test_a_failed_hook_leaves_the_gpus_unused_and_is_called_again_later_and_later(share: int) -> None:
    node = held(2)
    if share:
        node.settle(1.0, 0, NOBODY, NOBODY)
        node.ended(1.0)
    now, pauses = 1.0, []
    (call,) = [one for one in node.settle(now, share, NOBODY, NOBODY) if isinstance(one, Acquire | Release)]
    for _ in range(9):
        assert node.ended(now, "it is in use") == []
        assert node.unavailable == (0, 1)
        assert "it is in use" in node.reasons[0]
        began = now
        while not (again := node.settle(now, share, NOBODY, NOBODY)):
            now += 0.5
        assert again == [call]
        pauses.append(now - began)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    node.ended(now)
    assert node.unavailable == (() if share else (0, 1))


@pytest.mark.parametrize("count", range(1, 9))
def test_what_stays_has_a_block_as_large_as_any_choice_would_leave(count: int) -> None:
    for idle in range(1, 256):
        gpus = {gpu for gpu in range(8) if idle >> gpu & 1}
        if len(gpus) < count:
            continue
        node = held(8)
        (drain,) = node.settle(1.0, 8 - count, set(range(8)) - gpus, set(range(8)))
        assert isinstance(drain, Drain)
        assert len(drain.gpus) == count
        assert set(drain.gpus) <= gpus

        def largest(chosen: tuple[int, ...]) -> int:
            return max(blocks_of(255 & ~sum(1 << gpu for gpu in chosen), 8), default=0)

        assert largest(drain.gpus) == max(largest(other) for other in itertools.combinations(sorted(gpus), count))


@pytest.mark.parametrize("seed", range(20))
def test_no_gpu_is_given_away_in_use_or_used_while_it_is_away(seed: int) -> None:
    rng, node, now = Random(seed), GpuOwnership(8, 1.0), 0.0
    away, busy, engines = set(range(8)), set[int](), set[int]()
    calling: tuple[int, ...] = ()
    for _ in range(400):
        now += rng.random()
        usable = set(range(8)) - set(node.unavailable)
        assert not usable & away
        started = {gpu for gpu in usable if rng.random() < 0.2}
        busy = {gpu for gpu in busy if rng.random() < 0.6} | started
        engines = {gpu for gpu in engines if gpu in usable or rng.random() < 0.6} | started
        if calling and rng.random() < 0.5:
            failed = rng.random() < 0.3
            released = node.states[calling[0]] == "releasing"
            for command in node.ended(now, "no" if failed else ""):
                assert command == UseAgain(calling)
            if not released and not failed:
                away -= set(calling)
            calling = ()
        for command in node.settle(now, rng.choice([0, 0, 1, 2, 5, 8]), busy, engines):
            match command:
                case Release(gpus):
                    assert not calling
                    assert not set(gpus) & (busy | engines)
                    away |= set(gpus)
                    calling = gpus
                case Acquire(gpus):
                    assert not calling
                    assert set(gpus) <= away
                    calling = gpus
                case Drain(gpus):
                    assert not set(gpus) & busy
                case UseAgain(gpus):
                    assert not set(gpus) & away
