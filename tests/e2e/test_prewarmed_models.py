"""A batch that is announced restores its model before its first request, on GPUs that were given away before."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.e2e.test_model_services import ENGINE, entry
from tests.e2e.test_released_gpus import HOOK
from tests.services.gpu_manager.torch_server.installed import check_torch, minilm_folder
from tests.shared.bus.soon import soon
from treadle.client.answers import Answer
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.requests import RewardRequest
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

WAIT_S = 120
START_S = 3.0


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[RunningStack, Path]]:
    check_torch()
    minilm = minilm_folder()
    with temporary_home() as root, TemporaryDirectory() as named:
        folder = Path(named)
        declared = folder / "services.json"
        known = {"path": "/v1/embed", "body": {"pairs": [["a", "a"]]}, "pointer": "/similarities/0", "expect": 1.0}
        real = {
            "backend": "torch", "api": "treadle", "model": str(minilm), "memory_gb": {"awake": 4, "host": 1},
            "canary": known, "env": {"OMP_NUM_THREADS": "1"},
        }  # fmt: skip
        slow = entry("slow", options=["--start-s", str(START_S)])
        declared.write_text(json.dumps({"minilm": real, "slow": slow}))
        hook = json.dumps([sys.executable, str(HOOK), named, str(ENGINE)])
        environ = {
            "GPU_MANAGER_DEVICES": '[{"memory_gb": 24}, {"memory_gb": 24}]',
            "GPU_MANAGER_SERVICES": str(declared),
            "GPU_MANAGER_ON_RELEASE": hook,
            "GPU_MANAGER_ON_ACQUIRE": hook,
            "GPU_MANAGER_RELEASE_AFTER_S": "1",
        }
        with running_stack(root, services="proxy,scaling_planner,gpu_manager", environ=environ) as stack:
            yield stack, folder


@pytest.fixture
async def client(running: tuple[RunningStack, Path]) -> AsyncIterator[AsyncTreadle]:
    """Return a client, when all GPUs are given away and no engine runs."""
    async with AsyncTreadle(running[0].urls["proxy"]) as client, asyncio.timeout(WAIT_S):

        async def away() -> bool:
            found = await client.model_services.overview()
            return {one.ownership for one in found.gpus} == {"released"}

        await soon(away, within_s=WAIT_S)
        yield client


async def is_resident(client: AsyncTreadle, service: str) -> None:
    async def there() -> bool:
        view = await client.model_services.view(service)
        return any(one.state == "resident" for one in view.engines)

    await soon(there, within_s=WAIT_S)


async def first_answer(client: AsyncTreadle, batch: str, params: dict[str, Any]) -> Answer:
    """Send the first request of a batch, which has one request, and return its answer."""
    await client.submit(batch, [RewardRequest(batch=batch, request_id="r0", params=params)])
    (result,) = [result async for page in client.results(batch) for result in page]
    return result


async def test_a_hint_loads_a_real_model_before_the_first_request(
    client: AsyncTreadle, running: tuple[RunningStack, Path]
) -> None:
    stage = {"name": "near", "kind": "model.embed", "params": {"service": "minilm"}}
    await client.put_task("near", {"stages": [stage]})
    batch = await client.open_batch("near", size=1)
    await is_resident(client, "minilm")
    calls = [json.loads(line) for line in (running[1] / "calls").read_text().splitlines()]
    assert calls[-1]["event"] == "acquire", "its GPU had been given away"
    params = {"pairs": [["a cat sits on the mat", "a cat is sitting on a mat"]]}
    answer = await first_answer(client, batch.id, params)
    assert answer.ended == "ok", answer
    assert answer.score is not None
    assert answer.score > 0.9
    (loaded,) = [one for one in (await client.model_services.view("minilm")).engines if one.state != "cold"]
    assert answer.stages[0].restore_s < loaded.measured_s["restore cold"], "it waited for no load"


async def test_a_hint_restores_the_model_so_that_the_first_request_waits_for_no_load(client: AsyncTreadle) -> None:
    judged = {
        "service": "slow",
        "messages": [{"role": "user", "content": "one two three"}],
        "score": {"regex": "counts ([0-9]+)"},
    }
    await client.put_task("judged", {"stages": [{"name": "judge", "kind": "model.judge", "params": judged}]})
    batch = await client.open_batch("judged", size=1)
    await is_resident(client, "slow")
    view = await client.model_services.view("slow")
    (engine,) = [one for one in view.engines if one.state == "resident"]
    answer = await first_answer(client, batch.id, {})
    assert (answer.ended, answer.score) == ("ok", 3.0)
    assert engine.measured_s["restore cold"] >= START_S
    assert answer.stages[0].restore_s < START_S, "it waited for no load"
    (after,) = [
        one for one in (await client.model_services.view("slow")).engines if one.state in ("resident", "running")
    ]
    assert after.gpus == engine.gpus, "the leader has granted it the chunk that holds its model"
