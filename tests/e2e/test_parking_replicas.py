"""`kill -9` of the leader with parked actions: each continues under the next one, and is executed and answered once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.episodes import Trainer
from tests.e2e.replicas import Mesh, executions, leads, metric, running_mesh, until
from tests.e2e.test_parking import BURN, CORES, until_state
from treadle.client.asynchronous import AsyncTreadle
from treadle.testing.servers import running_valkey

PARKED = 6
LINE = f"echo x >> runs; {BURN.format(cpu_s=0.5, mark='')}; wc -l < runs"
"""Its output would be 2 if it were executed twice."""


@pytest.fixture
def mesh(stack_home: Path) -> Iterator[Mesh]:
    with ExitStack() as entered:
        url = entered.enter_context(running_valkey(stack_home))
        yield entered.enter_context(running_mesh(url, proxies=2, managers=1, cores=CORES))


async def begun(trainer: Trainer, line: str) -> str:
    """Return an action that runs, or will at once, in a new trajectory."""
    action = await trainer.submit(await trainer.open(memory_mb=64), line, timeout_s=60.0)
    await until_state(trainer, action, "granted")
    return action


async def test_parked_actions_and_those_that_wait_to_continue_outlive_the_leader(mesh: Mesh) -> None:
    leader, other = mesh.proxies
    async with aiohttp.ClientSession(other.url) as http, AsyncTreadle(other.url) as client:
        trainer = Trainer(http)
        actions = []
        for _ in range(PARKED):
            actions.append(await begun(trainer, LINE))
            await client.park(actions[-1], "a model call")
        await until(lambda: metric(leader, "treadle_proxy_parked_actions") == PARKED)
        busy = [await begun(trainer, "sleep 4; echo 1") for _ in range(CORES)]
        for action in actions[:2]:
            await client.resume(action)
        await asyncio.sleep(0.3)  # two wait to continue, and the leader knows it
        leader.kill()
        await client.resume(actions[2])  # there is no leader
        await until(lambda: leads(other))
        for action in actions[3:]:
            await client.resume(action)
        answers = [await until_state(trainer, action, "finished") for action in (*actions, *busy)]
    assert [(one["ended"], one["output"]["output"], one["stages"][0]["attempts"]) for one in answers] == [
        ("ok", "1\n", 1)
    ] * len(answers)
    assert all(one["stages"][0]["parked_s"] > 0 for one in answers[:PARKED])
    assert executions(mesh) == len(answers), "nothing ran twice"
    await until(lambda: metric(other, "treadle_proxy_parked_actions") == 0)  # a gauge is set once a tick
