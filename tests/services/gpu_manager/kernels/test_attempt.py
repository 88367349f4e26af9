"""Attempts of kernels: a real judge behind walls, and a process that stands for the one with the GPU."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import venv
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from services.cpu_manager.sandbox.rungs import Rung
from services.gpu_manager.kernels.attempt import COMMAND, GpuAccess, RoleCommands
from services.gpu_manager.kernels.verdicts import judged
from shared.kinds.cuda import CudaKernel
from shared.policy.model.results import AttemptResult
from tests.services.cpu_manager.sandbox.conftest import rung_failures
from tests.shared.bus.soon import soon

ROOT = Path(__file__).parents[4]
GPU = GpuAccess(files=())
MODULE = b"module"
WAIT_S = 60


@pytest.fixture(autouse=True)
def namespaces() -> None:
    if reason := rung_failures()[Rung.NAMESPACES]:
        pytest.skip(reason)


def params(**changes: Any) -> CudaKernel:
    arguments = [
        {"name": name, "role": "output" if name == "out" else "input", "dtype": "float32", "shape": ["n"]}
        for name in ("a", "b", "out")
    ]
    given = {"kernel": "add", "arguments": arguments, "launch": {"grid": [1], "block": [1]},
             "cases": [{"sizes": {"n": 1000}, "baseline_ms": 1.0}], "trials": 2, "warmups": 1,
             "reference": "def reference(a, b):\n    return a + b\n"}  # fmt: skip
    return msgspec.convert(given | changes, CudaKernel)


def commands(mode: str, judge: tuple[str, ...] = COMMAND) -> RoleCommands:
    run = f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv[1:] = [{mode!r}]; "
    run += "from tests.services.gpu_manager.kernels.fake_device import main; main()"
    return RoleCommands((sys.executable, "-c", run), judge)


def children() -> set[int]:
    """Process ids of this process's children: other tests leave servers for the rest of the run."""
    return {one.pid for one in psutil.Process().children()}


async def judge(mode: str, limit_s: float = WAIT_S, **changes: Any) -> AttemptResult:
    before = children()
    async with asyncio.timeout(2 * WAIT_S):
        result = await judged(params(**changes), MODULE, GPU, limit_s, commands(mode))
    assert children() <= before, "both processes have ended"
    return result


def output(result: AttemptResult) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.output)
    return found


async def test_a_right_kernel_passes_with_its_times() -> None:
    result = await judge("right")
    assert (result.status, result.passed, result.score, result.evidence) == ("ok", True, 1.0, "separate"), result
    (case,) = output(result)["cases"]
    assert case["time_ms"] > 0
    assert output(result)["gpu"] == {"device": "fake", "reads_host_memory": False}
    assert result.usage["gpu_s"] > 0


async def test_a_speedup_is_baseline_by_time() -> None:
    result = await judge("right", score="speedup")
    (case,) = output(result)["cases"]
    assert result.score == pytest.approx(1.0 / case["time_ms"])


@pytest.mark.parametrize(
    ("mode", "error_class"),
    [
        ("wrong", "WrongOutput"),
        ("faults", "CudaError"),
        ("ends", "DeviceProcessEnded"),
        ("no such kernel", "KernelNotFound"),
        ("too large", "ModuleError"),
    ],
)
async def test_a_failure_of_the_kernel_is_a_verdict(mode: str, error_class: str) -> None:
    result = await judge(mode)
    assert (result.status, result.passed, result.score, result.evidence) == ("ok", False, 0.0, "separate"), result
    assert output(result)["error_class"] == error_class
    assert result.reason


@pytest.mark.parametrize("mode", ["claims that there is no device", "nested", "forged time", "cuts memory"])
async def test_an_attack_is_a_verdict_and_masks_nothing(mode: str) -> None:
    result = await judge(mode)
    assert (result.status, result.passed, result.score) == ("ok", False, 0.0), result


async def test_a_kernel_that_hangs_is_a_timeout() -> None:
    result = await judge("hangs", limit_s=6)
    assert (result.status, result.passed, result.evidence) == ("timeout", False, "separate"), result


async def test_a_slow_kernel_does_not_use_the_time_of_the_reference() -> None:
    result = await judge("slow", limit_s=6, trials=50)
    assert (result.status, result.passed) == ("timeout", False), result


@pytest.mark.parametrize("mode", ["no device", "does not start", "breaks the GPU"])
async def test_a_failure_of_the_node_is_no_verdict(mode: str) -> None:
    result = await judge(mode)
    assert (result.status, result.passed, result.score) == ("lost", None, None), result
    assert result.reason


async def test_a_module_for_another_gpu_is_refused() -> None:
    result = await judge("another GPU")
    assert result.status == "refused"
    assert "arch" in result.reason


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("def reference(a, b):\n    raise KeyError('x')\n", "KeyError"),
        ("def other(a, b):\n    return a\n", "function `reference`"),
        ("import time\ndef reference(a, b):\n    time.sleep(100)\n", "half of timeout_s"),
    ],
)
async def test_a_reference_that_fails_is_refused(reference: str, why: str) -> None:
    result = await judge("right", limit_s=6 if "sleep" in reference else WAIT_S, reference=reference)
    assert (result.status, result.passed, result.score) == ("refused", None, None), result
    assert why in result.reason


async def test_a_judge_that_ends_is_no_verdict() -> None:
    dying = (sys.executable, "-c", "import sys; sys.exit('gone')")
    result = await judged(params(), MODULE, GPU, WAIT_S, commands("right", dying))
    assert result.status == "lost"
    assert "gone" in result.reason


async def test_a_judge_that_does_not_start_is_no_verdict() -> None:
    slow = (sys.executable, "-c", "import time; time.sleep(100)")
    result = await judged(params(), MODULE, GPU, 2, commands("right", slow))
    assert (result.status, result.passed) == ("lost", None), result


async def test_a_cancelled_attempt_leaves_nothing() -> None:
    before, others = psutil.Process().num_fds(), children()
    running = asyncio.create_task(judged(params(), MODULE, GPU, WAIT_S, commands("hangs")))

    async def both_run() -> bool:
        return len(children() - others) == 2

    await soon(both_run)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert children() <= others
    await asyncio.sleep(0)
    assert psutil.Process().num_fds() <= before + 1, "asyncio keeps one descriptor to watch children"


async def test_no_process_gets_the_managers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_REDIS_URL", "redis://:secret@host")
    reference = "import os\ndef reference(a, b):\n    raise KeyError(sorted(os.environ))\n"
    result = await judge("right", reference=reference)
    assert "PATH" in result.reason
    assert "TREADLE" not in result.reason


async def test_numpy_may_be_outside_of_the_virtual_environment(tmp_path: Path) -> None:
    """An environment made with --system-site-packages is one. Parts of NumPy are imported late."""
    venv.create(tmp_path / "made", symlinks=True, with_pip=False)
    (packages,) = (tmp_path / "made").glob("lib/python*/site-packages")
    elsewhere = tmp_path / "elsewhere" / "site-packages"
    elsewhere.mkdir(parents=True)
    installed = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs", "msgspec"):
        if (installed / name).exists():
            shutil.copytree(installed / name, elsewhere / name)
    (packages / "elsewhere.pth").write_text(f"{elsewhere}\n")
    python = str(tmp_path / "made" / "bin" / "python")
    result = await judged(params(), MODULE, GPU, WAIT_S, commands("right", (python, *COMMAND[1:])))
    assert result.passed, result
