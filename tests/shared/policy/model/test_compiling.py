"""Compiled loops, and what is on disk of them."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
from shared.policy.model.compiling import compiled

@compiled
def twice(number):
    return 2 * number
"""
CALL = "import loops; assert loops.twice(21) == 42; print(loops.twice.stats.cache_hits.total())"


def call(folder: Path) -> int:
    """Call the loop in a new process. Returns how often it was loaded from disk."""
    done = subprocess.run(
        [sys.executable, "-c", CALL], check=False, cwd=folder, capture_output=True, text=True, timeout=120,
        env={"PYTHONPATH": f"{folder}:{Path.cwd()}", "NUMBA_CACHE_DIR": str(folder / "cache"), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("damage", [b"", b"\x80\x04\x95", b"cno_module\nno_class\n."], ids=["empty", "cut", "renamed"])
def test_a_cache_that_cannot_be_read_is_compiled_anew(damage: bytes, tmp_path: Path) -> None:
    (tmp_path / "loops.py").write_text(MODULE)
    assert call(tmp_path) == 0
    assert call(tmp_path) == 1
    indices = list((tmp_path / "cache").rglob("*.nbi"))
    assert indices
    index = indices[0].read_bytes()
    version = pickle.dumps(pickle.loads(index), protocol=-1)  # its first part, which numba compares
    assert index.startswith(version)
    indices[0].write_bytes(version + damage)
    assert call(tmp_path) == 0
    assert call(tmp_path) == 1
