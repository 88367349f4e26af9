"""Routers and Postgres are killed during recorded calls: no call is stored by half or twice, and no answered one lacks.

The engine writes down what it has sampled, and is the judge. Agents repeat a call that fails or breaks off.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from tests.e2e.processes import Service, running_service
from tests.e2e.replicas import until
from tests.e2e.test_router_replicas import is_ready
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.requests import TrajectoryRequest
from treadle.testing.scripted_engine import END, MODEL, SampledCall, ScriptedEngine, running_scripted_engine
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

TURNS = 15
AGENTS = 12
TOOL = {"type": "function", "function": {"name": "sh", "parameters": {"properties": {"command": {"type": "string"}}}}}


class Broken(Exception):
    """The call has failed, or its answer has broken off."""


@dataclass
class Agent:
    """An agent outside of a sandbox, at the addresses of several routers."""

    trajectory: str
    key: str
    random: random.Random
    messages: list[dict[str, Any]] = field(default_factory=list)
    answered: int = 0
    broken: int = 0

    async def run(self, http: aiohttp.ClientSession, routers: list[str]) -> None:
        self.messages.append({"role": "user", "content": f"Work for {self.trajectory}."})
        while self.answered < TURNS:
            try:
                message = await self._call(http, self.random.choice(routers))
            except (Broken, aiohttp.ClientError, TimeoutError):
                self.broken += 1
                await asyncio.sleep(0.1)
                continue
            self.answered += 1
            (call,) = message["tool_calls"]
            self.messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": f"done {self.answered}"}]

    async def _call(self, http: aiohttp.ClientSession, router: str) -> dict[str, Any]:
        stream = self.random.random() < 0.5
        body = {"model": MODEL, "messages": self.messages, "tools": [TOOL], "stream": stream}
        headers = {"authorization": f"Bearer {self.key}"}
        url = f"{router}/r/{self.trajectory}/v1/chat/completions"
        async with http.post(url, json=body, headers=headers) as response:
            text = await response.text()
            if response.status != 200:
                raise Broken(text)
        if not stream:
            message: dict[str, Any] = json.loads(text)["choices"][0]["message"]
            return message
        if not text.endswith("data: [DONE]\n\n"):
            raise Broken(text)
        (delta, *_) = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        message = delta["choices"][0]["delta"]
        return {**message, "content": None, "tool_calls": [_without_index(one) for one in message["tool_calls"]]}


def _without_index(call: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in call.items() if name != "index"}


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    settings = {"CPU_MANAGER_ENGINE": "none", "TRAJECTORY_ROUTER_LEASE_S": "1"}
    with temporary_home() as root, running_stack(root, environ=settings) as running:
        yield running


@pytest.fixture
def replica(stack: RunningStack) -> Iterator[Service]:
    """A second router of the stack's mesh, without a supervisor."""
    settings = {"TRAJECTORY_ROUTER_LEASE_S": "1", "TREADLE_DATABASE_URL": stack.database_url}
    with running_service("trajectory_router", stack.redis_url, **settings) as running:
        yield running


@asynccontextmanager
async def engine_of(stack: RunningStack) -> AsyncIterator[ScriptedEngine]:
    script = [f"echo {turn}" for turn in range(TURNS)]
    workers = stack.urls["trajectory_router"] + "/workers"
    async with running_scripted_engine(script, seconds=0.15) as engine, aiohttp.ClientSession() as http:
        async with http.post(workers, json={"url": engine.url}) as answer:
            assert answer.status == 202, await answer.text()
            worker = (await answer.json())["worker_id"]
        yield engine
        async with http.delete(f"{workers}/{worker}") as answer:
            assert answer.status == 202, await answer.text()


async def kill(stack: RunningStack, replica: Service, what: str, agents: Sequence[Agent]) -> None:
    """Kill a replica once, or a process of the stack three times: that comes back."""
    await asyncio.sleep(0.7)
    under_way = sum(agent.answered < TURNS for agent in agents)
    assert under_way == len(agents), "nothing was killed in time"
    if what == "replica":
        replica.kill()
        return
    for _ in range(3):
        pid = stack.kill(what)
        await asyncio.to_thread(stack.await_healthy, what, other_than=pid)
        await asyncio.sleep(0.3)


@pytest.mark.parametrize("killed", ["trajectory_router", "replica", "postgres"])
async def test_every_answered_call_is_recorded_once_and_whole(
    stack: RunningStack, replica: Service, killed: str
) -> None:
    await until(lambda: is_ready(replica))
    async with engine_of(stack) as engine, AsyncTreadle(stack.urls["proxy"]) as client, asyncio.timeout(150):
        agents = [await opened(client, number) for number in range(AGENTS)]
        routers = [stack.urls["trajectory_router"], replica.url]
        timeout = aiohttp.ClientTimeout(total=20)
        async with aiohttp.ClientSession(timeout=timeout) as http, asyncio.TaskGroup() as tasks:
            for agent in agents:
                tasks.create_task(agent.run(http, routers))
            tasks.create_task(kill(stack, replica, killed, agents))
        if killed != "postgres":  # its calls wait for it, and it may be back before the first of them fails
            assert sum(agent.broken for agent in agents) > 0
        for agent in agents:
            await check(client, engine, agent)


async def opened(client: AsyncTreadle, number: int) -> Agent:
    view = await client.trajectories.open(TrajectoryRequest(record="tokens"))
    assert view.model is not None
    return Agent(view.id, view.model.api_key, random.Random(f"{os.environ.get('SEED', '')}{number}"))


async def check(client: AsyncTreadle, engine: ScriptedEngine, agent: Agent) -> None:
    """Compare the record of one agent with what the engine has sampled for it."""
    sampled = [
        call for call in engine.log if agent.trajectory.encode() in bytes(id_ for id_ in call.prompt if id_ < END)
    ]
    rows, calls = (
        await client.trajectories.rows(agent.trajectory),
        await client.trajectories.model_calls(agent.trajectory),
    )
    whole = {tuple(call.prompt + call.output): call for call in sampled}
    assert {tuple(row.token_ids) for row in rows} <= set(whole), "a row is what the engine has sampled"
    longest = max(sampled, key=lambda call: len(call.prompt))
    assert tuple(longest.prompt + longest.output) in {tuple(row.token_ids) for row in rows}
    for row in rows:
        check_row(row.token_ids, row.loss_mask, row.logprobs, sampled)

    assert len({call.call for call in calls}) == len(calls) <= len(sampled)
    sizes = {(len(call.prompt), len(call.output)) for call in sampled}
    complete = [call for call in calls if call.status == "complete"]
    assert {(call.prompt_tokens, call.output_tokens) for call in complete} == sizes, "each turn was answered"
    assert sum(sum(row.loss_mask) for row in rows) == sum(call.output_tokens for call in complete)


def check_row(ids: list[int], mask: list[int], logprobs: list[float], sampled: list[SampledCall]) -> None:
    """Trained tokens are outputs of the engine, with its log-probabilities."""
    assert len(ids) == len(mask) == len(logprobs)
    expected = [0.0] * len(ids)
    for call in sampled:
        end = len(call.prompt) + len(call.output)
        if ids[:end] == call.prompt + call.output:
            expected[len(call.prompt) : end] = call.logprobs
    trained = [place for place, one in enumerate(mask) if one]
    assert [logprobs[place] for place in trained] == pytest.approx([expected[place] for place in trained], rel=1e-6)
    assert all(expected[place] for place in trained)
