"""A manager that stops for longer than the leader waits for it, and wakes: its work is done once, by somebody."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from shared.testing.servers import running_valkey
from tests.e2e.campaign import grade_through
from tests.e2e.replicas import PATIENCE_S, Mesh, running_mesh
from tests.e2e.trainer import Trainer, trainer_at

SIZE = 600


@pytest.fixture
def mesh(stack_home: Path) -> Iterator[Mesh]:
    with ExitStack() as entered:
        url = entered.enter_context(running_valkey(stack_home))
        yield entered.enter_context(running_mesh(url, proxies=1, managers=2, cores=1))


async def node_state(trainer: Trainer, name: str) -> str:
    _, view = await trainer.call("GET", "/v1/nodes")
    return next(str(node["state"]) for node in view["nodes"] if node["name"] == name)


async def await_node(trainer: Trainer, name: str, state: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if await node_state(trainer, name) == state:
                return
            await asyncio.sleep(0.1)


async def test_a_manager_stopped_past_the_leaders_patience_doubles_nothing_when_it_wakes(mesh: Mesh) -> None:
    frozen = mesh.managers[0]
    async with trainer_at(mesh.proxies[0].url) as trainer:

        async def disturb() -> None:
            frozen.freeze()
            try:
                await await_node(trainer, "node-0", "silent")
            finally:
                frozen.thaw()

        await grade_through(trainer, disturb, size=SIZE, key="frozen")
        await await_node(trainer, "node-0", "ready")
        answers = await grade_through(trainer, idle, size=SIZE, key="after")
        assert {stage["node"] for answer in answers for stage in answer["stages"]} == {"node-0", "node-1"}


async def idle() -> None:
    """No disturbance."""


async def test_a_killed_manager_s_work_runs_on_the_other(mesh: Mesh) -> None:
    async with trainer_at(mesh.proxies[0].url) as trainer:

        async def disturb() -> None:
            mesh.managers[0].kill()

        await grade_through(trainer, disturb, size=SIZE, key="killed")
