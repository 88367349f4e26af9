"""A dead planner costs units, never time: its last targets hold, and no request queues because a target is missing.

Workers sleep here, each on a core of its own, so that no sandbox is needed to see who owns what.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from shared.bus import functions
from shared.bus.connection import connect
from shared.messages.targets import TARGETS, TargetSet
from tests.e2e.processes import running_service
from tests.e2e.replicas import Mesh, running_mesh
from tests.e2e.trainer import Trainer, trainer_at
from tests.shared.bus.soon import soon
from treadle.testing.servers import running_valkey

POOL = "cores@default"
WORKFLOW = {"stages": [{"name": "run", "kind": "sleep", "units": {"cores": 1}, "timeout_s": 60}]}
WITHIN_S = 60.0


@pytest.fixture
def url(stack_home: Path, exit_stack: ExitStack) -> str:
    return exit_stack.enter_context(running_valkey(stack_home))


@pytest.fixture
def lease(url: str) -> Iterator[redis.Redis]:
    """A planner's, held by the test from before the first leader looks."""
    with redis.Redis.from_url(url) as client:
        client.set("leader:planner", "a test")
        yield client


@pytest.fixture
def mesh(url: str, exit_stack: ExitStack) -> Mesh:
    return exit_stack.enter_context(running_mesh(url, proxies=1, managers=2, cores=1))


async def batch_of(trainer: Trainer, key: str, seconds: float, size: int) -> str:
    """Open one and send all of it."""
    await trainer.declare("sleepers", WORKFLOW)
    batch = await trainer.open("sleepers", key, size)
    lines = b'{"params":{"seconds":%g}}\n' % seconds
    status, receipt = await trainer.call("POST", f"/v1/rewards/bulk?batch={batch}", data=lines * size)
    assert (status, receipt["accepted"]) == (200, size)
    return batch


async def becomes(trainer: Trainer, **wanted: int | str) -> None:
    """Wait for the pool to look like this."""

    async def is_so() -> bool:
        _, body = await trainer.call("GET", "/v1/pools")
        found: list[dict[str, Any]] = [pool for pool in body["pools"] if pool["name"] == POOL]
        return bool(found) and {name: found[0][name] for name in wanted} == wanted

    await soon(is_so, within_s=WITHIN_S)


async def test_after_the_planner_was_killed_the_next_batch_runs_on_all_cores(
    mesh: Mesh, url: str, database_url: str
) -> None:
    async with trainer_at(mesh.proxies[0].url) as trainer:
        with running_service("scaling_planner", url, TREADLE_DATABASE_URL=database_url) as planner:
            answers = await trainer.follow(await batch_of(trainer, "planned", 0.1, 4))
            assert [answer["ended"] for answer in answers] == ["ok"] * 4
            await becomes(trainer, target=0, owned=0, capacity=2)
            planner.kill()
            with redis.Redis.from_url(url) as client:

                async def silent() -> bool:
                    return not client.exists("leader:planner")

                await soon(silent, within_s=WITHIN_S)
            batch = await batch_of(trainer, "unplanned", 3.0, 4)
            await becomes(trainer, target=0, owned=2, used=2)
            assert [answer["ended"] for answer in await trainer.follow(batch)] == ["ok"] * 4


async def test_targets_rule_while_the_planner_holds_its_lease_and_a_zero_queue_rule_when_it_is_gone(
    lease: redis.Redis, mesh: Mesh, url: str
) -> None:
    target = TargetSet(pool=POOL, units=0, decided_at=1.0, reason="a test wants it")
    async with connect(url, name="test") as bus, trainer_at(mesh.proxies[0].url) as trainer:
        await functions.publish(bus, TARGETS.name, 100, [TARGETS.encode(target)])
        await becomes(trainer, target=0, owned=0)
        batch = await batch_of(trainer, "step", 5.0, 4)
        await becomes(trainer, owned=1, used=1, waiting=3)
        lease.delete("leader:planner")
        await becomes(trainer, target=0, owned=2, used=2)
        rule = "no planner holds its lease: the zero-queue rule serves what waits, beside the last target of 0"
        await becomes(trainer, reason=rule)
        lease.set("leader:planner", "a test")
        await becomes(trainer, reason="a test wants it")
        assert len(await trainer.follow(batch)) == 4
        await becomes(trainer, target=0, owned=0)
