"""A program in a trajectory's environment calls the trajectory's model, through a whole mesh of processes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.episodes import OneNodeMesh, running_one_node_mesh, trainer_of
from tests.e2e.processes import Service, running_service
from tests.e2e.replicas import until
from tests.e2e.test_router_replicas import is_ready, register
from tests.services.cpu_manager.environments.models import CALL
from tests.services.trajectory_router.engine import running_engine


@pytest.fixture
def mesh() -> Iterator[OneNodeMesh]:
    with running_one_node_mesh(CPU_MANAGER_ENGINE="none") as running:
        yield running


@pytest.fixture
def router(mesh: OneNodeMesh) -> Iterator[Service]:
    with running_service("trajectory_router", mesh.redis_url) as running:
        yield running


def forwarders(manager: int) -> list[int]:
    """Forwarders that this process has started."""
    children = [int(pid) for pid in Path(f"/proc/{manager}/task/{manager}/children").read_text().split()]
    return [pid for pid in children if b"forwarder.process" in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def test_an_action_calls_its_model_until_its_trajectory_is_closed(mesh: OneNodeMesh, router: Service) -> None:
    await until(lambda: is_ready(router))
    assert mesh.manager is not None
    assert forwarders(mesh.manager.process.pid) == []  # it is started at the first need
    async with running_engine("e") as engine, trainer_of(mesh) as trainer:
        await register(router, engine)
        trajectory = await trainer.open(model=True)
        for program in ("print(openai().status)", "print(len(openai(stream=True).read()))"):
            answer = await trainer.act(trajectory, "env.exec", {"argv": ["python3", "-c", CALL + program]})
            assert answer["passed"], answer
        assert [target for _, target, _ in engine.received] == ["/v1/chat/completions"] * 2
        (forwarder,) = forwarders(mesh.manager.process.pid)
        await trainer.close(trajectory)
        plain = await trainer.open()
        answer = await trainer.act(plain, "env.exec", {"argv": ["python3", "-c", "import socket; socket.socket()"]})
        assert not answer["passed"]
        mesh.kill_manager()
        await until(lambda: not Path(f"/proc/{forwarder}").exists())


async def test_without_a_router_the_first_action_is_refused_with_the_reason(mesh: OneNodeMesh) -> None:
    async with trainer_of(mesh) as trainer, asyncio.timeout(60):
        trajectory = await trainer.open(model=True)
        answer = await trainer.act(trajectory, "env.exec", {"argv": ["true"]})
        assert (answer["ended"], "no trajectory router runs" in str(answer)) == ("refused", True), answer
