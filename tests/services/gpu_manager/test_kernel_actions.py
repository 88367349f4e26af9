"""Actions `cuda.kernel` on a node: the whole GPU, the artifact, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pytest

from services.cpu_manager.sandbox.rungs import Rung
from services.gpu_manager import kernel_actions
from services.gpu_manager.devices import GpuDevice
from services.gpu_manager.executor import GpuExecutor
from services.gpu_manager.kernel_actions import KernelActions
from services.gpu_manager.kernels.attempt import GpuAccess, RoleCommands
from services.gpu_manager.kinds import CUDA, GPUS, KERNELS
from services.gpu_manager.own_chunk import own_entry, own_spec, with_own
from services.gpu_manager.serving import Serving
from shared.messages.grants import Granted
from shared.node.artifacts import Artifacts, NoArtifacts
from shared.policy.model.results import AttemptResult
from shared.policy.serving.model import ServiceSet
from shared.runtime.clock import SYSTEM_CLOCK
from shared.runtime.http_streams import open_streams
from tests.services.cpu_manager.sandbox.conftest import rung_failures
from tests.services.gpu_manager.kernels.test_attempt import commands
from tests.services.gpu_manager.kernels.test_attempt import params as declared
from tests.services.gpu_manager.test_serving import Node, run

KERNEL = {
    "kernel": "add",
    "arguments": [{"name": "out", "role": "output", "dtype": "float32", "shape": [4]}],
    "launch": {"grid": [1], "block": [1]},
    "cases": [{}],
    "reference": "def reference():\n    return np.ones(4, np.float32)\n",
}
REAL = GpuDevice(0, 24.0, "real", True, 0, "GPU-1")


class Stored(NoArtifacts):
    async def read(self, grant: Granted) -> bytes:
        del grant
        return b"module"


def kernel(number: int = 1, *, gpus: tuple[int, ...] = (0,), params: dict[str, Any] = KERNEL) -> Granted:
    return Granted(
        action=f"K{number}", epoch=1, attempt=1, tenant="t", stage=1, work=CUDA, params=msgspec.json.encode(params),
        units={GPUS: len(gpus)}, timeout_s=10.0, budget_s=10.0, service=KERNELS, numbers=list(gpus),
    )  # fmt: skip


@asynccontextmanager
async def executing(
    device: GpuDevice = REAL, artifacts: Artifacts | None = None, commands: RoleCommands | None = None
) -> AsyncIterator[tuple[Node, GpuExecutor]]:
    """A GPU that holds the service `a` or `b`, or runs a kernel."""
    node, entry = Node(), own_entry([24.0])
    former, own = node.serving, {KERNELS: entry}
    node.serving = Serving(node.machine, with_own(former.backend), node.memory, SYSTEM_CLOCK, former.entries | own)
    node.serving.handle(ServiceSet(own_spec(entry)))
    runs = KernelActions((device,), artifacts or Stored(), "libc.so.6", 4 << 20, commands or RoleCommands())
    async with open_streams(connect_s=2.0) as http, asyncio.timeout(60):
        yield node, GpuExecutor(node.serving, http, SYSTEM_CLOCK, 1, 4 << 20, runs, Random(1))
        await node.serving.stop(5.0)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, bytes]]:
    """Replace the processes of a kernel: the calls."""
    calls: list[tuple[Any, bytes]] = []

    async def fake(params: Any, module: bytes, gpu: GpuAccess, limit_s: float, commands: Any) -> AttemptResult:
        calls.append((params, module))
        return AttemptResult("ok", True, 1.0, evidence="separate")

    def access(library: str, minor: int | None, uuid: str) -> GpuAccess:
        return GpuAccess((f"/dev/nvidia{minor}",), (), library, {"CUDA_VISIBLE_DEVICES": uuid})

    monkeypatch.setattr(kernel_actions, "judged", fake)
    monkeypatch.setattr(kernel_actions, "access_of", access)
    return calls


async def test_a_kernel_evicts_what_is_on_the_gpu_and_leaves_it(judged: list[tuple[Any, bytes]]) -> None:
    async with executing() as (node, executor):
        async with node.using("h1", "a"):
            pass
        assert node.state("a") == "resident"
        result = await run(executor, kernel())
        assert (result.status, result.passed, result.score) == ("ok", True, 1.0)
        assert node.state("a") == "cold"
        assert judged[0][1] == b"module"
        async with node.using("h2", "a"):
            assert node.state("a") == "running"


async def test_two_kernels_do_not_run_at_once(monkeypatch: pytest.MonkeyPatch, judged: list[tuple[Any, bytes]]) -> None:
    del judged
    running = most = 0

    async def fake(*_: Any) -> AttemptResult:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1
        return AttemptResult("ok", True, 1.0)

    monkeypatch.setattr(kernel_actions, "judged", fake)
    async with executing() as (_, executor):
        results = await asyncio.gather(*(run(executor, kernel(number)) for number in range(3)))
        assert [result.status for result in results] == ["ok"] * 3
    assert most == 1


async def test_a_described_gpu_is_refused_and_evicts_nothing() -> None:
    async with executing(replace(REAL, measured=False)) as (node, executor):
        async with node.using("h1", "a"):
            pass
        result = await run(executor, kernel())
        assert (result.status, result.score) == ("refused", None)
        assert node.state("a") == "resident"
        assert "only described by GPU_MANAGER_DEVICES" in result.reason


@pytest.mark.parametrize("gpus", [(0, 1), (3,)])
async def test_another_chunk_than_one_gpu_of_the_node_is_refused(gpus: tuple[int, ...]) -> None:
    async with executing() as (_, executor):
        assert (await run(executor, kernel(gpus=gpus))).status == "refused"


async def test_a_node_without_the_driver_refuses() -> None:
    async with executing() as (_, executor):
        result = await run(executor, kernel())
        assert result.status == "refused"
        assert "GPU_MANAGER_CUDA_LIBRARY" in result.reason


async def test_a_lost_artifact_is_no_verdict(judged: list[tuple[Any, bytes]]) -> None:
    async with executing(artifacts=NoArtifacts()) as (_, executor):
        assert (await run(executor, kernel())).status == "lost"
    assert not judged


async def test_malformed_parameters_are_refused(judged: list[tuple[Any, bytes]]) -> None:
    async with executing() as (_, executor):
        result = await run(executor, kernel(params={**KERNEL, "cases": []}))
        assert result.status == "refused"
        assert "cases" in result.reason
    assert not judged


@pytest.fixture
def namespaces() -> None:
    if reason := rung_failures()[Rung.NAMESPACES]:
        pytest.skip(reason)


@pytest.mark.usefixtures("namespaces")
async def test_an_action_goes_through_the_real_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_actions, "access_of", lambda *_: GpuAccess(()))
    right, wrong = msgspec.to_builtins(declared()), msgspec.to_builtins(declared(reference=DIFFERENCE))
    async with executing(commands=commands("right")) as (_, executor):
        result = await run(executor, kernel(params=right))
        assert (result.status, result.passed, result.evidence) == ("ok", True, "separate"), result
        result = await run(executor, kernel(2, params=wrong))
        assert (result.status, result.passed, result.score) == ("ok", False, 0.0), result


DIFFERENCE = "def reference(a, b):\n    return a - b\n"
