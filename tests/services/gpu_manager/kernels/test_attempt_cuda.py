"""Attempts on a real NVIDIA GPU: `make test ARGS=tests/services/gpu_manager/kernels/test_attempt_cuda.py` there.

Needs pytest, NumPy and msgspec alone: `python3 -m pytest -c /dev/null --rootdir=$PWD --noconftest -q FILE`.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.gpu_manager.kernels.attempt import GpuAccess, probe
from services.gpu_manager.kernels.gpu_access import access_of
from services.gpu_manager.kernels.verdicts import judged
from shared.kinds.cuda import CudaKernel
from shared.policy.model.results import AttemptResult
from tests.services.gpu_manager.kernels.test_cuda import HEAD, INDEX, RIGHT, WRONG, compiled, compiler

__all__ = ["compiler"]

LIBRARY = "libcuda.so.1"


def params(**changes: Any) -> CudaKernel:
    arguments = [
        {"name": "a", "role": "input", "dtype": "float32", "shape": ["n"]},
        {"name": "b", "role": "input", "dtype": "float32", "shape": ["n"], "distribution": "uniform"},
        {"name": "out", "role": "output", "dtype": "float32", "shape": ["n"]},
        {"name": "n", "role": "scalar", "dtype": "int32", "value": "n"},
    ]
    given = {"kernel": "add", "arguments": arguments, "launch": {"grid": ["ceildiv(n, 256)"], "block": [256]},
             "cases": [{"sizes": {"n": 1000}, "baseline_ms": 1.0}, {"sizes": {"n": 1 << 20}, "baseline_ms": 1.0}],
             "reference": "def reference(a, b, n):\n    return a + b\n"}  # fmt: skip
    return msgspec.convert(given | changes, CudaKernel)


def judge(compiler: str, source: str, folder: Path, limit_s: float = 120, **changes: Any) -> AttemptResult:
    module = compiled(compiler, source, folder).read_bytes()
    return asyncio.run(judged(params(**changes), module, access_of(LIBRARY, None, ""), limit_s))


def works() -> str:
    return asyncio.run(probe(access_of(LIBRARY, None, "")))


def test_a_right_kernel_passes_with_its_times(compiler: str, tmp_path: Path) -> None:
    result = judge(compiler, RIGHT, tmp_path, score="speedup")
    assert (result.status, result.passed, result.evidence) == ("ok", True, "separate"), result
    output = json.loads(result.output)
    assert [case["sizes"] for case in output["cases"]] == [{"n": 1000}, {"n": 1 << 20}]
    assert all(case["time_ms"] >= case["device_ms"] > 0 for case in output["cases"])
    assert output["gpu"]["capability"].startswith("sm_")
    assert result.score is not None
    assert result.score > 1, "it needs less than a millisecond"


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_fails(compiler: str, tmp_path: Path, name: str) -> None:
    result = judge(compiler, WRONG[name], tmp_path)
    assert (result.status, result.passed, result.score) == ("ok", False, 0.0), result
    assert json.loads(result.output)["error_class"] == "WrongOutput"


@pytest.mark.parametrize(
    ("source", "error_class"),
    [
        (HEAD + "  *(volatile int*)16 = 1;\n}\n", "CudaError"),
        (HEAD + "  __trap();\n}\n", "CudaError"),
        (HEAD.replace("add", "other") + "}\n", "KernelNotFound"),
    ],
)
def test_a_fault_is_a_verdict_and_the_gpu_works_afterwards(
    compiler: str, tmp_path: Path, source: str, error_class: str
) -> None:
    result = judge(compiler, source, tmp_path)
    assert (result.status, result.passed, result.score) == ("ok", False, 0.0), result
    assert json.loads(result.output)["error_class"] == error_class
    assert works() == ""


def test_a_module_that_needs_more_memory_than_the_gpu_has_fails(compiler: str, tmp_path: Path) -> None:
    source = "__device__ char large[1ull << 39];\n" + HEAD + INDEX + "  if (i < n) large[i] = out[i];\n}\n"
    result = judge(compiler, source, tmp_path)
    assert (result.status, result.passed) == ("ok", False), result


def test_a_launch_that_the_gpu_rejects_fails(compiler: str, tmp_path: Path) -> None:
    launch = {"grid": [1], "block": [256], "shared_bytes": 1 << 24}
    result = judge(compiler, RIGHT, tmp_path, launch=launch)
    assert (result.status, result.passed) == ("ok", False), result


def test_a_kernel_that_hangs_is_a_timeout_and_the_next_one_passes(compiler: str, tmp_path: Path) -> None:
    (tmp_path / "hang").mkdir()
    (tmp_path / "next").mkdir()
    hang = HEAD + "  for (;;) atomicAdd((int*)out, 1);\n}\n"
    result = judge(compiler, hang, tmp_path / "hang", limit_s=20)
    assert (result.status, result.passed) == ("timeout", False), result
    assert judge(compiler, RIGHT, tmp_path / "next").passed


def test_a_module_for_another_gpu_is_refused(compiler: str, tmp_path: Path) -> None:
    module = compiled(compiler, RIGHT, tmp_path, "sm_75").read_bytes()
    result = asyncio.run(judged(params(), module, access_of(LIBRARY, None, ""), 60))
    if result.passed:
        pytest.skip("this GPU executes modules for sm_75")
    assert result.status == "refused", result
    assert "arch" in result.reason


def test_a_gpu_that_is_not_passed_in_cannot_be_used(compiler: str, tmp_path: Path) -> None:
    module = compiled(compiler, RIGHT, tmp_path).read_bytes()
    access = access_of(LIBRARY, None, "")
    hidden = GpuAccess((), access.shown, access.library)
    result = asyncio.run(judged(params(), module, hidden, 60))
    assert (result.status, result.passed) == ("lost", None), result
