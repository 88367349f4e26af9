"""Exclusive sets of cores of one host: NUMA first, hyper-thread siblings together (ARL-Tangram §5.2).

Law: a core has one owner at a time. A set lies in one NUMA node if a node has so many free cores, else in as few nodes
as possible. Among several such nodes, one is chosen where no group of siblings has to be broken, and among these the
one with the fewest free cores, so that large sets stay possible. In a node, whole groups are taken first. The rest
comes from broken groups, and a group is broken only if there are none. So sets of one core fill up broken groups.

A *group* is a physical core with its hyper-threads; it is *broken* while some of them are taken and some are free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Topology:
    """NUMA nodes, their groups of siblings, and the cores of each group."""

    nodes: tuple[tuple[tuple[int, ...], ...], ...]

    def __post_init__(self) -> None:
        groups = [group for node in self.nodes for group in node]
        cores = [core for group in groups for core in group]
        if not all(groups) or len(set(cores)) < len(cores):
            raise ValueError("a group without cores, or a core in two groups")


class CoreSets:
    """Assignment of cores to owners. The first of equals is chosen. About 10 us to take and return one core, 30 us for
    32.
    """

    def __init__(self, topology: Topology) -> None:
        self._nodes = [_Numa(groups) for groups in topology.nodes]
        self._numa_of = {core: node for node in self._nodes for group in node.groups for core in group}
        self._taken = set[int]()

    @property
    def free(self) -> int:
        """Number of free cores."""
        return len(self._numa_of) - len(self._taken)

    def take(self, count: int) -> frozenset[int]:
        """Take this many cores; they stay taken until they are given back.

        Raises:
            ValueError: fewer than one, or more than are free.
        """
        if not 1 <= count <= self.free:
            raise ValueError(f"{count} cores requested, {self.free} are free")
        taken = list[int]()
        while len(taken) < count:
            rest = count - len(taken)
            able = [node for node in self._nodes if node.free >= rest]
            if able:
                taken += min(able, key=lambda node: (node.breaks(rest), node.free)).take(rest)
            else:
                largest = max(self._nodes, key=lambda node: node.free)
                taken += largest.take(largest.free)
        self._taken.update(taken)
        return frozenset(taken)

    def give_back(self, cores: Iterable[int]) -> None:
        """Free these cores.

        Raises:
            ValueError: one of them does not exist or is not taken; then none is freed.
        """
        cores = set(cores)
        if not cores <= self._taken:
            raise ValueError(f"cores that are not taken: {sorted(cores - self._taken)}")
        self._taken -= cores
        by_node: dict[_Numa, list[int]] = {}
        for core in sorted(cores):
            by_node.setdefault(self._numa_of[core], []).append(core)
        for node, returned in by_node.items():
            node.give_back(returned)

    def check(self) -> None:
        """Assert the invariants; tests call it after every step, services never do."""
        for node in self._nodes:
            node.check()
        free = {core for node in self._nodes for part in node.parts for core in part}
        assert free == self._numa_of.keys() - self._taken, "a core is either free or taken"


class _Numa:
    """One NUMA node. A set of its groups is a bit mask whose lowest bit is the first group."""

    def __init__(self, groups: Sequence[tuple[int, ...]]) -> None:
        self.groups = [tuple(sorted(group)) for group in groups]
        self.parts = list(self.groups)
        """Free cores of each group."""
        self.free = sum(map(len, groups))
        self._number = {core: number for number, group in enumerate(self.groups) for core in group}
        most = max(map(len, groups), default=0)
        self._whole = [0] * (most + 1)
        """Size -> groups of which all cores are free."""
        self._broken = [0] * (most + 1)
        """Number of free cores -> broken groups."""
        for number in range(len(groups)):
            self._toggle(number)

    def breaks(self, count: int) -> bool:
        """Return whether taking this many cores breaks a group."""
        for size in range(len(self._whole) - 1, 1, -1):
            count -= size * min(count // size, self._whole[size].bit_count())
        odd = sum(free * groups.bit_count() for free, groups in enumerate(self._broken))
        return count > odd + self._whole[1].bit_count()

    def take(self, count: int) -> list[int]:
        """Take this many cores; the caller has checked that they are free."""
        self.free -= count
        taken = list[int]()
        for size in range(len(self._whole) - 1, 1, -1):
            whole = self._whole[size]
            while whole and count - len(taken) >= size:
                number = _first(whole)
                whole &= whole - 1
                taken += self.parts[number]
                self.parts[number] = ()
            self._whole[size] = whole
        while len(taken) < count:
            rest = count - len(taken)
            number = self._odd(rest)
            self._toggle(number)
            taken += self.parts[number][:rest]
            self.parts[number] = self.parts[number][rest:]
            self._toggle(number)
        return taken

    def give_back(self, cores: Sequence[int]) -> None:
        """Free cores of this node, ascending."""
        self.free += len(cores)
        returned: dict[int, list[int]] = {}
        for core in cores:
            returned.setdefault(self._number[core], []).append(core)
        for number, part in returned.items():
            self._toggle(number)
            self.parts[number] = tuple(sorted([*self.parts[number], *part]))
            self._toggle(number)

    def check(self) -> None:
        for number, (group, part) in enumerate(zip(self.groups, self.parts, strict=True)):
            assert part == tuple(sorted(set(part) & set(group))), "free cores are part of the group"
            whole = [size for size, groups in enumerate(self._whole) if groups >> number & 1]
            broken = [free for free, groups in enumerate(self._broken) if groups >> number & 1]
            assert whole == ([len(group)] if part == group else []), "whole groups by size"
            assert broken == ([len(part)] if 0 < len(part) < len(group) else []), "broken groups by free cores"
        assert self.free == sum(map(len, self.parts)), "number of free cores"

    def _odd(self, rest: int) -> int:
        """Group for the remaining cores: a broken one that is used up by them, another broken one, else a whole one."""
        for groups in (*self._broken[rest:0:-1], *self._broken[rest + 1 :], *self._whole):
            if groups:
                return _first(groups)
        raise AssertionError("fewer cores are free than counted")

    def _toggle(self, number: int) -> None:
        """Toggle a group's membership in the mask for its present number of free cores."""
        free = len(self.parts[number])
        if free:
            kind = self._whole if free == len(self.groups[number]) else self._broken
            kind[free] ^= 1 << number


def _first(groups: int) -> int:
    return (groups & -groups).bit_length() - 1
