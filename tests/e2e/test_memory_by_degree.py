"""A model service whose engines need less memory of each GPU at a higher degree, through a real mesh."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.e2e.test_model_services import check, entry, judge
from tests.e2e.test_services_over_rest import applied, command, until
from treadle.client.answers import EngineView
from treadle.client.asynchronous import AsyncTreadle
from treadle.client.errors import BadRequest
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

WAIT_S = 120
MEMORY = {"awake": {"1": 30, "2": 12}, "asleep": 0}
"""One of degree 1 has no room on a GPU of 24 GB."""


@pytest.fixture
def stack() -> Iterator[RunningStack]:
    """A stack with two GPUs of 24 GB and one service in its file."""
    with temporary_home() as root, TemporaryDirectory() as folder:
        declared = Path(folder) / "services.json"
        declared.write_text(json.dumps({"beside": entry("beside", memory_gb={"awake": 10})}))
        environ = {
            "GPU_MANAGER_DEVICES": '[{"memory_gb": 24}, {"memory_gb": 24}]',
            "GPU_MANAGER_SERVICES": str(declared),
            "GPU_MANAGER_HEARTBEAT_S": "0.3",
            "GPU_MANAGER_ALLOW_COMMANDS": "true",
        }
        with running_stack(root, services="proxy,gpu_manager", environ=environ) as running:
            yield running


@pytest.fixture
async def client(stack: RunningStack) -> AsyncIterator[AsyncTreadle]:
    async with AsyncTreadle(stack.urls["proxy"]) as client, asyncio.timeout(WAIT_S):
        yield client


async def idle_engine(client: AsyncTreadle, name: str) -> EngineView:
    """Return the only engine of a service when it is resident and idle."""
    view = await until(client, name, lambda view: [one.state for one in view.engines] == ["resident"])
    return view.engines[0]


async def test_an_engine_on_two_gpus_has_room_beside_another(client: AsyncTreadle, stack: RunningStack) -> None:
    with pytest.raises(BadRequest, match=r'memory_gb\.awake: degree 2 has none; add "2"'):
        await client.model_services.set("split", entry("split", degrees=[1, 2], memory_gb={"awake": {"1": 30}}))
    await client.model_services.set("split", entry("split", degrees=[1, 2], memory_gb=MEMORY))
    view = await applied(client, "split")
    by_degree = {"1": {"awake": 30.0, "asleep": 0.0}, "2": {"awake": 12.0, "asleep": 0.0}}
    assert (view.problems, view.awake_gb) == ([], 30.0)
    assert view.entry is not None
    assert view.entry.memory_gb_by_degree == by_degree
    status, shown = await command(stack, "show", "split")
    assert status == 0
    assert '"memory_gb_by_degree"' in shown

    check(await judge(client, "beside", 3), "beside", 3)
    for words in (5, 6):
        check(await judge(client, "split", words, units={"gpus": 2}), "split", words)
        split, beside = await idle_engine(client, "split"), await idle_engine(client, "beside")
        assert (split.gpus, split.device_gb, beside.device_gb) == ([0, 1], 12.0, 10.0)
        assert "evict cold" not in beside.measured_s
