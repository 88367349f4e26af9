"""The dispatcher has one entry: nothing outside its package reads or writes its inside.

Tests of the policy itself may read the inside; they change it by stimuli.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.policy.dispatch.dispatcher import Dispatcher
from tests.architecture.source import Finding, Module, dotted, modules

ROOT = Path(__file__).parents[2]

OWN = ("shared/policy/dispatch/", "tests/shared/policy/")

INSIDE = frozenset({"cluster", "registry", "handlers"})
"""Attributes of a dispatcher that hold its state."""

PUBLIC = frozenset(
    {
        "backlog",
        "batch_snapshots",
        "choice_times",
        "config",
        "dispatcher",
        "quota_stimuli",
        "service_stimuli",
        "stimuli",
        "views",
        "local_stimuli",
    }
)
"""Modules of the package that others may import: the entry, its values, and what reads return."""


def side_entrances(module: Module) -> Iterator[Finding]:
    """Uses of the inside of a dispatcher, and imports of the modules that make it up."""
    if module.path.startswith(OWN):
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr in INSIDE and dotted(node.value).endswith("dispatcher"):
            yield module.found(node, f"uses {dotted(node)}: send a stimulus to Dispatcher.handle, or use a view")
    for node, name in module.imports():
        parts = name.split(".")
        if parts[:3] == ["shared", "policy", "dispatch"] and len(parts) > 3 and parts[3] not in PUBLIC:
            yield module.found(node, f"imports {name}: it is inside the dispatcher")


def test_nobody_uses_the_inside_of_the_dispatcher() -> None:
    tree = modules(ROOT, "services", "shared", "treadle", "tests")
    assert any(module.path == "services/proxy/leader/leader.py" for module in tree)
    broken = [str(finding) for module in tree for finding in side_entrances(module)]
    assert not broken, "\n".join(["", *broken])


def test_the_names_of_the_inside_are_those_of_the_dispatcher() -> None:
    """All public fields but the configuration hold state."""
    public = {name for name in Dispatcher.__dataclass_fields__ if not name.startswith("_")}
    assert public - {"config", "specs"} == INSIDE


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("leader.dispatcher.cluster.queues.batches.ended(name)", True),
        ("self._dispatcher.registry.actions.clear()", True),
        ("from shared.policy.dispatch.cluster_state import ClusterState", True),
        ("from shared.policy.dispatch.stimuli import BatchEndReported", False),
        ("leader.dispatcher.handle(now, BatchEndReported(name))", False),
        ("self.workload.cluster(nodes)", False),
    ],
)
def test_a_side_entrance_is_found(tmp_path: Path, line: str, *, found: bool) -> None:
    (tmp_path / "services").mkdir()
    (tmp_path / "services" / "one.py").write_text(f"{line}\n", "utf-8")
    assert [bool(list(side_entrances(module))) for module in modules(tmp_path, "services")] == [found]
