"""Topology of cores: as reported by the kernel, or described by a setting."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.cpu_manager.topology import from_kernel, parse, topology
from shared.policy.resources.cores import Topology

ALL = frozenset(range(8))


def machine(root: Path, nodes: dict[str, str], siblings: dict[int, str]) -> Path:
    """`/sys/devices/system` of a simulated machine."""
    files = {f"node/{name}/cpulist": text for name, text in nodes.items()}
    files |= {f"cpu/cpu{core}/topology/thread_siblings_list": text for core, text in siblings.items()}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return root


def sets(found: Topology) -> list[list[set[int]]]:
    return [[set(core) for core in node] for node in found.nodes]


def test_siblings_and_nodes_are_those_of_the_kernel(tmp_path: Path) -> None:
    siblings = {core: f"{core % 4},{core % 4 + 4}" for core in ALL}
    system = machine(tmp_path, {"node0": "0-1,4-5", "node1": "2-3,6-7"}, siblings)

    assert sets(from_kernel(ALL, system)) == [[{0, 4}, {1, 5}], [{2, 6}, {3, 7}]]
    assert sets(from_kernel(frozenset({1, 4, 7}), system)) == [[{1}, {4}], [{7}]]


def test_nodes_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    system = machine(tmp_path, {"node10": "0-3", "node2": "4-7"}, {})

    assert [node[0][0] for node in from_kernel(ALL, system).nodes] == [4, 0]


def test_cores_without_topology_files_are_one_node_without_threads(tmp_path: Path) -> None:
    assert sets(from_kernel(frozenset({3, 1}), tmp_path)) == [[{1}, {3}]]
    halfway = machine(tmp_path, {"node0": "0-1"}, {})
    assert sets(from_kernel(frozenset({0, 1, 2}), halfway)) == [[{0}, {1}], [{2}]]


def test_every_core_of_this_machine_has_its_place_once() -> None:
    usable = frozenset(os.sched_getaffinity(0))

    found = topology("", usable)
    assert sorted(thread for node in found.nodes for core in node for thread in core) == sorted(usable)


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("0-7", [[{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}]]),
        ("0-3/4-7", [[{0}, {1}, {2}, {3}], [{4}, {5}, {6}, {7}]]),
        ("0+4,1+5/2+6,3+7", [[{0, 4}, {1, 5}], [{2, 6}, {3, 7}]]),
        ("0-1,2+3/4+5+6+7", [[{0}, {1}, {2, 3}], [{4, 5, 6, 7}]]),
    ],
)
def test_a_description_is_taken_at_its_word(text: str, nodes: list[list[set[int]]]) -> None:
    assert sets(parse(text, ALL)) == nodes


def test_a_description_may_name_more_than_there_is() -> None:
    assert sets(parse("0+2,1+3/4-7", frozenset({1, 2, 3}))) == [[{2}, {1, 3}]]


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("0-3,x", "'x' describes no cores"),
        ("0-3/3-7", "names a core twice"),
        ("0-5", r"leaves out the usable cores \[6, 7\]"),
        ("", "leaves out"),
    ],
)
def test_a_malformed_description_is_refused(text: str, output: str) -> None:
    with pytest.raises(ValueError, match=output):
        topology(text or "/", ALL)
