"""Both real processes behind their walls, with CUDA's driver interface on the CPU (`fake_driver.c`)."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from services.cpu_manager.sandbox.rungs import Rung
from services.gpu_manager.kernels.attempt import GpuAccess, probe
from services.gpu_manager.kernels.verdicts import judged
from shared.policy.model.results import AttemptResult
from tests.services.cpu_manager.sandbox.conftest import passable, rung_failures
from tests.services.gpu_manager.kernels.test_attempt import params

SOURCE = Path(__file__).with_name("fake_driver.c")


@pytest.fixture(scope="module")
def gpu() -> Any:
    if reason := rung_failures()[Rung.NAMESPACES]:
        pytest.skip(reason)
    if shutil.which("gcc") is None:
        pytest.skip("this machine has no gcc")
    with passable() as folder:
        folder.chmod(0o755)  # the process that loads it is another user
        library = folder / "libcuda.so.1"
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True, timeout=60)
        yield GpuAccess((), (str(folder),), str(library))


async def judge(gpu: GpuAccess, module: bytes, limit_s: float = 60, **changes: Any) -> AttemptResult:
    return await judged(params(**changes), module, gpu, limit_s)


async def test_a_right_kernel_passes(gpu: GpuAccess) -> None:
    result = await judge(gpu, b"right")
    assert (result.status, result.passed, result.score, result.evidence) == ("ok", True, 1.0, "separate"), result
    output = json.loads(result.output)
    assert output["gpu"] == {"device": "a CPU", "capability": "sm_90", "driver": "13.0", "reads_host_memory": False}
    assert output["cases"][0]["time_ms"] >= output["cases"][0]["device_ms"] > 0


@pytest.mark.parametrize(
    ("module", "error_class"),
    [
        (b"wrong", "WrongOutput"),
        (b"works for later", "WrongOutput"),
        (b"writes beside", "WrongOutput"),
        (b"faults", "CudaError"),
        (b"crashes", "DeviceProcessEnded"),
        (b"too large", "ModuleError"),
    ],
)
async def test_a_failure_of_the_kernel_is_a_verdict(gpu: GpuAccess, module: bytes, error_class: str) -> None:
    result = await judge(gpu, module)
    assert (result.status, result.passed, result.score) == ("ok", False, 0.0), result
    assert json.loads(result.output)["error_class"] == error_class


async def test_a_function_that_is_not_there_and_a_launch_that_cannot_be_are_verdicts(gpu: GpuAccess) -> None:
    result = await judge(gpu, b"right", kernel="other")
    assert (result.passed, json.loads(result.output)["error_class"]) == (False, "KernelNotFound"), result
    launch = {"grid": [1], "block": [1], "shared_bytes": 1 << 21}
    result = await judge(gpu, b"right", launch=launch)
    assert (result.passed, json.loads(result.output)["error_class"]) == (False, "ModuleError"), result


async def test_a_module_for_another_gpu_is_refused(gpu: GpuAccess) -> None:
    result = await judge(gpu, b"other gpu")
    assert result.status == "refused", result
    assert "set `arch` to sm_90" in result.reason


async def test_a_kernel_that_hangs_is_a_timeout(gpu: GpuAccess) -> None:
    result = await judge(gpu, b"hangs", limit_s=10)
    assert (result.status, result.passed) == ("timeout", False), result


async def test_a_driver_that_is_not_there_is_no_verdict(gpu: GpuAccess) -> None:
    result = await judge(GpuAccess((), gpu.shown, "libnone.so.1"), b"right")
    assert (result.status, result.passed) == ("lost", None), result
    assert "libnone" in result.reason
    assert "libnone" in await probe(GpuAccess((), gpu.shown, "libnone.so.1"))
    assert await probe(gpu) == ""
