"""Teachers and kernels take turns on one NVIDIA GPU, through `treadle up` and REST.

On a machine with a GPU, nvcc and `treadle[torch]`: `make test ARGS=tests/e2e/test_gpu.py`.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.e2e.test_kernels import ADD, gpus, params
from tests.services.gpu_manager.torch_server.installed import check_torch
from tests.services.gpu_manager.torch_server.models import DECODER, write_decoder
from tests.services.gpu_manager.torch_server.server import running_server
from treadle.client.answers import Answer
from treadle.client.asynchronous import AsyncTreadle
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

WAIT_S = 240
ROUNDS, CALLS = 4, 16
CLOSE = 0.05
"""Most by which sums of the GPU differ from those of the CPU, in nats."""
SIZE: dict[str, Any] = {**DECODER, "hidden_size": 2048, "vocab_size": 32_768, "intermediate_size": 4096}
ROTATIONS = {"teacher-a": 100.0, "teacher-b": 3.0}
"""Service -> what differs in its model. The same tokens have other log-probabilities by each."""
TOKENS = [1, 2, 3, 4, 5, 6, 7, 8]


class Mesh(NamedTuple):
    stack: RunningStack
    expected: dict[str, list[float]]
    """Service -> the log-probabilities of TOKENS by its model on the CPU."""


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    """A stack with one real GPU, whose memory as declared holds one of two teachers."""
    if not gpus():
        pytest.skip("CUDA's driver finds no GPU on this machine")
    check_torch()
    import torch

    total_gb = torch.cuda.get_device_properties(0).total_memory / (1 << 30)
    with temporary_home() as root, TemporaryDirectory() as named:
        entries, expected = {}, {}
        for service, rotation in ROTATIONS.items():
            folder = Path(named) / service
            folder.mkdir()
            write_decoder(folder, {**SIZE, "rope_theta": rotation})
            with running_server(folder, "--device", "cpu") as alone:
                (expected[service],) = alone.result("/v1/logprobs", {"tokens": [TOKENS]})["logprobs"]
            canary = {
                "path": "/v1/logprobs", "body": {"tokens": [TOKENS]}, "pointer": "/logprobs/0/5",
                "expect": expected[service][5], "tolerance": CLOSE,
            }  # fmt: skip
            entries[service] = {
                "backend": "torch", "api": "treadle", "model": str(folder), "canary": canary, "min_residency_s": 0.2,
                "memory_gb": {"awake": round(0.6 * total_gb), "asleep": 1, "host": 2},
            }  # fmt: skip
        declared = Path(named) / "services.json"
        declared.write_text(json.dumps(entries))
        services = "proxy,scaling_planner,cpu_manager,gpu_manager"
        with running_stack(root, services=services, environ={"GPU_MANAGER_SERVICES": str(declared)}) as running:
            yield Mesh(running, expected)


@pytest.fixture
async def client(mesh: Mesh) -> AsyncIterator[AsyncTreadle]:
    async with AsyncTreadle(mesh.stack.urls["proxy"]) as client, asyncio.timeout(WAIT_S):
        yield client


async def taught(client: AsyncTreadle, service: str) -> Answer:
    asked = {"service": service, "tokens": TOKENS}
    return await client.run("model.logprob", asked, timeout_s=60, budget_s=WAIT_S)


def difference(answer: Answer, expected: list[float]) -> float:
    """Return by how much an answer's log-probabilities differ from the expected ones at most."""
    assert (answer.ended, answer.mask) == ("ok", False), answer
    return float(np.abs(np.array((answer.output or {})["logprobs"]) - expected).max())


async def test_teachers_take_turns_and_each_answer_is_its_own(client: AsyncTreadle, mesh: Mesh) -> None:
    first, second = (np.array(one) for one in mesh.expected.values())
    between = float(np.abs(first - second).max())
    assert between > 10 * CLOSE, "an answer of the other teacher is noticed"
    rng = random.Random(3)
    for _ in range(ROUNDS):
        order = [rng.choice(list(ROTATIONS)) for _ in range(CALLS)]
        answers = await asyncio.gather(*(taught(client, service) for service in order))
        for service, answer in zip(order, answers, strict=True):
            assert difference(answer, mesh.expected[service]) < CLOSE, service
    views = await client.model_services.all()
    took = {view.name: one.measured_s for view in views for one in view.engines}
    assert set(took) == set(ROTATIONS)
    assert any(seconds.get("restore asleep1", 0) > 0 for seconds in took.values()), took


async def test_a_kernel_evicts_the_teacher_and_the_teacher_comes_back(client: AsyncTreadle, mesh: Mesh) -> None:
    for service, expected in mesh.expected.items():
        assert difference(await taught(client, service), expected) < CLOSE
        right = await client.run("cuda.kernel", params(), timeout_s=120)
        assert (right.ended, right.passed, right.evidence) == ("ok", True, "separate"), right
        wrong = await client.run("cuda.kernel", params(ADD.replace("a[i] + b", "a[i] - b")), timeout_s=120)
        assert (wrong.ended, wrong.passed) == ("ok", False), wrong
        assert difference(await taught(client, service), expected) < CLOSE


async def test_kernels_and_teachers_are_mixed(client: AsyncTreadle, mesh: Mesh) -> None:
    async def teach(service: str) -> None:
        assert difference(await taught(client, service), mesh.expected[service]) < CLOSE

    async def launch() -> None:
        answer = await client.run("cuda.kernel", params(), timeout_s=120, budget_s=WAIT_S)
        assert (answer.ended, answer.passed) == ("ok", True), answer

    await asyncio.gather(*(one for _ in range(3) for one in (teach("teacher-a"), launch(), teach("teacher-b"))))
