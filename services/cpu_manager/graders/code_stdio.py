"""`code.stdio`: a program against tests of stdin and stdout.

Expected outputs never enter the walls: a job gets one test's stdin, and its stdout is compared here. Each test is a
separate job, so no test sees what another left behind. Tests are independent, so they spread over the granted cores,
one core each: this kind scales with its units. A program never has more than one core, so its result does not depend on
the grant. The verdict does not either: it is the one that the tests would give one after another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from services.cpu_manager.graders.compare import outputs_equal
from services.cpu_manager.graders.compile_cache import Compiled
from services.cpu_manager.graders.programs import Builder, LanguageMissingError, Program, limits_of
from services.cpu_manager.graders.protocol import GradingContext, Verdict
from services.cpu_manager.graders.verdicts import (
    ERROR_CLASSES,
    LOST,
    TIMED_OUT,
    charged,
    how_it_ended,
    lost,
    refused,
    tail,
    verdict_of_end,
    wrong,
)
from services.cpu_manager.kinds import CodeStdio, StdioTest
from services.cpu_manager.sandbox.protocol import Exit, Limits
from shared.policy.model.results import Evidence

TEST_TAIL_CHARS: Final = 400
"""Characters kept of the output of each failed test."""
DETAILED_TESTS: Final = 20
"""Failed tests whose output is kept: 1,000 tests must not make a result of a megabyte."""


_MOST_PRINTED: Final = Limits().output_bytes


def _can_be_printed(expected: str) -> bool:
    """Return True if a program may print this output, including the newline that `print` adds."""
    shortest = len(expected) < _MOST_PRINTED // 4  # true for nearly every test, which need not be encoded then
    return shortest or len(expected.encode("utf-8", "surrogatepass")) < _MOST_PRINTED


class CodeStdioGrader:
    """Per-test verdicts. The score is the fraction that passed, or all or nothing."""

    kind = "code.stdio"
    params = CodeStdio
    evidence: Evidence = "separate"

    def __init__(self, builder: Builder) -> None:
        self._builder = builder

    async def grade(self, params: CodeStdio, context: GradingContext) -> Verdict:
        """Compile once, run every test (or up to the first that fails), compare outside the walls.

        Raises:
            ValueError: there are no tests, or one that no program could pass.
        """
        if not params.tests:
            raise ValueError("code.stdio needs at least one test")
        for number, test in enumerate(params.tests):
            if not _can_be_printed(test.stdout):
                raise ValueError(f"test {number} expects more output than a program may print: {_MOST_PRINTED} bytes")
        program = Program(language=params.language, source=params.code)
        try:
            compiled, fresh = await self._builder.compile(program, context, params.compile_timeout_s, params.memory_mb)
        except LanguageMissingError as missing:
            return refused(str(missing))
        spent = [compiled.end] if compiled is not None and fresh else []
        if compiled is not None and not compiled.succeeded:
            return charged(_not_compiled(compiled.end), spent)
        session = _Session(self._builder, program, compiled, params, context)
        verdict = await session.verdict(left_s=context.timeout_s - sum(end.wall_s for end in spent))
        return charged(verdict, [*spent, *session.ends])


class _Session:
    """The tests of one action. Each core takes the next test in order, until no remaining test can matter."""

    def __init__(
        self, builder: Builder, program: Program, compiled: Compiled | None, params: CodeStdio, context: GradingContext
    ) -> None:
        self._builder = builder
        self._program = program
        self._compiled = compiled
        self._params = params
        self._context = context
        self._next = 0
        self._stop = len(params.tests)
        """Tests from this one on do not count, because an earlier test decided."""
        self._running: dict[int, asyncio.Task[None]] = {}
        self._results: dict[int, _TestResult | None] = {}
        """By test; None if the stage's limit ended it, which is not a verdict on the program."""
        self.ends: list[Exit] = []
        """Ends of all jobs that ran to an end, in no order."""

    async def verdict(self, left_s: float) -> Verdict:
        """Run the tests with `left_s` wall seconds on every core, and sum up."""
        async with asyncio.TaskGroup() as cores:
            for core in sorted(self._context.cores)[: len(self._params.tests)]:
                cores.create_task(self._work(core, left_s))
        results = [result for index in range(self._stop) if (result := self._results[index]) is not None]
        if results and results[-1].lost:
            return lost(results[-1].end)
        return self._sum_up(results, out_of_time=len(results) < self._stop)

    async def _work(self, core: int, left_s: float) -> None:
        task = asyncio.current_task()
        assert task is not None  # this coroutine runs in a task
        while self._next < self._stop:
            index, self._next = self._next, self._next + 1
            self._running[index] = task
            result = await self._run(index, core, left_s) if left_s > 0 else None
            del self._running[index]
            self._results[index] = result
            if result is None or result.lost or (self._params.stop_at_first_failure and not result.passed):
                self._stop_after(index)
            if result is not None:
                left_s -= result.end.wall_s

    def _stop_after(self, index: int) -> None:
        self._stop = min(self._stop, index + 1)
        for later, task in self._running.items():
            if later >= self._stop:
                task.cancel()

    async def _run(self, index: int, core: int, left_s: float) -> _TestResult | None:
        test, wall_s = self._params.tests[index], min(self._params.timeout_s, left_s)
        stdin = test.stdin.encode("utf-8", "surrogatepass")
        job = self._builder.run_job(
            self._program, self._compiled, stdin, (), limits_of(wall_s, 1, self._params.memory_mb)
        )
        end = await self._context.sandbox.run(job, frozenset({core}))
        self.ends.append(end)
        if end.ended_by in TIMED_OUT and wall_s < self._params.timeout_s:
            return None
        return _TestResult(end=end, verdict=_judge(end, test, self._params))

    def _sum_up(self, results: Sequence[_TestResult], *, out_of_time: bool) -> Verdict:
        total = len(self._params.tests)
        n_passed = sum(result.passed for result in results)
        passed = n_passed == total
        output = {"n_tests": total, "n_passed": n_passed, "tests": _described(results)}
        if out_of_time:
            return Verdict(
                status="timeout",
                passed=False,
                output=output | {"error_class": "TimeLimitExceeded"},
                reason=f"The stage's limit of {self._context.timeout_s} s ended after {len(results)} of {total} tests.",
            )
        score = n_passed / total if self._params.score == "fraction" else float(passed)
        reason = "" if passed else f"{n_passed} of {total} tests passed."
        return Verdict(status="ok", passed=passed, score=score, output=output, reason=reason)


