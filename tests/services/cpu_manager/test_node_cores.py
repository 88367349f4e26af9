"""Cores are whole, exclusive and never lost; their usage is integrated."""

from __future__ import annotations

import os

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.cpu_manager.cores import Cores, usable_cores
from services.cpu_manager.topology import parse
from shared.policy.resources.cores import Topology

ALL = frozenset({0, 2, 3, 5, 8, 9})
FLAT = Topology((tuple((core,) for core in sorted(ALL)),))
"""One NUMA node of cores without hardware threads."""
START = 100.0


class CoresMachine(RuleBasedStateMachine):
    """Takes and gives back at random, beside a list of who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.cores = Cores(FLAT)
        self.cores.usage.integrate(START)
        self.holders: list[frozenset[int]] = []
        self.now = START
        self.owned_unit_s = self.used_unit_s = 0.0

    def held(self) -> frozenset[int]:
        return frozenset().union(*self.holders)

    @rule(count=st.integers(0, 7))
    def takes(self, count: int) -> None:
        free = sorted(ALL - self.held())
        if count > len(free):
            with pytest.raises(ValueError, match=f"{count} cores requested, {len(free)} are free"):
                self.cores.take(count, self.now)
        else:
            taken = self.cores.take(count, self.now)
            assert taken == frozenset(free[:count]), "the lowest free ones"
            self.holders.append(taken)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def gives_back(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.holders) - 1))
        self.cores.give_back(self.holders.pop(place), self.now)

    @rule(count=st.integers(-2, 9))
    def owns(self, count: int) -> None:
        self.cores.usage.own(count, self.now)
        assert self.cores.usage.owned == min(max(count, 0), 6)

    @rule(seconds=st.sampled_from([0.0, 0.5, 2.0]))
    def time_passes(self, seconds: float) -> None:
        used = len(self.held())
        self.now += seconds
        self.used_unit_s += used * seconds
        self.owned_unit_s += max(self.cores.usage.owned, used) * seconds

    @invariant()
    def nobody_shares_and_nothing_is_lost(self) -> None:
        assert sum(map(len, self.holders)) == len(self.held()) == self.cores.used

    @invariant()
    def what_was_owned_and_used_adds_up(self) -> None:
        self.cores.usage.integrate(self.now)
        assert self.cores.usage.used_unit_s == pytest.approx(self.used_unit_s)
        assert self.cores.usage.owned_unit_s == pytest.approx(self.owned_unit_s)


TestCores = CoresMachine.TestCase


def test_free_cores_cannot_be_released() -> None:
    cores = Cores(FLAT)

    with pytest.raises(ValueError, match=r"\[0\]"):
        cores.give_back(frozenset({0}), START)


def test_cores_of_another_node_cannot_be_released() -> None:
    cores = Cores(FLAT)

    with pytest.raises(ValueError, match=r"\[1\]"):
        cores.give_back(frozenset({1}), START)


def test_sets_lie_in_one_numa_node_and_hold_whole_cores() -> None:
    cores = Cores(parse("0+4,1+5/2+6,3+7", frozenset(range(8))))

    assert [sorted(cores.take(2, START)) for _ in range(2)] == [[0, 4], [1, 5]]
    assert (sorted(cores.take(3, START)), cores.free) == ([2, 3, 6], 1)


def test_time_before_the_first_settling_is_not_accounted() -> None:
    cores = Cores(FLAT)
    cores.usage.integrate(START)

    assert (cores.usage.owned_unit_s, cores.usage.used_unit_s) == (0.0, 0.0)


def test_usable_cores_are_those_this_process_may_run_on() -> None:
    assert usable_cores() == os.sched_getaffinity(0)
