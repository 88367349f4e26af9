"""A model service of a real mesh whose engine never listens, beside a healthy one on the same GPU."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest

from tests.shared.bus.soon import soon
from treadle.client.answers import Answer
from treadle.client.asynchronous import AsyncTreadle
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

ENGINE = Path(__file__).with_name("model_engine.py")
WAIT_S = 150
LEFT_S = 30
"""Less than `start_s`, which is ten minutes here."""


def entry(*command: str) -> dict[str, Any]:
    whole = [sys.executable, *command, "--port", "{port}"]
    return {"model": "m", "backend": "process", "command": whole, "memory_gb": {"awake": 8}}


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    with temporary_home() as root, TemporaryDirectory() as folder:
        declared = Path(folder) / "services.json"
        never = entry("-c", "import time; time.sleep(600)")
        declared.write_text(json.dumps({"healthy": entry(str(ENGINE), "--model", "m"), "never": never}))
        environ = {"GPU_MANAGER_DEVICES": '[{"memory_gb": 24}]', "GPU_MANAGER_SERVICES": str(declared)}
        with running_stack(root, services="proxy,scaling_planner,gpu_manager", environ=environ) as running:
            yield running


async def judge(client: AsyncTreadle, service: str, budget_s: float = WAIT_S) -> Answer:
    messages = [{"role": "user", "content": "one two three"}]
    params = {"service": service, "messages": messages, "score": {"regex": "counts ([0-9]+)"}}
    return await client.run("model.judge", params, budget_s=budget_s, timeout_s=min(budget_s, 20))


def is_loading() -> bool:
    """Return whether a process of the engine that never serves is left."""
    lines = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
    return any(line[1:3] == ["-c", "import time; time.sleep(600)"] for line in lines)


async def test_its_load_ends_when_its_caller_has_gone_and_another_service_is_called(stack: RunningStack) -> None:
    async with AsyncTreadle(stack.urls["proxy"]) as client, asyncio.timeout(WAIT_S):
        assert (await judge(client, "healthy")).score == 3
        assert (await judge(client, "never", budget_s=5.0)).ended == "expired"
        assert is_loading(), "nobody else needs its GPU"
        began_s = time.monotonic()
        answer = await judge(client, "healthy")
        assert (answer.ended, answer.score) == ("ok", 3), answer
        assert time.monotonic() - began_s < LEFT_S
        assert not is_loading()

        async def shown() -> tuple[str, str]:
            (engine,) = (await client.model_services.view("never")).engines
            return engine.state, engine.why

        async def is_cold() -> bool:
            return (await shown())[0] == "cold"

        await soon(is_cold)
        assert await shown() == ("cold", "its load is cancelled: a holder waits for healthy on GPU 0")
