"""Cores shared fairly: against cases worked out by hand, and against a plain simulation."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.lab.replay.tangram.sharing import SharedCores

Job = tuple[float, int, float]
"""(joins at, width, core-seconds)"""


def ends(cores: int, jobs: list[Job]) -> dict[int, float]:
    """End of each job."""
    shared, found = SharedCores(cores), dict[int, float]()
    waiting = sorted(range(len(jobs)), key=lambda job: jobs[job][0])
    while len(found) < len(jobs):
        end_s = shared.next_end_s()
        if waiting and (end_s is None or jobs[waiting[0]][0] <= end_s):
            job = waiting.pop(0)
            shared.join(jobs[job][0], job, *jobs[job][1:])
        else:
            assert end_s is not None
            found[shared.leave(end_s)] = end_s
    return found


def plainly(cores: int, jobs: list[Job]) -> dict[int, float]:
    """The same, each job with its own remaining work, its rate found by lowering a level until the cores do."""
    left, found, now = {job: core_s for job, (_, _, core_s) in enumerate(jobs)}, dict[int, float](), 0.0
    while left:
        there = [job for job in left if jobs[job][0] <= now]
        level = fair_level(cores, [jobs[job][1] for job in there])
        rates = {job: min(level, jobs[job][1]) for job in there}
        moments = [now + left[job] / rates[job] for job in there]
        moments += [jobs[job][0] for job in left if jobs[job][0] > now]
        until = min(moments)
        for job, rate in rates.items():
            left[job] -= rate * (until - now)
        now = until
        for job in [job for job in there if left[job] <= 1e-9 * jobs[job][2]]:
            found[job] = now
            del left[job]
    return found


def fair_level(cores: int, widths: list[int]) -> float:
    """The largest share of a job, with which all cores are used or every job has its limit."""
    low, high = 0.0, float(max(widths, default=1))
    for _ in range(80):
        level = (low + high) / 2
        low, high = (level, high) if sum(min(width, level) for width in widths) <= cores else (low, level)
    return high


def test_cores_beyond_the_limit_of_a_job_go_to_the_others() -> None:
    # 5 cores: the narrow one takes 1, the wide ones 2 each until the narrow one ends at 1; then 2.5 each.
    found = ends(5, [(0.0, 1, 1.0), (0.0, 4, 7.0), (0.0, 4, 12.0)])
    assert found[0] == pytest.approx(1.0)
    assert found[1] == pytest.approx(1.0 + 5.0 / 2.5)
    # 2 + 5 of the last one's 12 core-seconds are done by then; the rest runs on 4 cores, its limit.
    assert found[2] == pytest.approx(3.0 + 5.0 / 4.0)


def test_a_job_that_joins_slows_those_there() -> None:
    found = ends(2, [(0.0, 2, 4.0), (1.0, 2, 2.0)])
    assert found == pytest.approx({0: 3.0, 1: 3.0})


@given(
    st.integers(1, 6),
    st.lists(
        st.tuples(st.integers(0, 8).map(float), st.sampled_from([1, 2, 4]), st.integers(1, 30).map(float)),
        min_size=1,
        max_size=12,
    ),
)
def test_shares_are_those_of_a_plain_simulation(cores: int, jobs: list[Job]) -> None:
    found, expected = ends(cores, jobs), plainly(cores, jobs)
    assert found.keys() == expected.keys()
    assert all(math.isclose(found[job], expected[job], rel_tol=1e-6, abs_tol=1e-6) for job in found)


def test_used_core_seconds_are_the_work_of_the_jobs() -> None:
    shared = SharedCores(3)
    for job, core_s in enumerate((2.0, 5.0, 9.0)):
        shared.join(0.0, job, 2, core_s)
    while (end_s := shared.next_end_s()) is not None:
        shared.leave(end_s)
    assert shared.used_core_s == pytest.approx(16.0)
