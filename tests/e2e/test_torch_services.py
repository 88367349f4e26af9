"""Our model server with real models on the CPU behind a real mesh: a teacher's log-probabilities, and embeddings.

The expected numbers are NumPy's, of forward passes that share no code with the server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest

from tests.services.gpu_manager.torch_server.installed import check_torch, minilm_folder
from tests.services.gpu_manager.torch_server.models import DECODER, write_decoder
from tests.services.gpu_manager.torch_server.test_decoder import expected_logprobs
from tests.services.gpu_manager.torch_server.test_encoder import expected_embedding
from treadle.client.asynchronous import AsyncTreadle
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

WAIT_S = 200
TOLERANCE = 1e-4
TOKENS = [1, 5, 6, 7, 8, 9, 2]
TEXTS = ["a cat sits on the mat", "a cat is sitting on a mat", "the price of oil has fallen"]
ROTATIONS = {"teacher-a": 100.0, "teacher-b": 3.0}
"""Service -> what differs in its model. The same tokens have other log-probabilities by each."""


class Mesh(NamedTuple):
    stack: RunningStack
    folder: Path
    """Has the models of the teachers, by service."""
    minilm: Path


def config(teacher: str) -> dict[str, Any]:
    return {**DECODER, "rope_theta": ROTATIONS[teacher]}


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    """A stack whose GPU holds one of the three models at a time."""
    check_torch()
    minilm = minilm_folder()
    with temporary_home() as root, TemporaryDirectory() as named:
        folder = Path(named)
        for teacher in ROTATIONS:
            (folder / teacher).mkdir()
            write_decoder(folder / teacher, config(teacher))
        common = {
            "backend": "torch", "api": "treadle", "memory_gb": {"awake": 16, "host": 1}, "min_residency_s": 0,
            "env": {"OMP_NUM_THREADS": "1"},
        }  # fmt: skip
        entries = {name: {**common, "model": str(folder / name)} for name in ROTATIONS}
        entries["minilm"] = {**common, "model": str(minilm)}
        declared = folder / "services.json"
        declared.write_text(json.dumps(entries))
        environ = {"GPU_MANAGER_DEVICES": '[{"memory_gb": 24}]', "GPU_MANAGER_SERVICES": str(declared)}
        with running_stack(root, services="proxy,scaling_planner,gpu_manager", environ=environ) as running:
            yield Mesh(running, folder, minilm)


@pytest.fixture
async def client(mesh: Mesh) -> AsyncIterator[AsyncTreadle]:
    async with AsyncTreadle(mesh.stack.urls["proxy"]) as client, asyncio.timeout(WAIT_S):
        yield client


async def run(
    client: AsyncTreadle, kind: Literal["model.logprob", "model.embed"], params: dict[str, Any]
) -> tuple[Any, float | None]:
    """Return the output and the score of an action."""
    answer = await client.run(kind, params, timeout_s=60, budget_s=WAIT_S)
    assert (answer.ended, answer.mask) == ("ok", False), answer
    return answer.output, answer.score


@pytest.mark.parametrize("start", [1, 4])
async def test_log_probabilities_are_those_of_the_named_teacher(client: AsyncTreadle, mesh: Mesh, start: int) -> None:
    params = [{"service": name, "tokens": TOKENS, "start": start} for name in ROTATIONS]
    answers = await asyncio.gather(*(run(client, "model.logprob", each) for each in params))
    expected = [expected_logprobs(mesh.folder / name, config(name), TOKENS, start) for name in ROTATIONS]
    assert np.abs(expected[0] - expected[1]).max() > 10 * TOLERANCE, "an answer of the other teacher is noticed"
    for (output, score), logprobs in zip(answers, expected, strict=True):
        assert output["tokens"] == TOKENS[start:]
        assert np.abs(np.array(output["logprobs"]) - logprobs).max() < TOLERANCE
        assert score == pytest.approx(logprobs.mean(), abs=TOLERANCE)


async def test_embeddings_and_similarities_are_those_of_the_encoder(client: AsyncTreadle, mesh: Mesh) -> None:
    rows = np.array([expected_embedding(mesh.minilm, text) for text in TEXTS])
    output, score = await run(client, "model.embed", {"service": "minilm", "texts": TEXTS})
    assert np.abs(np.array(output["embeddings"]) - rows).max() < TOLERANCE
    assert score is None, "embeddings have no score"
    pairs = [[TEXTS[0], TEXTS[1]], [TEXTS[0], TEXTS[2]]]
    output, _ = await run(client, "model.embed", {"service": "minilm", "pairs": pairs})
    expected = [
        float(rows[0] @ rows[other] / np.linalg.norm(rows[0]) / np.linalg.norm(rows[other])) for other in (1, 2)
    ]
    assert output["similarities"] == pytest.approx(expected, abs=TOLERANCE)
    _, score = await run(client, "model.embed", {"service": "minilm", "pairs": pairs[:1], "scale": 0.5})
    assert score == pytest.approx(0.5 * expected[0], abs=TOLERANCE)
