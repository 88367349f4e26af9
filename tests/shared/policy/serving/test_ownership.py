"""Ownership of GPUs: what is drained, given away and acquired, and never otherwise."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from shared.policy.resources.chunk_states import blocks_of
from shared.policy.serving.ownership import (
    Acquire,
    Drain,
    GpuOwnership,
    OwnershipCommand,
    Recorded,
    Release,
    UseAgain,
)

NOBODY: frozenset[int] = frozenset()


def held(gpus: int, **fields: float) -> GpuOwnership:
    """Return a node that holds all of its GPUs, because nothing is recorded of them."""
    node = GpuOwnership(gpus, **{"release_after_s": 0.0, **fields})  # type: ignore[arg-type]
    assert node.unavailable == ()
    assert node.settle(0.0, gpus, NOBODY, NOBODY) == []
    return node


def test_after_a_restart_held_stays_held_and_released_stays_released() -> None:
    node = GpuOwnership(3, recorded={0: "held", 1: "released"})
    assert node.unavailable == (1,), "a GPU without a record is held"
    assert node.settle(0.0, None, NOBODY, NOBODY) == [], "the share is not known"
    assert node.settle(0.0, 2, NOBODY, NOBODY) == []
    assert node.settle(0.0, 3, NOBODY, NOBODY) == [Acquire((1,))]
    assert node.unavailable == (1,), "the hook has not ended"
    assert node.settle(0.0, 3, NOBODY, NOBODY) == [], "one call at a time"
    assert node.ended(1.0) == [UseAgain((1,))]
    assert not node.unavailable


@pytest.mark.parametrize("share", [None, 0, 2, 4])
def test_a_hook_that_a_restart_has_interrupted_is_called_again_first(share: int | None) -> None:
    node = GpuOwnership(4, 0.0, recorded={0: "releasing", 1: "acquiring", 2: "releasing", 3: "released"})
    assert node.unavailable == (0, 1, 2, 3)
    assert node.settle(0.0, share, NOBODY, {2}) == [Acquire((1,))]
    assert node.ended(1.0) == [UseAgain((1,))]
    assert Release((0,)) in node.settle(1.0, share, NOBODY, {2}), "an engine of the former manager is on GPU 2"
    assert node.ended(2.0) == []
    assert Release((2,)) in node.settle(2.0, share, NOBODY, NOBODY)
    assert node.ended(3.0) == []
    assert node.states[0] == node.states[2] == "released"


def test_an_interrupted_hook_that_fails_is_called_again_as_the_share_needs_it() -> None:
    node = GpuOwnership(1, recorded={0: "releasing"})
    assert node.settle(0.0, None, NOBODY, NOBODY) == [Release((0,))]
    assert node.ended(0.0, "no") == []
    assert node.settle(1.0, None, NOBODY, NOBODY) == []
    assert node.settle(1.0, 1, NOBODY, NOBODY) == [Acquire((0,))]


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
        assert "it is in use" in node.reasons[0], "people see it also while the hook is called again"
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


class Host:
    """What the hooks and the manager have done on each GPU, and what a crash leaves of that: the records."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.records = dict[int, Recorded]()
        self.away = set[int]()
        """GPUs that may be in use elsewhere: from the beginning of a release to the end of an acquire."""
        self.busy = set[int]()
        self.engines = set[int]()
        self.start()

    def start(self) -> None:
        """Start a manager. Engines outlive the crash of the former one, and no action does."""
        self.node = GpuOwnership(8, 1.0, recorded=self.records)
        self.calling, self.busy = (), set()

    calling: tuple[int, ...]

    def work(self) -> None:
        usable = set(range(8)) - set(self.node.unavailable)
        assert not usable & self.away
        started = {gpu for gpu in usable if self.rng.random() < 0.2}
        self.busy = {gpu for gpu in self.busy if self.rng.random() < 0.6} | started
        self.engines = {gpu for gpu in self.engines if gpu in usable or self.rng.random() < 0.6} | started

    def end_call(self, now: float) -> None:
        failed, released = self.rng.random() < 0.3, self.records[self.calling[0]] == "releasing"
        assert released == (self.node.states[self.calling[0]] == "releasing")
        assert self.node.ended(now, "no" if failed else "") == ([] if failed or released else [UseAgain(self.calling)])
        if not failed:
            self.records |= dict.fromkeys(self.calling, "released" if released else "held")
            if not released:
                self.away -= set(self.calling)
        self.calling = ()

    def do(self, command: OwnershipCommand) -> None:
        match command:
            case Release(gpus):
                assert not self.calling
                assert not set(gpus) & (self.busy | self.engines)
                self.away |= set(gpus)
                self.calling, self.records = gpus, self.records | dict.fromkeys(gpus, "releasing")
            case Acquire(gpus):
                assert not self.calling
                assert set(gpus) <= self.away
                self.calling, self.records = gpus, self.records | dict.fromkeys(gpus, "acquiring")
            case Drain(gpus):
                assert not set(gpus) & self.busy
            case UseAgain(gpus):
                assert not set(gpus) & self.away


