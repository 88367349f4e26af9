"""An engine of a real mesh that has more memory than it declares, beside engines that have what they declare."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from treadle.client.answers import Answer
from treadle.client.asynchronous import AsyncTreadle
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

ENGINE = Path(__file__).with_name("model_engine.py")
WAIT_S = 120


def entry(name: str, awake_gb: float, memory_mb: int = 0) -> dict[str, Any]:
    command = [sys.executable, str(ENGINE), "--port", "{port}", "--model", "{model}", "--memory-mb", str(memory_mb)]
    canary = {"prompt": "2+2=", "expect": "4"}
    memory = {"awake": awake_gb}
    return {"model": name, "backend": "process", "command": command, "memory_gb": memory, "canary": canary,
            "min_residency_s": 0}  # fmt: skip


@pytest.fixture
def stack() -> Iterator[RunningStack]:
    """A stack whose GPU has room for all three services by their declarations."""
    with temporary_home() as root, TemporaryDirectory() as folder:
        declared = Path(folder) / "services.json"
        entries = {"small": entry("small", 0.2), "hog": entry("hog", 0.2, 600), "large": entry("large", 0.6)}
        declared.write_text(json.dumps(entries))
        environ = {"GPU_MANAGER_DEVICES": '[{"memory_gb": 1}]', "GPU_MANAGER_SERVICES": str(declared)}
        with running_stack(root, services="proxy,gpu_manager", environ=environ) as running:
            yield running


async def judge(client: AsyncTreadle, service: str) -> Answer:
    messages = [{"role": "user", "content": "one two three"}]
    params = {"service": service, "messages": messages, "score": {"regex": "counts ([0-9]+)"}}
    return await client.run("model.judge", params, budget_s=20, timeout_s=10)


async def test_it_is_stopped_for_an_engine_that_finds_no_memory_and_no_other_is(stack: RunningStack) -> None:
    async with AsyncTreadle(stack.urls["proxy"]) as client, asyncio.timeout(WAIT_S):
        for service in ("small", "hog", "large"):  # the small one is the least recently used
            answer = await judge(client, service)
            assert (answer.ended, answer.score) == ("ok", 3), answer
        found = {one.name: (one.state, one.why) for one in await client.model_services.all()}
        assert {found["small"][0], found["large"][0]} <= {"resident", "running"}, found
        assert found["hog"][0] == "cold"
        assert "out of memory: hog declares 0.2 GB, and uses 0.6 GB; GPU 0 has 1.0 GB, and large" in found["hog"][1]

        await judge(client, "hog")  # it may be loaded beside them by its declaration, and is stopped again
        for service in ("small", "large"):
            answer = await judge(client, service)
            assert (answer.ended, answer.score) == ("ok", 3), answer
