from __future__ import annotations

from collections.abc import Callable

import pytest

from services.cpu_manager.graders.code_stdio import CodeStdioGrader
from services.cpu_manager.graders.compile_cache import CompileCache
from services.cpu_manager.graders.programs import Builder
from services.cpu_manager.graders.protocol import Verdict
from services.cpu_manager.kinds import CodeStdio, StdioTest
from services.cpu_manager.sandbox.protocol import ExecJob, Exit, Job, PythonJob
from tests.services.cpu_manager.graders.sandboxes import LANGUAGES, FakeSandbox, context

TESTS = [StdioTest(stdin=str(n), stdout=str(n * n)) for n in range(4)]


def squares(wrong: tuple[int, ...] = (), wall_s: float = 0.1) -> Callable[[Job], Exit]:
    def answer(job: Job) -> Exit:
        number = int(job.stdin)
        printed = b"wrong" if number in wrong else b"%d\n" % number**2
        return Exit(ended_by="exit", exit_code=0, stdout=printed, wall_s=wall_s, cpu_s=0.05, peak_memory_bytes=number)

    return answer


def grader() -> CodeStdioGrader:
    return CodeStdioGrader(Builder(LANGUAGES, CompileCache()))


async def graded(
    answer: Callable[[Job], Exit], params: CodeStdio, cores: int = 1, timeout_s: float = 60.0
) -> tuple[Verdict, FakeSandbox]:
    sandbox = FakeSandbox(answer)
    return await grader().grade(params, context(sandbox, cores=cores, timeout_s=timeout_s)), sandbox


def verdicts(verdict: Verdict) -> list[str]:
    return [test["verdict"] for test in verdict.output["tests"]]


async def test_a_program_right_on_every_test_passes() -> None:
    verdict, sandbox = await graded(squares(), CodeStdio(code="x", tests=TESTS))
    assert (verdict.status, verdict.passed, verdict.score) == ("ok", True, 1.0)
    assert verdicts(verdict) == ["passed"] * 4
    assert verdict.cpu_s == pytest.approx(0.2)
    assert verdict.peak_memory_bytes == 3
    assert len(sandbox.jobs) == 4


@pytest.mark.parametrize(("score", "expected"), [("all", 0.0), ("fraction", 0.75)])
async def test_one_wrong_test_fails_and_the_score_is_what_the_task_asked(score: str, expected: float) -> None:
    params = CodeStdio(code="x", tests=TESTS, score="fraction" if score == "fraction" else "all")
    verdict, _ = await graded(squares(wrong=(2,)), params)
    assert (verdict.passed, verdict.score) == (False, expected)
    assert verdicts(verdict) == ["passed", "passed", "wrong-output", "passed"]
    assert verdict.output["tests"][2]["stdout_tail"] == "wrong"


@pytest.mark.parametrize("cores", [1, 2, 3, 8])
async def test_tests_spread_over_the_granted_cores_one_core_each(cores: int) -> None:
    verdict, sandbox = await graded(squares(), CodeStdio(code="x", tests=TESTS), cores=cores)
    assert verdict.passed
    assert all(len(used) == 1 for used in sandbox.cores)
    assert {core for used in sandbox.cores for core in used} == set(range(min(cores, len(TESTS))))


@pytest.mark.parametrize("cores", [1, 2, 3, 8])
async def test_stopping_at_the_first_failure_has_the_same_result_on_any_number_of_cores(cores: int) -> None:
    params = CodeStdio(code="x", tests=TESTS, stop_at_first_failure=True, score="fraction")
    verdict, sandbox = await graded(squares(wrong=(1,)), params, cores=cores)
    assert verdicts(verdict) == ["passed", "wrong-output"]
    assert (verdict.output["n_passed"], verdict.score) == (1, 0.25)
    assert len(sandbox.jobs) <= 1 + cores


async def test_expected_outputs_never_enter_the_walls() -> None:
    tests = [StdioTest(stdin="1", stdout="the-expected-output")]
    _, sandbox = await graded(squares(), CodeStdio(code="x", tests=tests))
    (job,) = sandbox.jobs
    assert isinstance(job, PythonJob)
    everything = [job.stdin, job.payload, job.source.encode(), *job.files.values(), *(a.encode() for a in job.argv)]
    assert not any(b"the-expected-output" in part for part in everything)


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (Exit(ended_by="wall-limit"), "timeout"),
        (Exit(ended_by="cpu-limit"), "timeout"),
        (Exit(ended_by="memory-limit"), "memory-limit"),
        (Exit(ended_by="output-limit"), "output-limit"),
        (Exit(ended_by="exit", exit_code=0, stdout=b"0", stdout_truncated=True), "output-limit"),
        (Exit(ended_by="exit", exit_code=1, stdout=b"0"), "runtime-error"),
        (Exit(ended_by="signal", signal=11, stdout=b"0"), "runtime-error"),
    ],
)
async def test_a_bad_end_fails_its_test_alone(end: Exit, expected: str) -> None:
    good = squares()
    verdict, _ = await graded(lambda job: end if job.stdin == b"0" else good(job), CodeStdio(code="x", tests=TESTS))
    assert (verdict.status, verdict.passed, verdict.score) == ("ok", False, 0.0)
    assert verdicts(verdict) == [expected, "passed", "passed", "passed"]