@pytest.mark.parametrize("seed", range(40))
def test_no_gpu_is_given_away_in_use_or_used_while_it_is_away(seed: int) -> None:
    rng, now = Random(seed), 0.0
    host = Host(rng)
    for _ in range(600):
        now += rng.random()
        host.work()
        if host.calling and rng.random() < 0.5:
            host.end_call(now)
        if rng.random() < 0.03:
            host.start()
        for command in host.node.settle(now, rng.choice([None, 0, 0, 1, 2, 5, 8]), host.busy, host.engines):
            host.do(command)
    for share in (8, 0):
        for _ in range(400):
            now += 10.0
            host.busy, host.engines = set(), set()
            if host.calling:
                host.end_call(now)
            for command in host.node.settle(now, share, NOBODY, NOBODY):
                host.do(command)
        assert len(host.node.unavailable) == 8 - share, (
            "hooks that fail sometimes delay a change, and do not prevent it"
        )


@pytest.mark.parametrize("seed", range(200))
def test_what_is_held_has_a_chunk_of_the_largest_degree_and_comes_to_rest(seed: int) -> None:
    """Actions go on, and the share changes once: the hooks do not alternate for ever."""
    rng, now = Random(seed), 0.0
    gpus, degree = rng.choice([2, 3, 6, 8, 12]), rng.choice([1, 2, 4, 8])
    share = rng.randint(0, gpus)
    node = GpuOwnership(gpus, 1.0, recorded={gpu: rng.choice(["held", "released"]) for gpu in range(gpus)})
    usable = [gpu for gpu in range(gpus) if node.states[gpu] == "held"]
    busy = frozenset(gpu for gpu in usable if rng.random() < 0.4)
    broken = frozenset(gpu for gpu in range(gpus) if rng.random() < 0.1)
    for _ in range(16):
        now += 10.0
        quiet = not node.settle(now, share, busy, busy, degree, broken)
        if set(node.states) & {"releasing", "acquiring"}:
            node.ended(now)
    assert quiet, node.states
    held = {gpu for gpu in range(gpus) if node.states[gpu] == "held"}
    assert len(held) >= share
    assert busy <= held
    block = max((size for size in (1, 2, 4, 8) if size <= min(share, degree, gpus)), default=0)
    if block:
        blocks = [set(range(first, first + block)) for first in range(0, gpus - block + 1, block)]
        whole = [one for one in blocks if not one & broken] or blocks
        assert any(one <= held for one in whole)
        assert len(held - broken) >= min(share, gpus - len(broken)), "good ones are as many as the share"
        if len(held) > share + len(held & broken) and not held & broken:
            assert all(not (held - one - busy) for one in whole if one <= held), "none could be drained"
    else:
        assert held == busy


def test_a_gpu_with_a_quarantined_engine_is_held_beyond_the_share_until_it_is_good() -> None:
    node = GpuOwnership(4, 0.0, recorded={1: "released", 2: "released", 3: "released"})
    assert node.settle(0.0, 1, NOBODY, {0}, 1, {0}) == [Acquire((1,))]
    node.ended(0.0)
    assert node.settle(1.0, 1, NOBODY, {0}, 1, {0}) == []
    assert Drain((1,)) in node.settle(2.0, 1, {0}, {0}), "its probe has succeeded, and an action uses it"
    node.ended(3.0)
    assert node.settle(3.0, 0, NOBODY, NOBODY, 1, {0}) == [Drain((0,)), Release((0,))], "without a share it goes, too"
