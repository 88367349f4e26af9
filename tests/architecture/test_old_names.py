"""Names that were replaced by the terms of the glossary do not come back."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

REPLACED = {
    "Floor": "ClusterState",
    "Housing": "EnvironmentPlacements",
    "Life": "ActionState",
    "Filling": "SchedulingRound",
    "Ahead": "Prefetch",
    "KnownBatch": "OpenBatchState",
    "Ways": "PlannerConfig",
    "BatchBook": "BatchService or BatchRegistry",
    "TaskBook": "TaskRegistry",
    "TrajectoryBook": "TrajectoryService",
    "NodeBook": "NodeRegistry",
    "LogBook": "ServiceLogs",
    "Keeper": "ServiceRunner",
    "EngineDoorSettings": "EngineProxySettings",
    "engine_door": "engine_proxy",
    "Stray": "Orphan",
    "Stand": "ManagedEnvironment",
    "Offspring": "ChildProcesses",
    "Keeping": "ImageBudget",
    "Stillness": "Suspension",
    "inquest": "cause_of_end",
    "bury_orphans": "reap_orphans",
    "mourners": "end_listeners",
    "rehearse": "run_to_end",
    "rehearsal": "simulation_kernel",
    "housing": "environment_placements",
    "keeper": "service_runner",
    "set_aside": "await_node",
    "disown": "orphan",
    "_mourn": "_report_end",
    "_words_of_the_troubled": "_failure_messages",
}
"""Old name -> the name that stands for it now."""


def python_files() -> list[Path]:
    return sorted(
        path
        for folder in ("services", "shared", "treadle", "tests")
        for path in (ROOT / folder).rglob("*.py")
        if path != Path(__file__)
    )


def names(text: str) -> set[str]:
    """Names in code and in strings that hold code."""
    found: set[str] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            found.add(token.string)
        elif token.type == tokenize.STRING and "import " in token.string:
            found |= set(re.findall(r"\w+", token.string.replace("\\n", " ")))
    return found


def test_no_file_uses_a_replaced_name() -> None:
    used = {
        f"{path.relative_to(ROOT)}: {old} (use {REPLACED[old]})"
        for path in python_files()
        for old in names(path.read_text("utf-8")) & REPLACED.keys()
    }
    assert not used, "\n".join(["", *sorted(used)])


@pytest.mark.parametrize("text", ["class Floor: pass\n", "x = housing.move_in()\n", 'S = "from a import LogBook\\n"\n'])
def test_a_replaced_name_is_found(text: str) -> None:
    assert names(text) & REPLACED.keys()
