from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable

import msgspec
import pytest

from services.cpu_manager.graders.code_run import CodeRunGrader, decoded_files, decoded_output
from services.cpu_manager.graders.compile_cache import CompileCache
from services.cpu_manager.graders.programs import Builder
from services.cpu_manager.graders.protocol import Verdict
from services.cpu_manager.kinds import CodeRun
from services.cpu_manager.sandbox.protocol import EndedBy, ExecJob, Exit, Job, PythonJob
from tests.services.cpu_manager.graders.sandboxes import LANGUAGES, FakeSandbox, context

FINE = Exit(ended_by="exit", exit_code=0, stdout=b"out", stderr=b"err", wall_s=0.5, cpu_s=0.4, peak_memory_bytes=10)


def is_compile(job: Job) -> bool:
    return isinstance(job, ExecJob) and job.argv[0] == "compile"


def compiling(compiler: Exit, program: Exit = FINE) -> Callable[[Job], Exit]:
    return lambda job: compiler if is_compile(job) else program


def grader() -> CodeRunGrader:
    return CodeRunGrader(Builder(LANGUAGES, CompileCache()))


async def ran(answer: Callable[[Job], Exit], params: CodeRun) -> Verdict:
    return await grader().grade(params, context(FakeSandbox(answer)))


async def test_an_interpreted_program_has_a_run_result_only() -> None:
    verdict = await ran(lambda job: FINE, CodeRun(code="x"))
    assert (verdict.status, verdict.passed, verdict.score) == ("ok", None, None)
    assert verdict.output == {
        "status": "Success",
        "message": "",
        "compile_result": None,
        "run_result": {
            "status": "Finished",
            "execution_time": 0.5,
            "return_code": 0,
            "stdout": "out",
            "stderr": "err",
        },
        "files": {},
        "cpu_time": 0.4,
        "peak_memory": 10,
        "error_class": None,
    }


async def test_a_compiled_program_has_two_results_and_runs_its_artifact() -> None:
    compiler = Exit(ended_by="exit", exit_code=0, files={"main": b"ELF"}, wall_s=1.0, cpu_s=0.9, peak_memory_bytes=20)
    sandbox = FakeSandbox(compiling(compiler))
    verdict = await grader().grade(CodeRun(code="int main(){}", language="c++"), context(sandbox))
    compile_job, run_job = sandbox.jobs
    assert is_compile(compile_job)
    assert run_job.files["main"] == b"ELF"
    assert verdict.output["compile_result"]["status"] == "Finished"
    assert verdict.output["run_result"]["status"] == "Finished"
    assert verdict.cpu_s == pytest.approx(1.3)
    assert verdict.peak_memory_bytes == 20


async def test_a_compile_failure_has_no_run_result() -> None:
    compiler = Exit(ended_by="exit", exit_code=1, stderr=b"main.cpp:1: error")
    sandbox = FakeSandbox(compiling(compiler))
    verdict = await grader().grade(CodeRun(code="int", language="cpp"), context(sandbox))
    assert len(sandbox.jobs) == 1
    assert verdict.output["status"] == "Failed"
    assert verdict.output["run_result"] is None
    assert verdict.output["compile_result"]["return_code"] == 1
    assert verdict.output["error_class"] == "CompileError"


@pytest.mark.parametrize(
    ("end", "status", "code", "error_class"),
    [
        (Exit(ended_by="exit", exit_code=3), "Finished", 3, "NonZeroExit"),
        (Exit(ended_by="signal", signal=11), "Finished", -11, "KilledBySignal"),
        (Exit(ended_by="memory-limit"), "Finished", -9, "MemoryLimitExceeded"),
        (Exit(ended_by="wall-limit"), "TimeLimitExceeded", None, "TimeLimitExceeded"),
        (Exit(ended_by="cpu-limit"), "TimeLimitExceeded", None, "TimeLimitExceeded"),
    ],
)
async def test_every_bad_end_is_failed_with_its_class(
    end: Exit, status: str, code: int | None, error_class: str
) -> None:
    verdict = await ran(lambda job: end, CodeRun(code="x"))
    result = verdict.output["run_result"]
    assert (result["status"], result["return_code"]) == (status, code)
    assert (verdict.output["status"], verdict.output["error_class"]) == ("Failed", error_class)
    assert verdict.status == ("timeout" if status == "TimeLimitExceeded" else "ok")


@pytest.mark.parametrize("lost_at", ["compile", "run"])
async def test_a_lost_job_is_lost_and_has_no_output(lost_at: str) -> None:
    lost = Exit(ended_by="lost", detail="zygote died")
    answer = compiling(lost) if lost_at == "compile" else compiling(Exit(ended_by="exit", exit_code=0), lost)
    verdict = await ran(answer, CodeRun(code="x", language="cpp"))
    assert (verdict.status, verdict.output, verdict.reason) == ("lost", {}, "zygote died")


async def test_a_language_the_node_has_not_is_refused_by_name_and_never_a_compile_error() -> None:
    sandbox = FakeSandbox(lambda job: FINE)
    verdict = await grader().grade(CodeRun(code="x", language="Rust"), context(sandbox))
    assert (verdict.status, verdict.output, sandbox.jobs) == ("refused", {}, [])
    assert "'Rust'" in verdict.reason
    assert "cpp, python" in verdict.reason


@pytest.mark.parametrize("language", ["python", "py", "python3", "Python", " PY3 "])
async def test_aliases_name_the_same_language(language: str) -> None:
    sandbox = FakeSandbox(lambda job: FINE)
    await grader().grade(CodeRun(code="x", language=language), context(sandbox))
    assert isinstance(sandbox.jobs[0], PythonJob)


