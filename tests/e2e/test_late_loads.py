"""A model service of a real mesh that never becomes healthy while its callers wait, and another one of the same GPU."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import pytest

from tests.shared.bus.soon import soon
from treadle.client.answers import Answer
from treadle.client.asynchronous import AsyncTreadle
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

ENGINE = Path(__file__).with_name("model_engine.py")
WAIT_S = 150
BROKEN_S = 90.0
"""Budget of the calls of the broken service. The limit of its start is ten minutes. Its load is late after `MAX_WAIT_S`
or twice its measured time, which is some seconds on a slow machine.
"""
MAX_WAIT_S = 3.0


def entry(model: str, *options: str) -> dict[str, Any]:
    command = [sys.executable, str(ENGINE), "--port", "{port}", "--model", "{model}", *options]
    memory = {"awake": 16}  # two of them do not fit on the GPU
    return {"backend": "process", "model": model, "command": command, "memory_gb": memory, "min_residency_s": 0}


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    with temporary_home() as root, TemporaryDirectory() as folder:
        declared = Path(folder) / "services.json"
        broken = entry("broken", "--serves-once", str(Path(folder) / "served"))
        declared.write_text(json.dumps({"good": entry("good"), "broken": broken}))
        environ = {
            "GPU_MANAGER_DEVICES": '[{"memory_gb": 24}]',
            "GPU_MANAGER_SERVICES": str(declared),
            "GPU_MANAGER_MAX_WAIT_S": str(MAX_WAIT_S),
        }
        with running_stack(root, services="proxy,scaling_planner,gpu_manager", environ=environ) as running:
            yield running


async def judge(client: AsyncTreadle, service: str, budget_s: float = WAIT_S) -> Answer:
    messages = [{"role": "user", "content": "one two three"}]
    params = {"service": service, "messages": messages, "score": {"regex": "counts ([0-9]+)"}}
    return await client.run("model.judge", params, budget_s=budget_s, timeout_s=20)


async def is_loading(client: AsyncTreadle) -> bool:
    return [one.state for one in (await client.model_services.view("broken")).engines] == ["loading"]


async def answered(stack: RunningStack) -> float:
    """Return the number of answers of the leader."""
    async with aiohttp.ClientSession() as http, http.get(stack.urls["proxy"] + "/metrics") as response:
        text = await response.text()
    return sum(map(float, re.findall(r"^treadle_proxy_answered_total{.*} ([0-9.e+]+)$", text, re.MULTILINE)))


async def test_a_load_that_never_ends_does_not_keep_the_gpu_from_others_while_its_callers_wait(
    stack: RunningStack,
) -> None:
    async with AsyncTreadle(stack.urls["proxy"]) as client, asyncio.timeout(WAIT_S):
        for service in ("broken", "good"):  # so a load of `broken` has a measured time
            assert (await judge(client, service)).score == 3
        before = await answered(stack)
        broken = [asyncio.create_task(judge(client, "broken", BROKEN_S)) for _ in range(3)]
        await soon(lambda: is_loading(client))
        good = await asyncio.gather(*(judge(client, "good") for _ in range(3)))
        assert [(one.ended, one.score) for one in good] == [("ok", 3)] * 3
        assert not any(one.done() for one in broken), "the good ones did not wait for their deadline"
        (engine,) = (await client.model_services.view("broken")).engines
        assert engine.state == "quarantined"
        for answer in await asyncio.gather(*broken):
            assert (answer.ended, answer.mask, answer.score) == ("expired", True, None), answer
            assert answer.reason.startswith("its deadline "), "it waits for the engine, in the queue, or in between"
            assert answer.act is not None
            assert answer.act.total_s < BROKEN_S + 5
        assert await answered(stack) - before == len(good) + len(broken), "each is answered once"
        assert (await judge(client, "good")).score == 3
