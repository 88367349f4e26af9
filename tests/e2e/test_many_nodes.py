"""A killed leader of a mesh whose stream `nodes` is too short for the hellos of all nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from shared.bus.connection import command, connect
from shared.messages.nodes import NODES, Hello
from tests.e2e.many_nodes import ManyNodes
from tests.e2e.processes import running_service
from tests.e2e.replicas import Mesh, leads, until
from tests.e2e.trainer import Trainer, trainer_at
from treadle.testing.servers import running_valkey

COUNT = 400
PATIENCE_S = 60.0


@pytest.fixture
def url(stack_home: Path) -> Iterator[str]:
    with running_valkey(stack_home, durable=False) as running:
        yield running


@pytest.fixture
def mesh(url: str) -> Iterator[Mesh]:
    with ExitStack() as entered:
        settings = {"PROXY_LEASE_S": "2"}
        mesh = Mesh([entered.enter_context(running_service("proxy", url, **settings)) for _ in range(2)], [])
        asyncio.run(until(lambda: any(leads(proxy) for proxy in mesh.proxies)))
        mesh.proxies.sort(key=leads, reverse=True)
        yield mesh


async def hellos_in_stream(redis: Redis) -> int:
    rows = await command(redis, "XRANGE", NODES.name, "-", "+")
    return sum(isinstance(NODES.decode(fields[1]), Hello) for _, fields in rows)


async def send(trainer: Trainer, wait_s: int) -> list[dict[str, Any]]:
    """Send one request for each node, or repeat it; the views."""

    async def one(number: int) -> dict[str, Any]:
        body = {"kind": "sleep", "params": {"seconds": 1}, "timeout_s": 600, "request_id": f"r{number}"}
        status, view = await trainer.call("POST", f"/v1/actions?wait={wait_s}", json=body)
        assert status in (200, 202), view
        return dict(view)

    return await asyncio.gather(*(one(number) for number in range(COUNT)))


async def test_a_new_leader_knows_nodes_whose_hellos_have_left_the_stream(url: str, mesh: Mesh) -> None:
    leader, other = mesh.proxies
    async with (
        connect(url, name="test") as redis,
        ManyNodes.up(url, COUNT) as nodes,
        trainer_at(leader.url) as here,
        trainer_at(other.url) as there,
    ):
        await send(here, 0)
        await until(lambda: len(nodes.granted) == COUNT)
        async with asyncio.timeout(PATIENCE_S):
            while await hellos_in_stream(redis):  # noqa: ASYNC110  # Valkey trims the stream
                await asyncio.sleep(0.2)
        leader.kill()
        await until(lambda: leads(other))
        await until(lambda: set(nodes.asked.values()) == {2})
        await nodes.finish_all()
        answers = await send(there, 60)

        _, listed = await there.call("GET", "/v1/nodes")
    assert {(answer["ended"], answer["stages"][0]["attempts"]) for answer in answers} == {("ok", 1)}
    assert len(nodes.granted) == COUNT, "running work was granted twice"
    assert {node["state"] for node in listed["nodes"]} == {"ready"}
    assert len(listed["nodes"]) == COUNT
