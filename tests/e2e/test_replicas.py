"""Two replicas of the proxy: exactly one dispatches, whatever happens to it, and the clients of both are answered."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.e2e.campaign import grade_through
from tests.e2e.replicas import Mesh, epoch, executions, is_ready, leads, running_mesh, until
from tests.e2e.slow_disk import slow_fsync, valkey_on_slow_disk
from tests.e2e.trainer import Trainer, trainer_at
from treadle.stack.home import open_home
from treadle.stack.valkey import valkey_url
from treadle.testing.servers import running_valkey

SIZE = 600
SLOW_SIZE = 240


@pytest.fixture
def mesh(stack_home: Path, exit_stack: ExitStack) -> Mesh:
    url = exit_stack.enter_context(running_valkey(stack_home))
    return exit_stack.enter_context(running_mesh(url, proxies=2, managers=1))


@pytest.fixture
def slow_mesh(stack_home: Path, exit_stack: ExitStack) -> Mesh:
    home = open_home(stack_home)
    exit_stack.enter_context(valkey_on_slow_disk(home, slow_fsync(home.programs)))
    return exit_stack.enter_context(running_mesh(valkey_url(home), proxies=2, managers=1))


@pytest.fixture
def store_and_mesh(stack_home: Path, exit_stack: ExitStack) -> tuple[redis.Redis, Mesh]:
    """A store, and a mesh on it."""
    url = exit_stack.enter_context(running_valkey(stack_home))
    store = exit_stack.enter_context(redis.Redis.from_url(url))
    return store, exit_stack.enter_context(running_mesh(url, proxies=2, managers=0, PROXY_LEASE_S="16"))


def stages(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [stage for answer in answers for stage in answer["stages"]]


async def stop_the_leader(mesh: Mesh, size: int) -> list[dict[str, Any]]:
    """Freeze the leader in the middle of a batch until the other one leads, and thaw it; the batch's answers."""
    leader, other = mesh.proxies
    async with trainer_at(leader.url) as here, trainer_at(other.url) as there:

        async def waiting(at: Trainer, name: str) -> tuple[int, Any]:
            body = {"kind": "sleep", "params": {"seconds": 3}, "request_id": name}
            return await at.call("POST", "/v1/actions?wait=60", json=body)

        async def disturb() -> None:
            async with asyncio.TaskGroup() as group:
                polls = [group.create_task(waiting(here, "here")), group.create_task(waiting(there, "there"))]
                await asyncio.sleep(0.5)  # time enough for both to reach their replica, where one finds it frozen
                leader.freeze()
                await until(lambda: leads(other))
                await polls[1]
                leader.thaw()
            for poll in polls:
                status, answer = poll.result()
                assert (status, answer["ended"]) == (200, "ok")

        answers = await grade_through(there, disturb, size=size, key="stopped")
    await until(lambda: epoch(leader) != 1)  # its old term is over
    assert is_ready(leader)
    return answers


async def test_a_leader_stopped_past_its_lease_grants_nothing_when_it_wakes(mesh: Mesh) -> None:
    answers = await stop_the_leader(mesh, SIZE)
    assert {stage["attempts"] for stage in stages(answers)} == {1}
    assert executions(mesh) == len(stages(answers)) + 2, "nothing ran twice"


async def test_a_leader_stopped_past_its_lease_grants_nothing_on_a_slow_disk(slow_mesh: Mesh) -> None:
    answers = await stop_the_leader(slow_mesh, SLOW_SIZE)
    assert {stage["attempts"] for stage in stages(answers)} == {1}
    assert executions(slow_mesh) == len(stages(answers)) + 2, "nothing ran twice"


async def test_the_other_replica_takes_over_from_a_killed_leader(mesh: Mesh) -> None:
    leader, other = mesh.proxies

    async def disturb() -> None:
        leader.kill()
        await until(lambda: leads(other))

    async with trainer_at(other.url) as trainer:
        answers = await grade_through(trainer, disturb, size=SIZE, key="killed")
    assert executions(mesh) == len(stages(answers)), "nothing ran twice"


async def test_a_killed_leader_of_this_machine_is_replaced_before_its_lease_expires(
    store_and_mesh: tuple[redis.Redis, Mesh],
) -> None:
    store, mesh = store_and_mesh
    leader, other = mesh.proxies

    def leads_while_the_lease_lasts() -> bool:
        return bool(store.pexpire("leader:dispatcher", 8_000)) and leads(other)  # as after a missed renewal

    leader.freeze()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(6.0):  # three looks
            await until(leads_while_the_lease_lasts)
    leader.kill()
    await until(leads_while_the_lease_lasts)
    assert epoch(other) == 2


async def test_a_stopping_leader_hands_over(mesh: Mesh) -> None:
    leader, other = mesh.proxies

    async def disturb() -> None:
        leader.process.terminate()
        await until(lambda: leads(other))

    async with trainer_at(other.url) as trainer:
        answers = await grade_through(trainer, disturb, size=SIZE, key="handed over")
    leader.process.wait(30)
    assert executions(mesh) == len(stages(answers)), "nothing ran twice"
