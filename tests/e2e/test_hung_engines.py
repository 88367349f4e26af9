"""Engines of a real mesh whose processes are stopped by SIGSTOP: they listen, and answer nothing."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import psutil
import pytest

from treadle.client.answers import Answer
from treadle.client.asynchronous import AsyncTreadle
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

ENGINE = Path(__file__).with_name("model_engine.py")
VLLM = Path(__file__).parents[1] / "services/gpu_manager/backends/vllm_server.py"
WAIT_S = 150
HUNG_AFTER_S = 2


def entry(model: str, command: list[str], **fields: Any) -> dict[str, Any]:
    canary = {"prompt": "2+2=", "expect": "4"}
    whole = [sys.executable, *command, "--port", "{port}"]
    return {"model": model, "command": whole, "memory_gb": {"awake": 16}, "concurrency": 3, "canary": canary, **fields}


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    with temporary_home() as root, TemporaryDirectory() as folder:
        declared = Path(folder) / "services.json"
        slow = [str(ENGINE), "--model", "slow", "--answer-s", "12"]
        entries = {
            "plain": entry("plain", [str(ENGINE), "--model", "plain"], backend="process"),
            "slow": entry("slow", slow, backend="process"),
            "sleeper": entry("sleeper", [str(VLLM)], backend="vllm", canary=None),
        }
        declared.write_text(json.dumps(entries))
        environ = {
            "GPU_MANAGER_DEVICES": json.dumps([{"memory_gb": 24}] * 3),
            "GPU_MANAGER_SERVICES": str(declared),
            "GPU_MANAGER_HUNG_AFTER_S": str(HUNG_AFTER_S),
            "GPU_MANAGER_PUBLISH_ADDRESSES": "true",
        }
        with running_stack(root, services="proxy,scaling_planner,gpu_manager", environ=environ) as running:
            yield running


@pytest.fixture
async def client(stack: RunningStack) -> AsyncIterator[AsyncTreadle]:
    async with AsyncTreadle(stack.urls["proxy"]) as client, asyncio.timeout(WAIT_S):
        yield client


async def judge(client: AsyncTreadle, service: str, regex: str = "counts ([0-9]+)", **fields: Any) -> Answer:
    messages = [{"role": "user", "content": "one two three"}]
    params = {"service": service, "messages": messages, "score": {"regex": regex}}
    return await client.run("model.judge", params, budget_s=WAIT_S, **{"timeout_s": WAIT_S, **fields})


def engine_of(script: Path, model: str = "") -> psutil.Process:
    """Return the process of a service's engine; its guard has another command."""
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if line[1:2] == [str(script)] and (not model or line[line.index("--model") + 1] == model):
            return process
    raise AssertionError(f"no engine of {script.name} runs")


async def test_actions_of_a_stopped_process_are_executed_again_by_another_one(client: AsyncTreadle) -> None:
    assert (await judge(client, "plain")).score == 3
    stopped = engine_of(ENGINE, "plain")
    stopped.suspend()
    answers = await asyncio.gather(*(judge(client, "plain") for _ in range(3)))
    for answer in answers:
        assert (answer.ended, answer.score, answer.stages[0].attempts) == ("ok", 3, 2), answer
    assert not stopped.is_running()
    view = await client.model_services.view("plain")
    (engine,) = view.engines
    assert engine.state in ("resident", "running")


async def test_a_stopped_vllm_is_replaced(client: AsyncTreadle) -> None:
    first = await judge(client, "sleeper", "([0-9])")
    assert (first.ended, first.score) == ("ok", 4)
    stopped = engine_of(VLLM)
    stopped.suspend()
    again = await judge(client, "sleeper", "([0-9])")
    assert (again.ended, again.score, again.stages[0].attempts) == ("ok", 4, 2)
    assert not stopped.is_running()


async def directly(url: str) -> str:
    body = {"messages": [{"role": "user", "content": "one two"}]}
    async with aiohttp.ClientSession() as http, http.post(f"{url}/v1/chat/completions", json=body) as reply:
        return str((await reply.json())["choices"][0]["message"]["content"])


async def test_a_caller_without_the_mesh_follows_a_service_to_its_new_address(client: AsyncTreadle) -> None:
    await judge(client, "plain")
    url = await client.model_services.address("plain")
    assert await directly(url) == "plain counts 2"
    killed = engine_of(ENGINE, "plain")
    killed.kill()
    psutil.wait_procs([killed], timeout=10)  # it answers until the signal has arrived
    with pytest.raises(aiohttp.ClientError):
        await directly(url)
    following = asyncio.create_task(followed(client, "plain"))
    await judge(client, "plain")  # an action makes it resident again
    assert await following == "plain counts 2"
    leased = [one for one in (await client.model_services.view("plain")).engines if one.address]
    assert leased
    assert all(one.lease_until is not None and one.lease_until > time.time() for one in leased)


async def followed(client: AsyncTreadle, service: str) -> str:
    """Call an engine at its newest address until it answers. The page may be older than the end of the last one."""
    while True:
        with suppress(aiohttp.ClientError):
            return await directly(await client.model_services.address(service))
        await asyncio.sleep(0.1)


async def test_a_slow_engine_that_can_be_read_is_left_at_work(client: AsyncTreadle) -> None:
    answer = await judge(client, "slow")
    assert (answer.ended, answer.score, answer.stages[0].attempts) == ("ok", 3, 1), answer
