"""Model services on one described GPU through a real mesh: real engines' processes, swapped in and out, and killed."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import psutil
import pytest

from tests.architecture.test_metric_names import METRICS
from treadle.client.answers import Answer
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.errors import NotFound
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

ENGINE = Path(__file__).with_name("model_engine.py")
SERVICES = ("small", "large", "shared")
WAIT_S = 120


def entry(model: str, **fields: Any) -> dict[str, Any]:
    command = [sys.executable, str(ENGINE), "--port", "{port}", "--model", "{model}", *fields.pop("options", ())]
    known = {"prompt": "2+2=", "expect": "4"}
    return {
        "backend": "process", "model": model, "command": command, "memory_gb": {"awake": 16}, "canary": known,
        "min_residency_s": 0.5, **fields,
    }  # fmt: skip


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    """A stack whose GPU holds one of the three services at a time."""
    with temporary_home() as root, TemporaryDirectory() as folder:
        declared = Path(folder) / "services.json"
        entries = {"small": entry("small"), "large": entry("large"), "shared": entry("shared", concurrency=4)}
        declared.write_text(json.dumps(entries))
        environ = {"GPU_MANAGER_DEVICES": '[{"memory_gb": 24}]', "GPU_MANAGER_SERVICES": str(declared)}
        services = "proxy,scaling_planner,gpu_manager"
        with running_stack(root, services=services, environ=environ) as running:
            yield running


@pytest.fixture
async def client(stack: RunningStack) -> AsyncIterator[AsyncTreadle]:
    async with AsyncTreadle(stack.urls["proxy"]) as client, asyncio.timeout(WAIT_S):
        yield client


async def judge(client: AsyncTreadle, service: str, words: int, **fields: Any) -> Answer:
    params = {
        "service": service,
        "messages": [{"role": "user", "content": " ".join(["word"] * words)}],
        "score": {"regex": "counts ([0-9]+)"},
    }
    return await client.run("model.judge", params, timeout_s=30, budget_s=WAIT_S, **fields)


def check(answer: Answer, service: str, words: int) -> None:
    """The right model has answered, and has answered this."""
    assert (answer.ended, answer.mask) == ("ok", False), answer
    assert answer.score == words
    assert answer.output is not None
    assert answer.output["text"] == f"{service} counts {words}"


def engines(model: str = "") -> list[psutil.Process]:
    """Return the engines of these services. Other test modules may run the same script at the same time."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if line[1:2] != [str(ENGINE)]:
            continue  # a hook of a released GPU has the script's path as an argument
        if line[line.index("--model") + 1] in ((model,) if model else SERVICES):
            found.append(process)
    return found


async def shown(stack: RunningStack, *options: str) -> str:
    """Return what `treadle services` prints."""
    command = [sys.executable, "-m", "treadle.cli.main", "services", "--url", stack.urls["proxy"], *options]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    return str(done.stdout)


async def many(client: AsyncTreadle, count: int, seed: int) -> list[str]:
    """Judge by random services at once; return their order of arrival."""
    rng = random.Random(seed)
    work = [(rng.choice(SERVICES), rng.randint(1, 30)) for _ in range(count)]
    answers = await asyncio.gather(*(judge(client, service, words) for service, words in work))
    for answer, (service, words) in zip(answers, work, strict=True):
        check(answer, service, words)
    return [service for service, _ in work]


async def evictions(stack: RunningStack) -> float:
    async with aiohttp.ClientSession() as http, http.get(stack.urls["gpu_manager"] + "/metrics") as response:
        text = await response.text()
    return sum(map(float, re.findall(r"^treadle_gpu_manager_evictions_total{.*} ([0-9.]+)$", text, re.MULTILINE)))


async def test_each_service_answers_although_the_gpu_holds_one(client: AsyncTreadle, stack: RunningStack) -> None:
    order = await many(client, 60, seed=1)
    assert len(engines()) == 1, "the memory of one GPU is one engine's"
    views = await client.model_services.all()
    assert {view.name for view in views} == set(SERVICES)
    resident = [one for view in views for one in view.engines if one.state in ("resident", "running")]
    assert [one.gpus for one in resident] == [[0]]
    loads = sum(one.measured_s.get("restore cold", 0.0) > 0 for view in views for one in view.engines)
    assert loads == 3, "each was started"
    swaps = len(list(itertools.groupby(order))) - 1
    assert 2 <= await evictions(stack) < swaps / 2, "requests of one service are batched before a swap"


