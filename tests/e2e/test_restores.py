"""Requests whose deadline comes while their model service is restored, at the public routes of a real mesh."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import pytest

from treadle.client.answers import Answer
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.requests import RewardRequest
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

ENGINE = Path(__file__).with_name("model_engine.py")
WAIT_S = 120
START_S = 6.0
"""Time of a restore of `slow`. No assertion depends on its exact value."""


def entry(model: str, *options: str) -> dict[str, Any]:
    command = [sys.executable, str(ENGINE), "--port", "{port}", "--model", "{model}", *options]
    return {"backend": "process", "model": model, "command": command, "memory_gb": {"awake": 16}, "min_residency_s": 0}


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    """A stack whose GPU holds one of two services, of which `slow` is restored slowly."""
    with temporary_home() as root, TemporaryDirectory() as folder:
        declared = Path(folder) / "services.json"
        entries = {"quick": entry("quick"), "slow": entry("slow", "--start-s", f"{START_S:g}")}
        declared.write_text(json.dumps(entries))
        environ = {"GPU_MANAGER_DEVICES": '[{"memory_gb": 24}]', "GPU_MANAGER_SERVICES": str(declared)}
        with running_stack(root, services="proxy,scaling_planner,gpu_manager", environ=environ) as running:
            yield running


@pytest.fixture
async def client(stack: RunningStack) -> AsyncIterator[AsyncTreadle]:
    """A client of a mesh that has measured a restore of `slow`, which is evicted again."""
    async with AsyncTreadle(stack.urls["proxy"]) as client, asyncio.timeout(WAIT_S):
        for service in ("slow", "quick"):
            answer = await client.run("model.judge", params(service), budget_s=WAIT_S)
            assert (answer.ended, answer.score) == ("ok", 1.0), answer
        yield client


def params(service: str) -> dict[str, Any]:
    return {
        "service": service,
        "messages": [{"role": "user", "content": "word"}],
        "score": {"regex": "counts ([0-9]+)"},
    }


def check_masked(answer: Answer) -> None:
    assert (answer.ended, answer.mask, answer.score, answer.passed) == ("expired", True, None, None), answer
    assert answer.retry_in_s is not None
    assert 1 <= answer.retry_in_s <= 2 * START_S
    assert answer.act is not None
    assert answer.act.restore_s > 0
    assert answer.act.queue_s + answer.act.execution_s + answer.act.restore_s <= answer.act.total_s


async def test_a_caller_that_waits_gets_503_and_a_time_after_which_a_repeat_succeeds(
    client: AsyncTreadle, stack: RunningStack
) -> None:
    body = {"kind": "model.judge", "params": params("slow"), "budget_s": 1.5}
    url = stack.urls["proxy"] + "/v1/actions"
    async with aiohttp.ClientSession() as http:
        async with http.post(url, params={"wait": "20"}, json={**body, "request_id": "first"}) as reply:
            assert (reply.status, reply.content_type) == (503, "application/problem+json")
            after_s, problem = int(reply.headers["retry-after"]), await reply.json(content_type=None)
        assert problem["type"].endswith("/not-resident")
        assert 1 <= after_s <= 2 * START_S
        check_masked(await client._transport.call(Answer, "GET", f"/v1/actions/{problem['answer']['id']}"))
        async with http.post(url, params={"wait": "20"}, json={**body, "request_id": "first"}) as reply:
            assert reply.status == 503, "a repeat has the same answer"
        await asyncio.sleep(after_s)
        again = {**body, "request_id": "second", "budget_s": 60}  # the restore has gone on
        async with http.post(url, params={"wait": "25"}, json=again) as reply:
            assert reply.status == 200, await reply.text()
            answer = await reply.json()
    assert (answer["ended"], answer["score"]) == ("ok", 1.0)


async def test_a_client_that_polls_gets_the_time_in_the_masked_answer(client: AsyncTreadle) -> None:
    check_masked(await client.run("model.judge", params("slow"), budget_s=1.5))


async def test_a_request_behind_the_one_that_waits_gets_the_time_too(client: AsyncTreadle) -> None:
    """One action at a time uses the engine, so the other ones wait in the mesh's queue."""
    answers = await asyncio.gather(*(client.run("model.judge", params("slow"), budget_s=2.5) for _ in range(3)))
    for answer in answers:
        assert (answer.ended, answer.mask) == ("expired", True), answer
        assert answer.retry_in_s is not None
        assert 1 <= answer.retry_in_s <= 2 * START_S


async def test_results_of_a_batch_have_the_time(client: AsyncTreadle) -> None:
    stage = {"name": "judge", "kind": "model.judge", "params": params("slow")}
    await client.put_task("judged", {"stages": [stage], "budget_s": 1.5})
    graded = await client.grade("judged", [RewardRequest(request_id="only")])
    check_masked(graded.answers["only"])
