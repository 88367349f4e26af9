"""Direct reports on a real mesh: actions of an idle node are answered once, and without a stored outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from shared.bus.channels import DIRECT_OUTCOMES
from shared.bus.connection import command, connect
from shared.messages.outcomes import OUTCOMES
from tests.e2e.replicas import Mesh, executions, leads, running_mesh, until
from tests.shared.bus.soon import soon
from treadle.client.asynchronous import AsyncTreadle
from treadle.testing.servers import running_valkey

CALLS = 40


@pytest.fixture
def valkey_url(stack_home: Path) -> Iterator[str]:
    with running_valkey(stack_home) as url:
        yield url


@pytest.fixture
def mesh(valkey_url: str) -> Iterator[Mesh]:
    with running_mesh(valkey_url, proxies=2, managers=2, cores=1) as running:
        yield running


async def stored(redis: Redis) -> int:
    """Outcomes of actions, and other reports, that were ever stored."""
    if not await command(redis, "EXISTS", OUTCOMES.name):
        return 0
    info = await command(redis, "XINFO", "STREAM", OUTCOMES.name)
    return int(dict(zip(info[::2], info[1::2], strict=True))[b"entries-added"])


async def listened(redis: Redis) -> bool:
    """Return whether a leader receives direct outcomes."""
    return bool((await command(redis, "PUBSUB", "NUMSUB", DIRECT_OUTCOMES))[1] == 1)


async def run(client: AsyncTreadle, calls: int) -> None:
    """Run actions one after the other."""
    for _ in range(calls):
        async with asyncio.timeout(30):
            assert (await client.run("noop")).ended == "ok"


async def test_actions_of_an_idle_node_need_no_stored_outcome(mesh: Mesh, valkey_url: str) -> None:
    """Whichever replica their caller has; and after the leader's connection has ended, too. After a pause of this
    machine a node stores its outcomes for a second, so some rounds may have to be repeated.
    """
    made = 0
    async with connect(valkey_url, name="test") as redis:
        for proxy in mesh.proxies:
            async with AsyncTreadle(proxy.url) as client:

                async def few_are_stored(client: AsyncTreadle = client) -> bool:
                    nonlocal made
                    before = await stored(redis)
                    await run(client, CALLS)
                    made += CALLS
                    return await stored(redis) - before <= CALLS / 4

                for _ in range(2):
                    await soon(lambda: listened(redis))
                    await soon(few_are_stored, within_s=120)
                    await command(redis, "CLIENT", "KILL", "TYPE", "pubsub")
        assert executions(mesh) == made, "nothing was executed twice"


@pytest.mark.parametrize("killed", ["leader", "manager"])
async def test_nothing_is_lost_with_a_killed_process(mesh: Mesh, valkey_url: str, killed: str) -> None:
    leader, other = mesh.proxies
    ended = 0

    async def call(client: AsyncTreadle) -> None:
        nonlocal ended
        while ended < 4 * CALLS:
            await run(client, 1)
            ended += 1

    async with connect(valkey_url, name="test") as redis, AsyncTreadle(other.url) as client, asyncio.timeout(120):
        await soon(lambda: listened(redis))
        calling = asyncio.create_task(call(client))
        await until(lambda: ended >= CALLS)
        if killed == "leader":
            leader.kill()
            await until(lambda: leads(other))
        else:
            mesh.managers[0].kill()  # the other one executes what it has left
        await calling
        await soon(lambda: listened(redis))
