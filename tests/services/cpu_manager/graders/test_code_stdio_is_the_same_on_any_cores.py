"""`code.stdio` on more cores: sooner, and never another verdict."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cpu_manager.graders.code_stdio import CodeStdioGrader
from services.cpu_manager.graders.compile_cache import CompileCache
from services.cpu_manager.graders.programs import Builder
from services.cpu_manager.graders.protocol import GradingContext, Verdict
from services.cpu_manager.graders.registry import build_graders
from services.cpu_manager.kinds import CodeStdio, StdioTest
from services.cpu_manager.sandbox.languages import languages
from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.protocol import Exit, Job
from tests.services.cpu_manager.graders.sandboxes import LANGUAGES, FakeSandbox, context


class StaggeredSandbox(FakeSandbox):
    """Job n ends after `turns[n]` turns of the event loop; None: it never ends. Cores hold one job at a time."""

    def __init__(self, ends: list[Exit], turns: list[int | None]) -> None:
        super().__init__(lambda job: ends[int(job.stdin)])
        self._turns = turns
        self.busy: set[int] = set()
        self.cancelled: list[int] = []
        self.began = [asyncio.Event() for _ in ends]

    async def run(self, job: Job, cores: frozenset[int]) -> Exit:
        number = int(job.stdin)
        turns = self._turns[number]
        assert not self.busy & cores
        self.busy |= cores
        self.began[number].set()
        try:
            if turns is None:
                await asyncio.Event().wait()
            for _ in range(turns or 0):
                await asyncio.sleep(0)
            return await super().run(job, cores)
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        finally:
            self.busy -= cores


GOOD = Exit(ended_by="exit", exit_code=0, stdout=b"right", cpu_s=0.5, peak_memory_bytes=7)
WRONG = Exit(ended_by="exit", exit_code=0, stdout=b"wrong", cpu_s=0.25, peak_memory_bytes=9)
SLOW = Exit(ended_by="wall-limit")
LOST = Exit(ended_by="lost", detail="gone")
ENDS = st.lists(
    st.tuples(st.sampled_from([GOOD, GOOD, GOOD, WRONG, SLOW, LOST]), st.integers(0, 5)), min_size=1, max_size=12
)


def numbered(number: int) -> list[StdioTest]:
    return [StdioTest(stdin=str(n), stdout="right") for n in range(number)]


async def graded(sandbox: FakeSandbox, params: CodeStdio, cores: int) -> Verdict:
    return await CodeStdioGrader(Builder(LANGUAGES, CompileCache())).grade(params, context(sandbox, cores=cores))


def reported(verdict: Verdict) -> tuple[Any, ...]:
    return verdict.status, verdict.passed, verdict.score, verdict.reason, verdict.output


@given(ENDS, st.integers(2, 5), st.booleans(), st.sampled_from(["all", "fraction"]))
async def test_the_verdict_is_that_of_one_core(
    jobs: list[tuple[Exit, int]], cores: int, stop: bool, score: Any
) -> None:
    ends, turns = [end for end, _ in jobs], [turn for _, turn in jobs]
    params = CodeStdio(code="x", tests=numbered(len(jobs)), stop_at_first_failure=stop, score=score)

    one = await graded(FakeSandbox(lambda job: ends[int(job.stdin)]), params, 1)
    more = await graded(StaggeredSandbox(ends, [*turns]), params, cores)

    assert reported(more) == reported(one)


async def test_tests_after_the_first_failure_are_not_awaited() -> None:
    sandbox = StaggeredSandbox([GOOD, WRONG, GOOD, GOOD], [1, 2, None, None])
    params = CodeStdio(code="x", tests=numbered(4), stop_at_first_failure=True, score="fraction")

    verdict = await graded(sandbox, params, 4)

    assert (verdict.score, len(verdict.output["tests"])) == (0.25, 2)
    assert (sandbox.cancelled, sandbox.busy) == ([2, 3], set())
    assert (verdict.cpu_s, verdict.peak_memory_bytes) == (0.75, 9), "of the jobs that ran to an end"


async def test_a_later_failure_leaves_the_earlier_tests_to_decide() -> None:
    sandbox = StaggeredSandbox([GOOD, WRONG, WRONG], [3, 5, 0])
    params = CodeStdio(code="x", tests=numbered(3), stop_at_first_failure=True, score="fraction")

    verdict = await graded(sandbox, params, 3)

    assert [test["verdict"] for test in verdict.output["tests"]] == ["passed", "wrong-output"]
    assert sandbox.cancelled == []


async def test_without_an_early_stop_every_test_runs_to_its_end() -> None:
    sandbox = StaggeredSandbox([WRONG, GOOD, GOOD], [0, 4, 2])

    verdict = await graded(sandbox, CodeStdio(code="x", tests=numbered(3), score="fraction"), 2)

    assert [test["verdict"] for test in verdict.output["tests"]] == ["wrong-output", "passed", "passed"]
    assert (verdict.cpu_s, sandbox.cancelled) == (1.25, [])


async def test_a_test_cut_short_after_the_first_failure_does_not_count() -> None:
    sandbox = StaggeredSandbox([GOOD, WRONG, SLOW], [0, 6, 0])
    params = CodeStdio(code="x", tests=numbered(3), timeout_s=60.0, stop_at_first_failure=True)
    grader = CodeStdioGrader(Builder(LANGUAGES, CompileCache()))

    verdict = await grader.grade(params, context(sandbox, cores=3, timeout_s=30.0))

    assert (verdict.status, verdict.passed, verdict.output["n_passed"]) == ("ok", False, 1)


async def test_being_cancelled_leaves_nothing_running() -> None:
    sandbox = StaggeredSandbox([GOOD] * 3, [None] * 3)
    grading = asyncio.create_task(graded(sandbox, CodeStdio(code="x", tests=numbered(3)), 2))
    async with asyncio.timeout(30):
        await sandbox.began[1].wait()

    grading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await grading

    assert (sorted(sandbox.cancelled), sandbox.busy) == ([0, 1], set())


PROGRAM = """
import sys
what = input()
if what == "spin":
    while True: pass
