"""Asks in an environment, of the Python that pytest will run in, whether a pytest there may be spread over processes.

Its source is sent into environments: no single quotes, nothing newer than Python 3.8, nothing but the library.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

DECIDED = (
    r"-(?![rkmcoWp-])[A-Za-z]*[nsdfhV]|(-p)?no:xdist|"
    r"--(numprocesses|dist|tx|looponfail|pdb|trace|capture|collect-only|co\b|help|version|fixtures|markers|stepwise|sw\b)"
)
"""An option that chooses a width, or with which more processes would not do the same. Short ones may stand in a
cluster; `-rs`, `-kname` and the like have a value and are none."""

CONFIGS = ("pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")


def configured(paths: Iterable[Path]) -> Iterator[str]:
    """What stands behind `addopts` in any configuration that pytest may find for these paths."""
    for folder in {above for path in paths for above in (path.resolve(), *path.resolve().parents)}:
        for name in CONFIGS:
            try:
                yield (folder / name).read_text(errors="replace").partition("addopts")[2]
            except OSError:
                continue


def main() -> None:
    """Write the option that spreads pytest over `argv[1]` processes; `argv[2:]` are its arguments."""
    from importlib.metadata import distribution

    distribution("pytest-xdist")  # raises where it is not installed
    named = [Path(word.partition("::")[0]) for word in sys.argv[2:]]
    said = [os.environ.get("PYTEST_ADDOPTS", ""), *configured([Path(), *named])]
    decided = re.compile(r"(?<![\w-])(" + DECIDED + ")")
    if not os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD") and not any(map(decided.search, said)):
        sys.stdout.write("-n" + sys.argv[1])