class _TestResult(msgspec.Struct, frozen=True, kw_only=True):
    end: Exit
    verdict: str

    @property
    def passed(self) -> bool:
        return self.verdict == "passed"

    @property
    def lost(self) -> bool:
        return self.end.ended_by in LOST


def _judge(end: Exit, test: StdioTest, params: CodeStdio) -> str:
    if end.ended_by in TIMED_OUT:
        return "timeout"
    if end.ended_by in ("memory-limit", "output-limit"):
        return end.ended_by
    if end.ended_by != "exit" or end.exit_code != 0:
        return "runtime-error"
    if end.stdout_truncated:
        return "output-limit"
    return "passed" if outputs_equal(end.stdout, test.stdout, params.compare) else "wrong-output"


def _described(results: Sequence[_TestResult]) -> list[dict[str, Any]]:
    described: list[dict[str, Any]] = []
    detailed = 0
    for result in results:
        end = result.end
        entry: dict[str, Any] = {
            "verdict": result.verdict,
            "time_s": round(end.wall_s, 6),
            "cpu_s": round(end.cpu_s, 6),
        }
        if not result.passed and detailed < DETAILED_TESTS:
            detailed += 1
            entry |= {
                "exit_code": end.exit_code,
                "stdout_tail": tail(end.stdout, TEST_TAIL_CHARS),
                "stderr_tail": tail(end.stderr, TEST_TAIL_CHARS),
            }
        described.append(entry)
    return described


def _not_compiled(end: Exit) -> Verdict:
    decided = verdict_of_end(end)
    if decided is not None:
        return decided
    error_class = ERROR_CLASSES.get(end.ended_by, "CompileError")
    return wrong(end, error_class, f"The compiler {how_it_ended(end)}.", stderr_tail=tail(end.stderr))
