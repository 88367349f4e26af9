"""Real kernels on an NVIDIA GPU: `make test ARGS=tests/services/gpu_manager/kernels/test_cuda.py` there."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.services.gpu_manager.kernels.test_judge_process import job

ROOT = Path(__file__).parents[4]
N = 1 << 20
HEAD = 'extern "C" __global__ void add(const float* a, const float* b, float* out, int n) {\n'
INDEX = "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
LAUNCH = "  unsigned launch = atomicAdd(&threads, 1u) / (gridDim.x * blockDim.x);\n"
RIGHT = HEAD + INDEX + "  if (i < n) out[i] = a[i] + b[i];\n}\n"

WRONG = {
    "another operation": HEAD + INDEX + "  if (i < n) out[i] = a[i] - b[i];\n}\n",
    "no operation": HEAD + "}\n",
    "one wrong element": HEAD + INDEX + "  if (i < n) out[i] = a[i] + b[i] + (i == n - 1);\n}\n",
    "half of the elements": HEAD + INDEX + "  if (i < n / 2) out[i] = a[i] + b[i];\n}\n",
    "the result of the first launch": "__device__ float kept[1 << 20]; __device__ int launches;\n"
    + HEAD
    + INDEX
    + "  if (i >= n) return;\n  if (launches == 0) kept[i] = a[i] + b[i];\n  out[i] = kept[i];\n"
    + "  __threadfence();\n  if (i == 0) launches = 1;\n}\n",
    "no work after the warm-up": "__device__ int launches;\n"
    + HEAD
    + INDEX
    + "  if (i < n && launches < 1) out[i] = a[i] + b[i];\n  if (i == n - 1) launches++;\n}\n",
    "no work after the first timed launch": "__device__ unsigned threads;\n"
    + HEAD
    + INDEX
    + LAUNCH
    + "  if (i < n && launch < 2) out[i] = a[i] + b[i];\n}\n",
    "work in the warm-up and in the last launch of a trial": "__device__ unsigned threads;\n"
    + HEAD
    + INDEX
    + LAUNCH
    + "  if (i < n && (launch == 0 || launch == 5)) out[i] = a[i] + b[i];\n}\n",
    "changed inputs": HEAD + INDEX + "  if (i < n) { out[i] = 0; ((float*)a)[i] = 0; ((float*)b)[i] = 0; }\n}\n",
    "a write where a next launch's output could be": HEAD
    + INDEX
    + "  if (i < n) out[i] = a[i] + b[i];\n  if (i < 1000) out[n + 50000 + i] = 0;\n}\n",
    "a write beside the output": HEAD
    + INDEX
    + "  if (i < n) out[i] = a[i] + b[i];\n  if (i == 0) ((unsigned*)(out + n))[0] ^= 255u;\n}\n",
}


@pytest.fixture(scope="module")
def compiler() -> str:
    """Path of nvcc. Skips where there is no GPU."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        found = ctypes.c_int()
        if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(found)) or not found.value:
            pytest.skip("the CUDA driver finds no GPU here")
    except OSError:
        pytest.skip("this machine has no CUDA driver")
    path = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(path).exists():
        pytest.skip("this machine has no nvcc")
    return path


def compiled(compiler: str, source: str, directory: Path, arch: str = "native") -> Path:
    (directory / "kernel.cu").write_text(source)
    out = directory / "kernel.cubin"
    subprocess.run(
        [compiler, "-cubin", f"-arch={arch}", "-o", str(out), str(directory / "kernel.cu")], check=True, timeout=120
    )
    return out


def device_files() -> list[str]:
    return sorted(str(path) for path in Path("/dev").glob("nvidia*") if not path.is_dir())


def driver_directories() -> list[str]:
    """Directories of the driver's libraries that are outside of the toolchain."""
    paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libcuda" in line}
    return sorted({str(Path(path).parent) for path in paths if not path.startswith(("/usr/lib", "/lib"))})


