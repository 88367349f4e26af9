"""CUDA kernels and artifacts through `treadle up` and REST.

On a machine with an NVIDIA GPU and nvcc: `make test ARGS=tests/e2e/test_kernels.py`.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from services.cpu_manager.graders.cuda_compile import find_compiler
from treadle.client.answers import Answer
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.errors import BadRequest
from treadle.client.requests import RewardRequest
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

WAIT_S = 300
ADD = (
    'extern "C" __global__ void add(const float* a, const float* b, float* out, int n) {\n'
    "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "  if (i < n) out[i] = a[i] + b[i];\n}\n"
)
DESCRIBED = '[{"memory_gb": 24}]'


def gpus() -> int:
    """Return the number of GPUs that CUDA's driver finds."""
    try:
        cuda, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    except OSError:
        return 0
    return 0 if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(found)) else found.value


def params(code: str = ADD, **changes: Any) -> dict[str, Any]:
    arguments: list[dict[str, Any]] = [
        {"name": name, "role": "output" if name == "out" else "input", "dtype": "float32", "shape": ["n"]}
        for name in ("a", "b", "out")
    ]
    arguments.append({"name": "n", "role": "scalar", "dtype": "int32", "value": "n"})
    return {
        "code": code, "kernel": "add", "arguments": arguments,
        "launch": {"grid": ["ceildiv(n, 256)"], "block": [256]},
        "cases": [{"sizes": {"n": 1000}, "baseline_ms": 1.0}, {"sizes": {"n": 1 << 20}, "baseline_ms": 1.0}],
        "reference": "def reference(a, b, n):\n    return a + b\n", **changes,
    }  # fmt: skip


@pytest.fixture
def compiler() -> None:
    if missing := find_compiler("", "sm_90").missing:
        pytest.skip(missing)


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    """A stack whose GPU is described, or found."""
    with temporary_home() as root:
        environ = {} if gpus() else {"GPU_MANAGER_DEVICES": DESCRIBED}
        with running_stack(root, services="proxy,cpu_manager,gpu_manager", environ=environ) as running:
            yield running


@pytest.fixture
async def client(stack: RunningStack) -> AsyncIterator[AsyncTreadle]:
    async with AsyncTreadle(stack.urls["proxy"]) as client, asyncio.timeout(WAIT_S):
        yield client


@pytest.mark.usefixtures("compiler")
async def test_a_source_that_does_not_compile_has_a_verdict_without_a_gpu(client: AsyncTreadle) -> None:
    answer = await client.run("cuda.kernel", params(ADD.replace(";", "", 1)), timeout_s=60)
    assert (answer.ended, answer.mask, answer.passed, answer.score) == ("ok", False, False, 0.0), answer
    assert answer.evidence == "separate"
    assert [stage.name for stage in answer.stages or ()] == ["compile"]
    assert answer.output is not None
    assert answer.output["error_class"] == "CompileError"
    assert "error" in answer.output["compiler"]


@pytest.mark.usefixtures("compiler")
async def test_without_a_device_a_kernel_is_refused(client: AsyncTreadle) -> None:
    if gpus():
        pytest.skip("this machine has a GPU")
    answer = await client.run("cuda.kernel", params(), timeout_s=60)
    assert (answer.ended, answer.mask, answer.passed, answer.score) == ("refused", True, None, None), answer
    assert "only described by GPU_MANAGER_DEVICES" in answer.reason
    assert [stage.name for stage in answer.stages or ()] == ["compile"]


@pytest.mark.usefixtures("compiler")
async def test_on_a_gpu_a_right_kernel_passes_and_a_wrong_one_fails(client: AsyncTreadle) -> None:
    if not gpus():
        pytest.skip("CUDA's driver finds no GPU on this machine")
    right = await client.run("cuda.kernel", params(score="speedup"), timeout_s=120)
    assert (right.ended, right.passed, right.evidence) == ("ok", True, "separate"), right
    assert right.output is not None
    assert all(case["time_ms"] >= case["device_ms"] > 0 for case in right.output["cases"])
    assert right.score is not None
    assert right.score > 1, "it needs less than a millisecond"
    assert (right.usage or {})["gpu_s"] > 0
    wrong = await client.run("cuda.kernel", params(ADD.replace("a[i] + b", "a[i] - b")), timeout_s=120)
    assert (wrong.ended, wrong.passed, wrong.score) == ("ok", False, 0.0), wrong
    hangs = await client.run(
        "cuda.kernel", params(ADD.replace("if (i", "for (;;) atomicAdd((int*)out, 1); if (i")), timeout_s=20
    )
    assert (hangs.ended, hangs.passed, hangs.mask) == ("timeout", False, False), hangs
    again = await client.run("cuda.kernel", params(), timeout_s=120)
    assert again.passed, again


async def test_a_kernel_without_a_source_is_rejected(client: AsyncTreadle) -> None:
    given = params()
    del given["code"]
    with pytest.raises(BadRequest, match="missing field `code`"):
        await client.run("cuda.kernel", given)


async def test_an_artifact_goes_from_one_stage_of_a_task_to_the_next(client: AsyncTreadle) -> None:
    await client.put_task(
        "two-programs",
        {
            "stages": [
                {"name": "make", "kind": "code.run", "params": {"artifact": "made.bin"}},
                {"name": "use", "kind": "code.run", "params": {"artifact_as": "in/taken.bin"}},
            ]
        },
    )
    make = "open('made.bin', 'wb').write(bytes(range(256)) * {0})"
    use = "import sys; data = open('in/taken.bin', 'rb').read(); print(len(data), data[:256] == bytes(range(256)))"
    for count, expected in ((1, "256 True"), (4096, "1048576 True")):
        answer = await passed_on(client, make.format(count), use)
        assert answer.ended == "ok", answer
        assert answer.output is not None
        assert answer.output["run_result"]["stdout"].strip() == expected
    answer = await passed_on(client, "print('nothing')", use)
    assert (answer.ended, answer.passed, len(answer.stages or ())) == ("ok", False, 1), answer
    answer = await passed_on(client, make.format(1 << 15), use)
    assert (answer.passed, (answer.output or {}).get("error_class")) == (False, "ArtifactTooLarge"), answer


async def passed_on(client: AsyncTreadle, make: str, use: str) -> Answer:
    """Execute both stages with these programs."""
    request = RewardRequest(stage_params={"make": {"code": make}, "use": {"code": use}})
    (answer,) = (await client.grade("two-programs", [request])).answers.values()
    return answer


async def test_a_stage_without_a_maker_is_rejected(client: AsyncTreadle) -> None:
    given = params()
    del given["code"]
    with pytest.raises(BadRequest, match=r"put a stage of the kind cuda\.compile before it"):
        await client.put_task("only-run", {"stages": [{"name": "run", "kind": "cuda.kernel", "params": given}]})


def test_without_a_compiler_a_kernel_is_refused() -> None:
    with temporary_home() as root:
        environ = {"GPU_MANAGER_DEVICES": DESCRIBED, "CPU_MANAGER_NVCC": "/nowhere/nvcc"}
        with running_stack(root, services="proxy,cpu_manager,gpu_manager", environ=environ) as running:

            async def one() -> None:
                async with AsyncTreadle(running.urls["proxy"]) as client:
                    answer = await client.run("cuda.kernel", params(), timeout_s=60)
                    assert (answer.ended, answer.mask) == ("refused", True), answer
                    assert "CPU_MANAGER_NVCC" in answer.reason

            asyncio.run(one())
