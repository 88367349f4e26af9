"""Topology of a node's cores: which share a NUMA node, and which are hardware threads of one physical core.

Read from the kernel (`/sys/devices/system`), or described by a setting: NUMA nodes separated by `/`, physical cores by
`,`, hardware threads of one physical core by `+`; `a-b` are physical cores of one thread each. `0+4,1+5/2+6,3+7` are
two NUMA nodes of two cores with two threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from shared.policy.resources.cores import Topology

SYSTEM = Path("/sys/devices/system")

Siblings = frozenset[int]
"""Hardware threads of one physical core, by their numbers: what Treadle calls cores."""


def topology(setting: str, usable: frozenset[int]) -> Topology:
    """Return the topology of the usable cores: from the setting, or from the kernel if the setting is empty.

    Raises:
        ValueError: the setting is not valid.
    """
    return parse(setting, usable) if setting else from_kernel(usable)


def parse(text: str, usable: frozenset[int]) -> Topology:
    """Parse the topology from a setting.

    Raises:
        ValueError: it is not a description, names a core twice, or leaves out usable cores.
    """
    nodes = [[core for part in node.split(",") for core in _cores(part)] for node in text.split("/")]
    named = [thread for node in nodes for core in node for thread in core]
    if len(named) > len(set(named)):
        raise ValueError(f"the topology {text!r} names a core twice")
    if missing := usable - set(named):
        raise ValueError(f"the topology {text!r} leaves out the usable cores {sorted(missing)}")
    return _restrict(nodes, usable)


def from_kernel(usable: frozenset[int], system: Path = SYSTEM) -> Topology:
    """Read the topology from the kernel. Cores that it does not describe form one NUMA node without siblings."""
    nodes: list[list[Siblings]] = []
    left = set(usable)
    for directory in sorted(system.glob("node/node[0-9]*"), key=lambda path: int(path.name.removeprefix("node"))):
        members = left & set(_numbers(_read(directory / "cpulist")))
        left -= members
        nodes.append(_physical(members, system))
    return _restrict([*nodes, _physical(left, system)], usable)


def _physical(cores: Iterable[int], system: Path) -> list[Siblings]:
    """Group these cores by physical core, in order."""
    seen: dict[Siblings, None] = {}
    for core in sorted(cores):
        siblings = _read(system / f"cpu/cpu{core}/topology/thread_siblings_list")
        seen[frozenset({core, *_numbers(siblings)})] = None
    return list(seen)


def _restrict(nodes: Iterable[Iterable[Siblings]], usable: frozenset[int]) -> Topology:
    """Remove the cores that may not be used, then empty groups."""
    kept = (tuple(tuple(sorted(members)) for core in node if (members := core & usable)) for node in nodes)
    return Topology(tuple(node for node in kept if node))


def _cores(part: str) -> Iterator[Siblings]:
    try:
        if "+" in part:
            yield frozenset(int(thread) for thread in part.split("+"))
        else:
            yield from (frozenset({core}) for core in _numbers(part))
    except ValueError:
        raise ValueError(f"{part!r} describes no cores; `0-3`, `0,1` and `0+4` do") from None


def _numbers(text: str) -> Iterator[int]:
    """Parse the kernel's notation of sets: `0-3,8`."""
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            yield from range(int(first), int(last or first) + 1)


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
