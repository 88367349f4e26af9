"""Checks in an environment, with the Python that pytest will use, whether pytest may run on several processes.

Its source is sent into environments: no single quotes, nothing newer than Python 3.8, only the standard library.
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
"""Options that choose a width, or that do not work the same with more processes. Short ones may be part of a cluster;
`-rs`, `-kname` and the like have a value and do not match."""

CONFIGS = ("pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")


def configured(paths: Iterable[Path]) -> Iterator[str]:
    """Yield the text after `addopts` in each configuration that pytest may find for these paths."""
    for folder in {above for path in paths for above in (path.resolve(), *path.resolve().parents)}:
        for name in CONFIGS:
            try:
                yield (folder / name).read_text(errors="replace").partition("addopts")[2]
            except OSError:
                continue


def main() -> None:
    """Write the option that runs pytest on `argv[1]` processes; `argv[2:]` are its arguments."""
    from importlib.metadata import distribution

    distribution("pytest-xdist")  # raises where it is not installed
    named = [Path(word.partition("::")[0]) for word in sys.argv[2:]]
    output = [os.environ.get("PYTEST_ADDOPTS", ""), *configured([Path(), *named])]
    decided = re.compile(r"(?<![\w-])(" + DECIDED + ")")
    if not os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD") and not any(map(decided.search, output)):
        sys.stdout.write("-n" + sys.argv[1])