@pytest.mark.parametrize("cores", [1, 4])
async def test_one_lost_test_makes_the_whole_verdict_lost(cores: int) -> None:
    good = squares()
    lost = Exit(ended_by="lost", detail="zygote died")
    verdict, _ = await graded(
        lambda job: lost if job.stdin == b"1" else good(job), CodeStdio(code="x", tests=TESTS), cores=cores
    )
    assert (verdict.status, verdict.passed, verdict.score) == ("lost", None, None)


async def test_the_stage_limit_bounds_all_tests_together() -> None:
    params = CodeStdio(code="x", tests=TESTS, timeout_s=10)
    verdict, sandbox = await graded(squares(wall_s=1.0), params, timeout_s=2.5)
    assert [job.limits.wall_s for job in sandbox.jobs] == [2.5, 1.5, 0.5]
    assert (verdict.status, verdict.score) == ("timeout", None)


async def test_a_test_cut_short_by_the_stage_is_no_failed_test() -> None:
    params = CodeStdio(code="x", tests=TESTS, timeout_s=10)
    verdict, _ = await graded(lambda job: Exit(ended_by="wall-limit", wall_s=2.5), params, timeout_s=2.5)
    assert (verdict.status, verdict.score, verdict.output["tests"]) == ("timeout", None, [])


async def test_a_compile_error_is_wrong_and_runs_no_test() -> None:
    compiler = Exit(ended_by="exit", exit_code=1, stderr=b"error: expected ;")
    verdict, sandbox = await graded(lambda job: compiler, CodeStdio(code="x", language="cpp", tests=TESTS))
    assert (verdict.status, verdict.passed, verdict.score) == ("ok", False, 0.0)
    assert verdict.output == {"error_class": "CompileError", "stderr_tail": "error: expected ;"}
    assert len(sandbox.jobs) == 1


@pytest.mark.parametrize(("end", "status"), [("lost", "lost"), ("wall-limit", "timeout")])
async def test_a_compile_without_an_end_is_reported_with_its_cause(end: str, status: str) -> None:
    ended = Exit(ended_by="lost" if end == "lost" else "wall-limit")
    verdict, _ = await graded(lambda job: ended, CodeStdio(code="x", language="cpp", tests=TESTS))
    assert (verdict.status, verdict.score) == (status, None)


async def test_a_program_is_compiled_once_for_all_its_tests() -> None:
    good = squares()

    def answer(job: Job) -> Exit:
        if isinstance(job, ExecJob) and job.argv[0] == "compile":
            return Exit(ended_by="exit", exit_code=0, files={"main": b"ELF"})
        return good(job)

    verdict, sandbox = await graded(answer, CodeStdio(code="x", language="cpp", tests=TESTS))
    assert verdict.passed
    assert len(sandbox.jobs) == 1 + len(TESTS)


async def test_a_thousand_failures_make_a_small_result() -> None:
    tests = [StdioTest(stdin="0", stdout="1")] * 1000
    noisy = Exit(ended_by="exit", exit_code=0, stdout=b"x" * 100_000)
    verdict, _ = await graded(lambda job: noisy, CodeStdio(code="x", tests=tests))
    assert len(verdict.output["tests"]) == 1000
    assert len(str(verdict.output)) < 150_000


async def test_a_missing_language_is_refused() -> None:
    verdict, sandbox = await graded(squares(), CodeStdio(code="x", language="cobol", tests=TESTS))
    assert (verdict.status, sandbox.jobs) == ("refused", [])


@pytest.mark.parametrize("stdout", ["x" * (4 << 20), "é" * (2 << 20)], ids=["letters", "letters of two bytes"])
async def test_a_test_that_no_program_could_pass_is_refused(stdout: str) -> None:
    with pytest.raises(ValueError, match="test 0 expects more output than a program may print: 4194304 bytes"):
        await graded(squares(), CodeStdio(code="x", tests=[StdioTest(stdout=stdout)]))


async def test_no_tests_mean_nothing() -> None:
    with pytest.raises(ValueError, match="at least one test"):
        await graded(squares(), CodeStdio(code="x", tests=[]))
