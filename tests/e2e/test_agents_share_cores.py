"""Many agents on few cores: each is one long action, and holds a core only while it computes (ADR 0067)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from tests.e2e.episodes import OneNodeMesh, Trainer, running_one_node_mesh, trainer_of
from tests.e2e.processes import Service, running_service
from tests.e2e.replicas import metric, until
from tests.e2e.test_models_of_environments import forwarders
from tests.e2e.test_parking import until_state
from tests.e2e.test_router_replicas import is_ready
from tests.services.cpu_manager.environments.models import CALL
from tests.services.trajectory_router.engine import Engine, running_engine
from treadle.client.asynchronous import AsyncTreadle

CORES = 2
AGENTS = 64
TURNS = 3
AGENT = f"""{CALL}
import time
for turn in range({TURNS}):
    begun = time.process_time()
    while time.process_time() < begun + 0.02: pass
    answer = openai(stream=bool(int(sys.argv[1]) % 2)).read()
print(len(answer) > 0)
"""


@pytest.fixture
def mesh() -> Iterator[OneNodeMesh]:
    with running_one_node_mesh(CPU_MANAGER_MEMORY_MB="8192", CPU_MANAGER_CORES=str(CORES)) as running:
        yield running


@pytest.fixture
async def engine(mesh: OneNodeMesh) -> AsyncIterator[Engine]:
    """An engine that answers when its gate is opened."""
    with running_service("trajectory_router", mesh.redis_url) as router:
        await until(lambda: is_ready(router))
        async with running_engine("e") as engine:
            engine.gate = asyncio.Event()
            await register(router, engine)
            yield engine


async def register(router: Service, engine: Engine) -> None:
    body = {"url": engine.url, "most_calls": 2 * AGENTS}
    async with aiohttp.ClientSession(router.url) as http, http.post("/workers", json=body) as response:
        assert response.status == 202, await response.text()


def answer_all(engine: Engine) -> None:
    """Answer the calls that wait, and none of the next ones."""
    assert engine.gate is not None
    gate, engine.gate = engine.gate, asyncio.Event()
    gate.set()


async def agent(trainer: Trainer, number: int) -> str:
    """Start an agent in an environment of its own, and return its action."""
    trajectory = await trainer.open(memory_mb=64, model=True)
    await trainer.act(trajectory, "env.write", {"path": "agent.py", "content": AGENT})
    return await trainer.submit(trajectory, f"python3 agent.py {number}", timeout_s=600.0)


async def calls(engine: Engine, count: int) -> None:
    """Wait until the engine has received this number of calls in all."""
    while len(engine.received) < count:  # noqa: ASYNC110  # agents are other processes
        await asyncio.sleep(0.02)


async def test_64_agents_on_two_cores_are_in_their_calls_at_once(mesh: OneNodeMesh, engine: Engine) -> None:
    """The engine answers no call of a turn before all agents call. With a core each, two would, and wait for ever."""
    async with trainer_of(mesh) as trainer, asyncio.timeout(300):
        actions = [await agent(trainer, number) for number in range(AGENTS)]
        for turn in range(1, TURNS + 1):
            await calls(engine, AGENTS * turn)
            for action in actions:
                await until_state(trainer, action, "parked")
            await trainer.until_used(cores=0)
            answer_all(engine)
        answers = [await until_state(trainer, action, "finished") for action in actions]
    assert [(one["ended"], one["output"]["output"], one["stages"][0]["attempts"]) for one in answers] == [
        ("ok", "True\n", 1)
    ] * AGENTS
    assert len(engine.received) == AGENTS * TURNS, "no call is repeated"
    assert mesh.manager is not None
    assert metric(mesh.manager, "treadle_cpu_manager_model_wait_seconds_count") >= AGENTS * TURNS


async def test_what_a_trainer_parks_continues_when_the_trainer_says_so(mesh: OneNodeMesh, engine: Engine) -> None:
    async with trainer_of(mesh) as trainer, AsyncTreadle(mesh.proxy.url) as client, asyncio.timeout(120):
        action = await agent(trainer, 0)
        for turn in range(TURNS):
            await calls(engine, turn + 1)
            state = await until_state(trainer, action, "parked")
            assert state["reason"] == "its model answers"
            if turn == 0:
                await client.park(action, "a quota")
            answer_all(engine)
            if turn == 0:
                await asyncio.sleep(0.5)
                assert (await trainer.state(action))["reason"] == "a quota"
                await client.resume(action)
        assert (await until_state(trainer, action, "finished"))["ended"] == "ok"


async def test_an_agent_whose_forwarder_is_killed_continues(mesh: OneNodeMesh, engine: Engine) -> None:
    """It sees a broken connection, as it would of any server, and ends by itself."""
    assert mesh.manager is not None
    async with trainer_of(mesh) as trainer, asyncio.timeout(120):
        action = await agent(trainer, 0)
        await until_state(trainer, action, "parked")
        (forwarder,) = forwarders(mesh.manager.process.pid)
        os.kill(forwarder, signal.SIGKILL)
        answer: dict[str, Any] = await until_state(trainer, action, "finished")
        assert (answer["ended"], answer["passed"]) == ("ok", False), answer