if what == "raise": raise ValueError(what)
if what == "eat": x = bytearray(1 << 30)
print(what)
"""
ORDERS = {
    "all pass": ["a", "b", "c", "d", "e"],
    "of every kind": ["a", "raise", "b", "spin", "eat", "c"],
    "the first fails": ["raise", "spin", "a"],
}


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("words", ORDERS.values(), ids=ORDERS.keys())
async def test_real_programs_get_the_same_verdict_on_one_core_and_on_two(
    walls: LocalSandbox, words: list[str], stop: bool
) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("this host gives one core")
    given_tests = [StdioTest(stdin=f"{word}\n", stdout=word) for word in words]
    params = CodeStdio(
        code=PROGRAM, tests=given_tests, timeout_s=2.0, memory_mb=256, stop_at_first_failure=stop, score="fraction"
    )
    grader = build_graders(languages())["code.stdio"]

    on = [GradingContext(sandbox=walls, cores=frozenset(cores[:n]), timeout_s=60.0, tenant="walls") for n in (1, 2)]
    one, two = [await grader.grade(params, one_or_two) for one_or_two in on]

    assert [without_times(test) for test in one.output["tests"]] == [
        without_times(test) for test in two.output["tests"]
    ]
    assert (one.status, one.passed, one.score, one.reason) == (two.status, two.passed, two.score, two.reason)
    for verdict in (one, two):
        reported_s = sum(test["cpu_s"] for test in verdict.output["tests"])
        assert verdict.cpu_s >= reported_s - 1e-3, "time of the reported tests and of those no longer needed"


def without_times(test: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in test.items() if name not in ("time_s", "cpu_s")}
