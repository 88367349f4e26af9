"""Tests lie where the code lies that they test: `tests/shared/bus` tests `shared/bus`."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]

ACROSS = frozenset({"architecture", "conformance", "e2e"})
"""Folders of tests that test no single package: the tree itself, published clients, and whole stacks."""


def test_each_folder_of_tests_has_the_package_that_it_tests() -> None:
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    inside = {folder for folder in folders if folder.parts and folder.parts[0] not in ACROSS}
    missing = sorted(str(folder) for folder in inside if not (ROOT / folder).is_dir())
    assert {"services", "shared", "treadle"} <= {folder.parts[0] for folder in inside}
    assert not missing, f"no package for tests/{', tests/'.join(missing)}"
