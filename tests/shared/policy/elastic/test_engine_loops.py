"""Loops of engine plans: they are compiled again when they have to be, and stay inside their arrays."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from shared.policy.elastic import engine_loops, engine_states

ROOT = Path(__file__).parents[4]


def test_cached_loops_follow_the_states() -> None:
    """Numba keeps compiled loops until their own file changes, so that file has a digest of the other one."""
    digest = hashlib.sha256(Path(engine_states.__file__).read_bytes()).hexdigest()[:16]
    assert digest == engine_loops.STATES, "write the new digest of engine_states.py into engine_loops.py"


def test_the_loops_stay_inside_their_arrays(tmp_path: Path) -> None:
    """Compiled code does not check indices, except when numba is asked to."""
    checked = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path), "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"]
    command.append("tests/shared/policy/elastic/test_engine_plan.py")
    done = subprocess.run(command, cwd=ROOT, env=checked, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