async def test_a_killed_engine_costs_time_and_no_answer(client: AsyncTreadle) -> None:
    running = asyncio.create_task(many(client, 60, seed=2))
    for _ in range(4):
        await asyncio.sleep(0.7)
        for process in engines():
            process.kill()
    await running


async def test_a_killed_manager_costs_no_answer_and_no_load(client: AsyncTreadle, stack: RunningStack) -> None:
    await judge(client, "small", 1)
    (engine,) = engines()
    killed = stack.kill("gpu_manager")
    await asyncio.to_thread(stack.await_healthy, "gpu_manager", other_than=killed)
    check(await judge(client, "small", 5), "small", 5)
    assert engines() == [engine], "the next manager has adopted it"
    view = await client.model_services.view("small")
    assert all("restore cold" not in one.measured_s for one in view.engines), "nothing was loaded"


async def test_a_manager_killed_under_load_costs_time_and_no_answer(client: AsyncTreadle, stack: RunningStack) -> None:
    running = asyncio.create_task(many(client, 60, seed=3))
    for _ in range(3):
        await asyncio.sleep(1.0)
        killed = stack.kill("gpu_manager")
        await asyncio.to_thread(stack.await_healthy, "gpu_manager", other_than=killed)
    await running
    assert len(engines()) == 1, "the memory of one GPU is one engine's"


async def test_an_unknown_service_waits_and_says_so(client: AsyncTreadle) -> None:
    answer = await client.run("model.judge", {
        "service": "nobody", "messages": [{"role": "user", "content": "x"}], "score": {"regex": "([0-9])"},
    }, timeout_s=5, budget_s=3)  # fmt: skip
    assert (answer.ended, answer.mask) == ("expired", True)
    with pytest.raises(NotFound, match="nobody"):
        await client.model_services.view("nobody")


async def test_a_judgement_without_a_score_is_masked(client: AsyncTreadle) -> None:
    params = {
        "service": "small", "messages": [{"role": "user", "content": "x"}], "score": {"regex": "mark: ([0-9])"},
        "attempts": 2,
    }  # fmt: skip
    answer = await client.run("model.judge", params, timeout_s=30)
    assert (answer.ended, answer.mask, answer.score) == ("upstream-failed", True, None)


async def test_services_are_shown(client: AsyncTreadle, stack: RunningStack) -> None:
    await judge(client, "large", 3)
    view = await client.model_services.view("large")
    assert (view.backend, view.concurrency, view.degrees) == ("process", 1, [1])
    assert len(engines("large")) == 1
    table = await shown(stack, "ls")
    assert "large" in table
    assert "resident" in table or "running" in table
    views = json.loads(await shown(stack, "ls", "--json"))["services"]
    assert {one["name"] for one in views} == set(SERVICES)


async def test_metrics_are_those_of_the_list(stack: RunningStack) -> None:
    async with aiohttp.ClientSession() as http, http.get(stack.urls["gpu_manager"] + "/metrics") as response:
        served = set(re.findall(r"^# TYPE (treadle_\w+) \w+$", await response.text(), re.MULTILINE))
    assert {name for name in served if not name.endswith("_created")} == METRICS["gpu_manager"]


def test_a_stopped_stack_leaves_no_engine() -> None:
    with temporary_home() as root, TemporaryDirectory() as folder:
        declared = Path(folder) / "services.json"
        declared.write_text(json.dumps({"last": entry("last")}))
        environ = {"GPU_MANAGER_DEVICES": '[{"memory_gb": 24}]', "GPU_MANAGER_SERVICES": str(declared)}
        services = "proxy,gpu_manager"
        with running_stack(root, services=services, environ=environ) as running:

            async def one() -> None:
                async with AsyncTreadle(running.urls["proxy"]) as client:
                    check(await judge(client, "last", 2), "last", 2)

            asyncio.run(one())
            assert len(engines("last")) == 1
    assert not engines("last")


async def test_a_killed_supervisor_leaves_no_engine_after_down() -> None:
    with temporary_home() as root, TemporaryDirectory() as folder:
        declared = Path(folder) / "services.json"
        declared.write_text(json.dumps({"left": entry("left")}))
        environ = {"GPU_MANAGER_DEVICES": '[{"memory_gb": 24}]', "GPU_MANAGER_SERVICES": str(declared)}
        with running_stack(root, services="proxy,scaling_planner,gpu_manager", environ=environ) as running:
            async with AsyncTreadle(running.urls["proxy"]) as client:
                check(await judge(client, "left", 2), "left", 2)
            running.supervisor.kill()
            await asyncio.to_thread(running.supervisor.wait)
            assert len(engines("left")) == 1
        assert not engines("left")  # the end of the block is `treadle down`
