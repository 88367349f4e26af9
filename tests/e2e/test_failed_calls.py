"""An engine of a real mesh that answers calls by 500: the attempts of an action have pauses between them."""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from treadle.client.answers import Answer
from treadle.client.asynchronous import AsyncTreadle
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

ENGINE = Path(__file__).with_name("model_engine.py")
WAIT_S = 120
ACTIONS = 8
TOGETHER_S = 0.05


class Mesh(NamedTuple):
    stack: RunningStack
    fails: Path
    """While it exists, the engine answers by 500, and writes the times of its calls there."""


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with temporary_home() as root, TemporaryDirectory() as folder:
        fails, declared = Path(folder) / "calls", Path(folder) / "services.json"
        command = [sys.executable, str(ENGINE), "--port", "{port}", "--model", "m", "--fails", str(fails)]
        entry = {"model": "m", "backend": "process", "command": command, "memory_gb": {"awake": 8}, "concurrency": 8}
        declared.write_text(json.dumps({"judge": entry}))
        environ = {"GPU_MANAGER_DEVICES": '[{"memory_gb": 24}]', "GPU_MANAGER_SERVICES": str(declared)}
        with running_stack(root, services="proxy,gpu_manager", environ=environ) as running:
            yield Mesh(running, fails)


@pytest.fixture
async def client(mesh: Mesh) -> AsyncIterator[AsyncTreadle]:
    async with AsyncTreadle(mesh.stack.urls["proxy"]) as client, asyncio.timeout(WAIT_S):
        yield client


async def judge(client: AsyncTreadle, budget_s: float) -> Answer:
    messages = [{"role": "user", "content": "one two three"}]
    params = {"service": "judge", "messages": messages, "score": {"regex": "counts ([0-9]+)"}}
    return await client.run("model.judge", params, budget_s=budget_s, timeout_s=min(10.0, budget_s))


async def test_attempts_after_500_have_pauses_and_do_not_come_back_together(mesh: Mesh, client: AsyncTreadle) -> None:
    assert (await judge(client, 60.0)).score == 3
    mesh.fails.touch()
    answers = await asyncio.gather(*(judge(client, 60.0) for _ in range(ACTIONS)))
    times = sorted(map(float, mesh.fails.read_text().split()))
    mesh.fails.unlink()
    assert {answer.ended for answer in answers} == {"sandbox-lost"}
    assert {answer.reason for answer in answers} == {"the engine answered 500: its kernel failed; 3 attempts"}
    assert len(times) == 3 * ACTIONS
    assert times[-1] - times[0] > 0.5, "all attempts at once"
    gaps = [later - earlier for earlier, later in itertools.pairwise(times[ACTIONS:])]
    assert sum(gap > TOGETHER_S for gap in gaps) >= 3, "the repeats came back together"
    assert (await judge(client, 60.0)).score == 3


async def test_an_engine_that_recovers_during_the_pauses_serves_the_action(mesh: Mesh, client: AsyncTreadle) -> None:
    mesh.fails.touch()
    running = [asyncio.create_task(judge(client, 60.0)) for _ in range(ACTIONS)]
    while not mesh.fails.stat().st_size:  # noqa: ASYNC110  # another process writes it
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    mesh.fails.unlink()
    assert "ok" in {answer.ended for answer in await asyncio.gather(*running)}


async def test_the_pauses_end_before_the_deadline(mesh: Mesh, client: AsyncTreadle) -> None:
    mesh.fails.touch()
    answer = await judge(client, 2.0)
    mesh.fails.unlink()
    assert (answer.ended, answer.reason) == ("sandbox-lost", "the engine answered 500: its kernel failed; 3 attempts")
