"""Three model services on two described GPUs through a real mesh: each is loaded once, and wakes where it sleeps."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.e2e import held_vllm
from tests.e2e.test_model_services import check, judge
from tests.e2e.test_services_over_rest import until
from treadle.client.asynchronous import AsyncTreadle
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

ROOT = Path(__file__).parents[2]
WAIT_S = 150
HEARTBEAT_S = 0.2
SERVICES = ("a", "b", "c")


@pytest.fixture
def stack() -> Iterator[RunningStack]:
    """A stack whose GPUs have room for one awake engine each, beside two that sleep."""
    with temporary_home() as root, TemporaryDirectory() as control:
        command = [sys.executable, "-m", held_vllm.__name__, "--port", "{port}", "--model", "{model}"]
        common = {
            "backend": "vllm", "command": [*command, "--control", control], "env": {"PYTHONPATH": str(ROOT)},
            "memory_gb": {"awake": 16, "asleep": 1, "host": 1}, "min_residency_s": 0,
        }  # fmt: skip
        declared = Path(control) / "services.json"
        declared.write_text(json.dumps({name: {**common, "model": name} for name in SERVICES}))
        environ = {
            "GPU_MANAGER_DEVICES": '[{"memory_gb": 24}, {"memory_gb": 24}]',
            "GPU_MANAGER_SERVICES": str(declared),
            "GPU_MANAGER_HEARTBEAT_S": str(HEARTBEAT_S),
            "GPU_MANAGER_HOST_MEMORY_GB": "100",
        }
        with running_stack(root, services="proxy,gpu_manager", environ=environ) as running:
            yield running


@pytest.fixture
async def client(stack: RunningStack) -> AsyncIterator[AsyncTreadle]:
    async with AsyncTreadle(stack.urls["proxy"]) as client, asyncio.timeout(WAIT_S):
        yield client


async def test_services_that_take_turns_on_two_gpus_wake_where_they_sleep(client: AsyncTreadle) -> None:
    for words, name in enumerate("abcabcabc", 1):
        check(await judge(client, name, words), name, words)
        await until(client, name, lambda view: any(one.state == "resident" for one in view.engines))
        await asyncio.sleep(2 * HEARTBEAT_S)  # the leader reads the report
    engines = {view.name: view.engines for view in await client.model_services.all()}
    assert {name: [one.gpus for one in engines[name]] for name in SERVICES} == {"a": [[0]], "b": [[1]], "c": [[0]]}
    assert [list(engines[name][0].measured_s) for name in "ac"] == [
        ["restore cold", "evict asleep1", "restore asleep1"]
    ] * 2, "both were loaded once, and woken"
