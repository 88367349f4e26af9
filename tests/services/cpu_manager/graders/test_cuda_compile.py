"""`cuda.compile` with a written compiler, and with the real one in the real sandbox."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from services.cpu_manager.graders import cuda_compile
from services.cpu_manager.graders.cuda_compile import TRIVIAL, CudaCompileGrader, CudaCompiler, find_compiler
from services.cpu_manager.graders.protocol import GradingContext, Verdict
from services.cpu_manager.sandbox.local import LocalSandbox
from services.cpu_manager.sandbox.protocol import EndedBy, ExecJob, Exit, Job
from shared.kinds.cuda import MOST_MODULE, CudaCompile
from tests.services.cpu_manager.graders.sandboxes import FakeSandbox, context

COMPILER = CudaCompiler("/usr/bin/nvcc", "sm_90")
FINE = Exit(ended_by="exit", exit_code=0, files={"kernel.cubin": b"ELF"}, cpu_s=0.5, peak_memory_bytes=7)
WRONG = Exit(ended_by="exit", exit_code=2, stderr=b"kernel.cu(3): error: expected a ;", cpu_s=0.4)
SOURCE = 'extern "C" __global__ void add(const float* a, float* b) { b[threadIdx.x] = a[threadIdx.x]; }\n'


async def compiled(answer: Callable[[Job], Exit], params: CudaCompile, **of: CudaCompiler) -> tuple[Verdict, list[Job]]:
    sandbox = FakeSandbox(answer)
    verdict = await CudaCompileGrader(of.get("compiler", COMPILER)).grade(params, context(sandbox))
    return verdict, sandbox.jobs


def trivial(job: Job) -> bool:
    return isinstance(job, ExecJob) and job.files["kernel.cu"] == TRIVIAL.encode()


async def test_a_module_is_the_artifact() -> None:
    verdict, (job,) = await compiled(lambda _: FINE, CudaCompile(code=SOURCE, memory_mb=512))
    assert (verdict.status, verdict.passed, verdict.score, verdict.artifact) == ("ok", True, None, b"ELF")
    assert verdict.output == {"arch": "sm_90", "module_bytes": 3, "compiler": ""}
    assert (verdict.cpu_s, verdict.peak_memory_bytes) == (0.5, 7)
    assert isinstance(job, ExecJob)
    assert job.argv == ("/usr/bin/nvcc", "-cubin", "-arch=sm_90", "-o", "kernel.cubin", "kernel.cu")
    assert job.limits.memory_bytes == 512 << 20


async def test_ptx_is_made_for_a_virtual_target() -> None:
    ptx = Exit(ended_by="exit", exit_code=0, files={"kernel.ptx": b".version 9.0"})
    verdict, (job,) = await compiled(lambda _: ptx, CudaCompile(code=SOURCE, arch="compute_80"))
    assert verdict.artifact == b".version 9.0"
    assert isinstance(job, ExecJob)
    assert job.argv[1:3] == ("-ptx", "-arch=compute_80")


async def test_a_compile_error_is_a_verdict_with_the_compilers_text() -> None:
    verdict, jobs = await compiled(lambda job: FINE if trivial(job) else WRONG, CudaCompile(code="x"))
    assert (verdict.status, verdict.passed, verdict.score, verdict.artifact) == ("ok", False, 0.0, None)
    assert verdict.output["error_class"] == "CompileError"
    assert "expected a ;" in verdict.output["compiler"]
    assert len(jobs) == 2


async def test_a_compiler_that_never_works_is_refused() -> None:
    broken = Exit(ended_by="exit", exit_code=1, stderr=b"nvcc fatal: gcc: not found")
    verdict, _ = await compiled(lambda _: broken, CudaCompile(code=SOURCE))
    assert (verdict.status, verdict.score) == ("refused", None)
    assert "gcc: not found" in verdict.reason


async def test_a_node_without_a_compiler_refuses_and_says_what_to_set() -> None:
    missing = find_compiler("/nowhere/nvcc", "sm_90")
    verdict, jobs = await compiled(lambda _: FINE, CudaCompile(code=SOURCE), compiler=missing)
    assert (verdict.status, verdict.score, jobs) == ("refused", None, [])
    assert "CPU_MANAGER_NVCC" in verdict.reason
    assert "/nowhere/nvcc" in verdict.reason


def test_the_compiler_is_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_compile, "USUAL", str(tmp_path / "none"))
    assert "nvcc is neither on PATH" in find_compiler("", "sm_90", str(tmp_path)).missing
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho release 13.0\n")
    nvcc.chmod(0o755)
    found = find_compiler("", "sm_90", str(tmp_path))
    assert (found.path, found.version) == (str(nvcc), "release 13.0")


@pytest.mark.parametrize(
    ("ended_by", "status", "passed"),
    [("wall-limit", "timeout", False), ("memory-limit", "ok", False), ("lost", "lost", None)],
)
async def test_limits_are_verdicts_and_a_lost_job_is_none(ended_by: EndedBy, status: str, passed: bool | None) -> None:
    verdict, _ = await compiled(lambda _: Exit(ended_by=ended_by), CudaCompile(code=SOURCE))
    assert (verdict.status, verdict.passed, verdict.artifact) == (status, passed, None)


async def test_a_module_that_is_too_large_fails() -> None:
    large = Exit(ended_by="exit", exit_code=0, files={"kernel.cubin": bytes(MOST_MODULE + 1)})
    verdict, _ = await compiled(lambda _: large, CudaCompile(code=SOURCE))
    assert (verdict.passed, verdict.output["error_class"]) == (False, "ModuleTooLarge")


async def test_a_very_long_text_of_the_compiler_is_cut() -> None:
    long = Exit(ended_by="exit", exit_code=1, stderr=b"error " * 100_000)
    verdict, _ = await compiled(lambda job: FINE if trivial(job) else long, CudaCompile(code="x"))
    assert len(verdict.output["compiler"]) == cuda_compile.MOST_TEXT


# ---- the real compiler ---------------------------------------------------------------------------------------------


@pytest.fixture
def real() -> CudaCompiler:
    found = find_compiler("", "sm_90")
    if not found.path:
        pytest.skip(found.missing)
    return found


async def really(walls: LocalSandbox, real: CudaCompiler, code: str, **params: object) -> Verdict:
    of = GradingContext(sandbox=walls, cores=frozenset(os.sched_getaffinity(0)), timeout_s=120.0, tenant="walls")
    return await CudaCompileGrader(real).grade(CudaCompile(code=code, **params), of)  # type: ignore[arg-type]


@pytest.mark.asyncio(loop_scope="session")
async def test_the_real_compiler_makes_a_module(walls: LocalSandbox, real: CudaCompiler) -> None:
    verdict = await really(walls, real, SOURCE)
    assert verdict.passed, verdict
    assert verdict.artifact is not None
    assert verdict.artifact.startswith(b"\x7fELF")
    ptx = await really(walls, real, SOURCE, arch="compute_90")
    assert ptx.artifact is not None
    assert b".entry add" in ptx.artifact
    assert "release" in real.version


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("code", ["__global__ void f( {", '#include "/etc/shadow"', '#include "/root/x.h"'])
async def test_the_real_compiler_rejects_a_source(walls: LocalSandbox, real: CudaCompiler, code: str) -> None:
    verdict = await really(walls, real, code)
    assert (verdict.status, verdict.passed, verdict.output["error_class"]) == ("ok", False, "CompileError"), verdict
    assert "error" in verdict.output["compiler"]


@pytest.mark.asyncio(loop_scope="session")
async def test_a_target_that_the_compiler_does_not_know_is_refused(walls: LocalSandbox, real: CudaCompiler) -> None:
    verdict = await really(walls, real, SOURCE, arch="sm_11")
    assert verdict.status == "refused", verdict
    assert "sm_11" in verdict.reason
