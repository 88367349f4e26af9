"""Cores are whole, exclusive and never lost."""

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


class CoresMachine(RuleBasedStateMachine):
    """Takes and gives back at random, beside a list of who holds what."""

    def __init__(self) -> None:
        super().__init__()
        self.cores = Cores(FLAT)
        self.holders: list[frozenset[int]] = []

    def held(self) -> frozenset[int]:
        return frozenset().union(*self.holders)

    @rule(count=st.integers(0, 7))
    def takes(self, count: int) -> None:
        free = sorted(ALL - self.held())
        if count > len(free):
            with pytest.raises(ValueError, match=f"{count} cores requested, {len(free)} are free"):
                self.cores.take(count)
        else:
            taken = self.cores.take(count)
            assert taken == frozenset(free[:count]), "the lowest free ones"
            self.holders.append(taken)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def gives_back(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.holders) - 1))
        self.cores.give_back(self.holders.pop(place))

    @invariant()
    def nobody_shares_and_nothing_is_lost(self) -> None:
        assert sum(map(len, self.holders)) == len(self.held())


TestCores = CoresMachine.TestCase


def test_free_cores_cannot_be_released() -> None:
    cores = Cores(FLAT)

    with pytest.raises(ValueError, match=r"\[0\]"):
        cores.give_back(frozenset({0}))


def test_cores_of_another_node_cannot_be_released() -> None:
    cores = Cores(FLAT)

    with pytest.raises(ValueError, match=r"\[1\]"):
        cores.give_back(frozenset({1}))


def test_sets_lie_in_one_numa_node_and_hold_whole_cores() -> None:
    cores = Cores(parse("0+4,1+5/2+6,3+7", frozenset(range(8))))

    assert [sorted(cores.take(2)) for _ in range(2)] == [[0, 4], [1, 5]]
    assert sorted(cores.take(3)) == [2, 3, 6]


def test_usable_cores_are_those_this_process_may_run_on() -> None:
    assert usable_cores() == os.sched_getaffinity(0)