def attempt(compiler: str, source: str, directory: Path, seconds: float = 120, **changes: Any) -> dict[str, Any]:
    """Run both processes of an attempt, each behind walls. Return the report and how the processes ended."""
    module = os.open(compiled(compiler, source, directory), os.O_RDONLY)
    judge_end, device_end = socket.socketpair()
    image, result = os.memfd_create("image"), os.memfd_create("result")
    read, write = os.pipe()
    tensors = [{"name": name, "output": name == "out", "dtype": "float32", "shape": [N]} for name in ("a", "b", "out")]
    case = {"sizes": {"n": N}, "tensors": tensors, "scalars": {}, "dims": [N // 256, 1, 1, 256, 1, 1], "shared": 0,
            "arguments": [["tensor", "a"], ["tensor", "b"], ["tensor", "out"],
                          ["bytes", N.to_bytes(4, "little").hex()]]}  # fmt: skip
    plan: dict[str, Any] = {"image": image, "result": result, "devices": [], "shown": []}
    plans = [
        plan | {"role": "device", "channel": device_end.fileno(), "module": module, "library": "libcuda.so.1",
                "root": str(directory / "device"), "devices": device_files(), "shown": driver_directories(),
                "environment": {"CUDA_CACHE_DISABLE": "1"}},
        plan | {"role": "judge", "channel": judge_end.fileno(), "out": write, "root": str(directory / "judge"),
                "job": job(cases=[case], **{"trials": 5, "warmups": 2} | changes)},
    ]  # fmt: skip
    running = []
    for one in plans:
        Path(one["root"]).mkdir()
        descriptors = [value for name, value in one.items() if name in {"channel", "image", "result", "module", "out"}]
        process = subprocess.Popen(
            [sys.executable, "-m", "services.gpu_manager.kernels"],
            stdin=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=descriptors, cwd=ROOT,
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(json.dumps(one).encode())
        process.stdin.close()
        process.stdin = None
        running.append(process)
    for descriptor in (module, image, result, write):
        os.close(descriptor)
    judge_end.close()
    device_end.close()
    _, judge = running
    try:
        judge.wait(seconds)
        hung = False
    except subprocess.TimeoutExpired:
        hung = True
    for process in running:
        if hung:
            process.kill()
        process.wait(20)
    with os.fdopen(read, "rb") as out:
        lines = [json.loads(line) for line in out.read().splitlines()]
    errors = [process.stderr.read().decode()[-300:] for process in running if process.stderr is not None]
    assert lines, errors
    return {"hung": hung, "errors": errors, "last": lines[-1], **lines[-1].get("report", {})}


def test_a_right_kernel_is_timed_near_the_bandwidth_of_the_gpu(compiler: str, tmp_path: Path) -> None:
    report = attempt(compiler, RIGHT, tmp_path)
    assert "cases" in report, report
    (case,) = report["cases"]
    assert case["correct"], case
    assert case["device_ms"] > 12 * N / 20e12 * 1e3  # 12 bytes an element; no GPU moves 20 TB/s to its memory


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_found(compiler: str, tmp_path: Path, name: str) -> None:
    report = attempt(compiler, WRONG[name], tmp_path)
    assert "cases" in report, report
    assert not report["cases"][0]["correct"], report


def test_a_fault_is_reported_and_the_next_kernel_is_correct(compiler: str, tmp_path: Path) -> None:
    (tmp_path / "fault").mkdir()
    (tmp_path / "next").mkdir()
    report = attempt(compiler, HEAD + "  *(volatile int*)16 = 1;\n}\n", tmp_path / "fault")
    assert report["fault"] == "CudaError", report
    assert attempt(compiler, RIGHT, tmp_path / "next")["cases"][0]["correct"]


def test_a_kernel_that_hangs_is_killed_and_the_next_one_is_correct(compiler: str, tmp_path: Path) -> None:
    (tmp_path / "hang").mkdir()
    (tmp_path / "next").mkdir()
    hang = HEAD + "  for (;;) atomicAdd((int*)out, 1);\n}\n"
    report = attempt(compiler, hang, tmp_path / "hang", seconds=15)
    assert report["hung"], report
    assert report["last"] == {"phase": "kernel"}
    assert attempt(compiler, RIGHT, tmp_path / "next")["cases"][0]["correct"]
