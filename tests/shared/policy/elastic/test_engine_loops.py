"""Loops of engine plans are compiled anew when what they are compiled from has changed."""

from __future__ import annotations

import hashlib
from pathlib import Path

from shared.policy.elastic import engine_loops, engine_states


def test_cached_loops_follow_the_states() -> None:
    """Numba keeps compiled loops until their own file changes, so that file has a digest of the other one."""
    digest = hashlib.sha256(Path(engine_states.__file__).read_bytes()).hexdigest()[:16]
    assert digest == engine_loops.STATES, "write the new digest of engine_states.py into engine_loops.py"
