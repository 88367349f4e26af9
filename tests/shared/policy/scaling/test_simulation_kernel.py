"""List scheduling in one go is list scheduling in pieces; and its loops are compiled wherever it is imported."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.policy.scaling.list_scheduling import QUIET, TOLERANCE_S, ScheduleState, advance, begin, schedule_state
from shared.policy.scaling.search import ExpectedBatch
from shared.policy.scaling.simulation import feasible_schedule, schedule
from shared.policy.scaling.simulation_input import ScheduleInput, SimulationInput, peak
from shared.policy.scaling.simulation_kernel import warm
from tests.shared.policy.scaling.scaling_oracle import amid, strictnesses, three_pool_units

POLICY = Path(__file__).parents[4] / "shared" / "policy"


def in_pieces(source: ScheduleInput, capacity: Sequence[int]) -> ScheduleState:
    state = schedule_state(int(source.visits["owner"].max(initial=-1)) + 1, len(source.visits), np.array(capacity))
    state.now_s[0] = source.begins_s
    begin(source.visits, state, source.under_way)
    assert advance(source.visits, state, source.arrivals_s, source.first_visits) == QUIET
    return state


def least_slack(source: ScheduleInput, state: ScheduleState) -> float:
    waited = state.times["start_s"] > state.times["ready_s"] + TOLERANCE_S
    late = (source.visits["limit_s"] - state.times["start_s"])[waited & np.isfinite(state.times["start_s"])]
    return -math.inf if state.waiting.any() else float(late.min(initial=math.inf))


@given(amid(shortest=0), three_pool_units, strictnesses, st.sampled_from([0, 1]))
@settings(deadline=None, max_examples=200)
def test_in_one_go_it_is_the_schedule_in_pieces(
    open_batches: list[ExpectedBatch], units: dict[str, int], strictness: float, fewer: int
) -> None:
    inputs = SimulationInput(open_batches, strictness)
    capacity = [units[pool] - fewer for pool in inputs.pools]
    found, state = schedule(inputs.complete, capacity), in_pieces(inputs.complete, capacity)
    assert found.starts_s.tolist() == state.times["start_s"].tolist()
    assert found.used == (np.array(capacity) - state.least_free).tolist()
    assert found.slack_s == least_slack(inputs.complete, state)
    assert (feasible_schedule(inputs.complete, capacity) is None) == (found.slack_s < 0)


@given(amid(), strictnesses)
@settings(deadline=None)
def test_most_units_without_queueing_follow_from_expected_times(
    open_batches: list[ExpectedBatch], strictness: float
) -> None:
    inputs = SimulationInput(open_batches, strictness)
    assert [inputs.most(pool) for pool in range(len(inputs.pools))] == schedule(
        inputs.complete, [100] * len(inputs.pools)
    ).used


moments = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(1, 3)), max_size=8)


@given(moments)
def test_the_peak_equals_a_count_at_every_start(drawn: list[tuple[int, int, int]]) -> None:
    starts, lasts, units = np.array(drawn, float).reshape(-1, 3).T
    ends = np.where(lasts > 0, starts + lasts, starts + 0.5)
    counts = [int(units[(starts <= at) & (ends > at)].sum()) for at in starts]
    assert peak(starts, starts + lasts, units.astype(int)) == max(counts, default=0)


def test_warming_can_be_done_again() -> None:
    warm()
    warm()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The policy alone. Its caches are files, so nothing can be kept in them: root, too, writes no file into a file."""
    copy = tmp_path / "checkout"
    shutil.copytree(POLICY, copy / "shared" / "policy", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "shared" / "__init__.py").touch()
    (copy / "shared" / "policy" / "__pycache__").touch()
    (tmp_path / "home").touch()
    return copy


def test_without_a_writable_cache_the_loops_are_compiled(checkout: Path) -> None:
    where = {"HOME": str(checkout.parent / "home"), "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    hidden = {name: value for name, value in os.environ.items() if name.startswith("LD_")}
    tried = "from shared.policy.scaling import simulation_kernel as it; it.warm(); print(it.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", tried],
        cwd=checkout.parent,
        env={**hidden, **where},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(checkout))