async def test_ten_equal_programs_at_once_are_compiled_once() -> None:
    sandbox = FakeSandbox(compiling(Exit(ended_by="exit", exit_code=0, files={"main": b"ELF"}, cpu_s=1.0)))
    shared = grader()
    verdicts = await asyncio.gather(
        *(shared.grade(CodeRun(code="x", language="cpp", stdin=str(n)), context(sandbox)) for n in range(10))
    )
    assert sum(map(is_compile, sandbox.jobs)) == 1
    assert sorted(verdict.cpu_s for verdict in verdicts) == [pytest.approx(0.4)] * 9 + [pytest.approx(1.4)]


async def test_tenants_do_not_share_compiles() -> None:
    sandbox = FakeSandbox(compiling(Exit(ended_by="exit", exit_code=0)))
    shared = grader()
    for tenant in ("ada", "bob"):
        await shared.grade(CodeRun(code="x", language="cpp"), context(sandbox, tenant=tenant))
    assert sum(map(is_compile, sandbox.jobs)) == 2


async def test_the_run_has_what_the_compile_left_of_the_stage() -> None:
    sandbox = FakeSandbox(compiling(Exit(ended_by="exit", exit_code=0, wall_s=1.5)))
    await grader().grade(CodeRun(code="x", language="cpp", run_timeout_s=60), context(sandbox, timeout_s=4.0))
    assert [job.limits.wall_s for job in sandbox.jobs] == [4.0, 2.5]


async def test_files_travel_both_ways_as_base64() -> None:
    sandbox = FakeSandbox(lambda job: Exit(ended_by="exit", exit_code=0, files={"out.bin": b"\xff"}))
    params = CodeRun(
        code="x",
        files={"in/a.txt": base64.b64encode(b"hello").decode(), "skipped": None, "b/IGNORE_THIS_FILE": "!"},
        fetch_files=["out.bin", "missing"],
    )
    verdict = await grader().grade(params, context(sandbox))
    assert sandbox.jobs[0].files == {"in/a.txt": b"hello"}
    assert sandbox.jobs[0].fetch == ("out.bin", "missing")
    assert verdict.output["files"] == {"out.bin": "/w=="}


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", ".", "a\0b"])
def test_paths_out_of_the_working_directory_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="relative path"):
        decoded_files({path: ""})


@pytest.mark.parametrize("content", ["abc", "%%%", "aGVs%bG8=", "\u00e9"])
def test_content_that_is_not_base64_is_refused_with_its_name(content: str) -> None:
    with pytest.raises(ValueError, match="'a': the content is not base64"):
        decoded_files({"a": content})


def test_base64_may_have_lines() -> None:
    assert decoded_files({"a": "aGVs\r\nbG8=\n"}) == {"a": b"hello"}


def test_undecodable_output_is_marked_as_sandbox_fusion_does() -> None:
    assert decoded_output(b"a\xff", truncated=False).startswith("[DecodeError] 'utf-8' codec can't decode byte 0xff")


def test_a_character_cut_by_our_own_limit_is_left_out() -> None:
    whole = "aé€😀".encode()
    for kept in range(len(whole)):
        assert not decoded_output(whole[:kept], truncated=True).startswith("[DecodeError]")
    assert decoded_output("é".encode()[:1], truncated=False).startswith("[DecodeError]")


@pytest.mark.parametrize("ended_by", ["exit", "wall-limit"])
async def test_output_before_a_timeout_is_kept(ended_by: EndedBy) -> None:
    verdict = await ran(lambda job: Exit(ended_by=ended_by, exit_code=1, stdout=b"so far"), CodeRun(code="x"))
    assert verdict.output["run_result"]["stdout"] == "so far"


# ---- artifacts -----------------------------------------------------------------------------------------------------


async def with_artifact(end: Exit, **params: object) -> Verdict:
    return await ran(lambda job: end, CodeRun(code="x", artifact="out", **params))  # type: ignore[arg-type]


async def test_a_file_that_a_program_leaves_is_its_artifact() -> None:
    end = msgspec.structs.replace(FINE, files={"out": b"left", "kept": b"x"})
    verdict = await with_artifact(end, fetch_files=["kept"])
    assert (verdict.status, verdict.passed, verdict.artifact) == ("ok", True, b"left")
    assert list(verdict.output["files"]) == ["kept"]


@pytest.mark.parametrize("end", [FINE, Exit(ended_by="exit", exit_code=1, files={"out": b"left"})])
async def test_without_the_file_or_a_success_it_fails(end: Exit) -> None:
    verdict = await with_artifact(end)
    assert (verdict.status, verdict.passed, verdict.artifact) == ("ok", False, None)


async def test_a_source_that_does_not_compile_leaves_none() -> None:
    failed = Exit(ended_by="exit", exit_code=1)
    verdict = await ran(compiling(failed), CodeRun(code="x", language="cpp", artifact="out"))
    assert (verdict.passed, verdict.artifact) == (False, None)


async def test_an_artifact_is_a_file_of_the_program() -> None:
    async def read() -> bytes:
        return b"made before"

    sandbox = FakeSandbox(lambda job: FINE)
    given = msgspec.structs.replace(context(sandbox), artifact=read)
    await grader().grade(CodeRun(code="x", artifact_as="in/made"), given)
    (job,) = sandbox.jobs
    assert job.files == {"in/made": b"made before"}


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/"])
async def test_an_artifact_outside_of_the_working_directory_is_malformed(name: str) -> None:
    for params in (CodeRun(code="x", artifact=name), CodeRun(code="x", artifact_as=name)):
        with pytest.raises(ValueError, match="relative path"):
            await ran(lambda job: FINE, params)
