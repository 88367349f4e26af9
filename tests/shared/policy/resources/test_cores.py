"""Sets of cores, taken and given back in any order, compared with trying every set."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from shared.policy.resources.cores import CoreSets, Topology


def topology(numa_nodes: list[list[int]]) -> Topology:
    """Number of siblings by NUMA node and group; numbered as Linux does: first siblings first, then the second ones."""
    places = [(sibling, node, group) for node, groups in enumerate(numa_nodes) for group, size in enumerate(groups)
              for sibling in range(size)]  # fmt: skip
    number = {place: core for core, place in enumerate(sorted(places))}
    return Topology(
        tuple(
            tuple(tuple(number[sibling, node, group] for sibling in range(size)) for group, size in enumerate(groups))
            for node, groups in enumerate(numa_nodes)
        )
    )


def broken(some: Topology, free: frozenset[int]) -> int:
    return sum(0 < len(free & set(group)) < len(group) for node in some.nodes for group in node)


def whole(some: Topology, cores: frozenset[int]) -> int:
    return sum(set(group) <= cores for node in some.nodes for group in node)


class CoreSetsMachine(RuleBasedStateMachine):
    """Pairs on two or three NUMA nodes, small enough to try every set that could have been taken."""

    @initialize(groups=st.lists(st.integers(1, 4), min_size=2, max_size=3))
    def build(self, groups: list[int]) -> None:
        self.topology = topology([[2] * count for count in groups])
        self.sets = CoreSets(self.topology)
        self.all = frozenset(core for node in self.topology.nodes for group in node for core in group)
        self.owners: list[frozenset[int]] = []

    @property
    def free(self) -> frozenset[int]:
        return self.all.difference(*self.owners)

    @precondition(lambda self: self.free)
    @rule(pick=st.integers(0, 30))
    def take(self, pick: int) -> None:
        free, count = self.free, 1 + pick % len(self.free)
        taken = self.sets.take(count)
        assert len(taken) == count
        assert taken <= free, "no core has two owners"
        self.owners.append(taken)
        placements = [{core for group in node for core in group} for node in self.topology.nodes]
        by_room = sorted((len(free & placement) for placement in placements), reverse=True)
        needed = next(few for few in range(1, len(placements) + 1) if sum(by_room[:few]) >= count)
        assert sum(bool(taken & placement) for placement in placements) == needed, "in as few NUMA nodes as can be"
        if needed == 1:
            self.compare(next(free & placement for placement in placements if taken & placement), free, taken)
            able = [free & placement for placement in placements if len(free & placement) >= count]
            self.compare_nodes(able, free, taken)

    def compare(self, room: frozenset[int], free: frozenset[int], taken: frozenset[int]) -> None:
        """Of all sets in its NUMA node none has more whole pairs, and of those that have as many none breaks fewer."""
        others = [frozenset(some) for some in itertools.combinations(sorted(room), len(taken))]
        pairs = max(whole(self.topology, some) for some in others)
        assert whole(self.topology, taken) == pairs
        fewest = min(broken(self.topology, free - some) for some in others if whole(self.topology, some) == pairs)
        assert broken(self.topology, free - taken) == fewest

    def compare_nodes(self, rooms: list[frozenset[int]], free: frozenset[int], taken: frozenset[int]) -> None:
        """If some NUMA node needs to break no pair, none is broken; and no fuller node would have sufficed."""
        breaks = broken(self.topology, free - taken) > broken(self.topology, free)
        mine = next(len(room) for room in rooms if room & taken)
        for room in rooms:
            odd = len(taken) - 2 * min(len(taken) // 2, whole(self.topology, room))
            would = odd > broken(self.topology, room)
            assert breaks <= would, "a pair was broken, and another node had a broken one"
            assert would > breaks or mine <= len(room), "a fuller node would have done as well"

    @precondition(lambda self: self.owners)
    @rule(pick=st.integers(0, 30))
    def give_back(self, pick: int) -> None:
        self.sets.give_back(self.owners.pop(pick % len(self.owners)))

    @precondition(lambda self: self.owners)
    @rule(pick=st.integers(0, 30))
    def give_back_some(self, pick: int) -> None:
        """A set may also be released in parts."""
        at = pick % len(self.owners)
        part = frozenset(sorted(self.owners[at])[: 1 + pick % len(self.owners[at])])
        self.sets.give_back(part)
        self.owners[at] -= part
        if not self.owners[at]:
            del self.owners[at]

    @invariant()
    def adds_up(self) -> None:
        self.sets.check()
        assert self.sets.free == len(self.free)


TestSets = CoreSetsMachine.TestCase
TestSets.settings = settings(deadline=None, max_examples=150, stateful_step_count=30)


@given(
    st.lists(st.lists(st.sampled_from([1, 2, 4]), max_size=5), min_size=1, max_size=3),
    st.lists(st.integers(0, 40), max_size=20),
)
@settings(deadline=None)
def test_groups_of_any_size_are_never_assigned_twice_and_all_are_released(
    numa_nodes: list[list[int]], picks: list[int]
) -> None:
    some = topology(numa_nodes)
    sets, owners = CoreSets(some), list[frozenset[int]]()
    everything = sets.free
    for pick in picks:
        if pick % 3 and sets.free:
            owners.append(sets.take(1 + pick % sets.free))
        elif owners:
            sets.give_back(owners.pop(pick % len(owners)))
        sets.check()
        assert sum(map(len, owners)) + sets.free == everything == len(frozenset().union(*owners)) + sets.free
    for one in owners:
        sets.give_back(one)
    sets.check()
    assert sets.free == everything


PAIRS = Topology((((0, 8), (1, 9), (2, 10), (3, 11)), ((4, 12), (5, 13), (6, 14), (7, 15))))


def test_single_cores_break_one_pair_at_a_time() -> None:
    sets = CoreSets(PAIRS)
    assert [sets.take(1) for _ in range(4)] == [{0}, {8}, {1}, {9}]


def test_an_odd_core_comes_from_a_pair_that_is_broken() -> None:
    sets = CoreSets(PAIRS)
    sets.take(1)
    assert sets.take(3) == {8, 1, 9}


def test_small_sets_fill_one_numa_node_so_that_a_large_one_finds_the_other_empty() -> None:
    sets = CoreSets(PAIRS)
    assert [sets.take(2), sets.take(4)] == [{0, 8}, {1, 9, 2, 10}]
    assert sets.take(8) == {4, 12, 5, 13, 6, 14, 7, 15}


def test_only_what_no_numa_node_holds_is_spread() -> None:
    sets = CoreSets(PAIRS)
    sets.take(2)
    assert sets.take(9) == {4, 12, 5, 13, 6, 14, 7, 15, 1}


def test_a_single_core_goes_where_a_pair_is_broken_even_if_another_node_is_fuller() -> None:
    sets = CoreSets(PAIRS)
    sets.take(1)
    sets.take(8)
    sets.give_back({4, 12})  # the other node has seven free
    assert sets.take(1) == {8}


def test_the_same_calls_give_the_same_cores() -> None:
    def run() -> list[frozenset[int]]:
        sets = CoreSets(PAIRS)
        taken = [sets.take(count) for count in (1, 3, 2, 5)]
        sets.give_back(taken[1])
        return [*taken, sets.take(4)]

    assert run() == run()


@pytest.mark.parametrize("count", [0, -1, 17])
def test_fewer_than_one_or_more_than_free_cores_are_an_error(count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} cores requested, 16 are free"):
        CoreSets(PAIRS).take(count)


def test_free_cores_cannot_be_released_nor_any_with_them() -> None:
    sets = CoreSets(PAIRS)
    mine = sets.take(2)
    for wrong in ({3}, {99}):
        with pytest.raises(ValueError, match="not taken"):
            sets.give_back(mine | wrong)
    assert sets.free == 14
    sets.give_back(mine)
    with pytest.raises(ValueError, match="not taken"):
        sets.give_back(mine)
    sets.check()


def test_a_core_is_in_one_group() -> None:
    for nodes in ((((0, 1), (1, 2)),), (((0,),), ((0,),)), (((0,), ()),)):
        with pytest.raises(ValueError, match="a core in two groups"):
            Topology(nodes)
