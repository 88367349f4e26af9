"""A public class has a name of its own, so that a search finds one definition."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from tests.architecture.source import Module, modules

ROOT = Path(__file__).parents[2]

CLIENT = "treadle/client/"
"""The client is installed without the mesh. Its types are generated, with the names of the schemas of the API."""

PER_SERVICE = frozenset({"State"})
"""What each service has by the same name."""


def defined_twice(tree: list[Module]) -> dict[str, list[str]]:
    """Public classes -> the files that define them, if more than one does."""
    files: dict[str, list[str]] = defaultdict(list)
    for module in tree:
        if not module.path.startswith(CLIENT):
            for node in module.tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    files[node.name].append(module.path)
    return {name: paths for name, paths in files.items() if len(paths) > 1 and name not in PER_SERVICE}


def test_no_public_class_is_defined_twice() -> None:
    twice = defined_twice(modules(ROOT, "services", "shared", "treadle"))
    assert not twice, "\n".join(["", *(f"{name}: {', '.join(paths)}" for name, paths in sorted(twice.items()))])


@pytest.mark.parametrize(("second", "found"), [("class Batch: ...", True), ("class _Batch: ...", False)])
def test_a_class_that_is_defined_twice_is_found(tmp_path: Path, second: str, *, found: bool) -> None:
    for name, text in (("one.py", "class Batch: ...\nclass _Batch: ...\n"), ("two.py", f"{second}\n")):
        (tmp_path / "shared").mkdir(exist_ok=True)
        (tmp_path / "shared" / name).write_text(text, "utf-8")
    assert ("Batch" in defined_twice(modules(tmp_path, "shared"))) is found
