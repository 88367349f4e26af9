"""`kill -9` of each part in the middle of a batch: every request is answered exactly once, and right.

The batch is also in the planner's history, complete, whatever was killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from shared.store import database
from shared.store.batches import BatchHistory
from tests.e2e.campaign import grade_through
from tests.e2e.trainer import trainer_at
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

SIZE = 2000


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    """One for all tests: the stack must recover from each kill before the next one."""
    with temporary_home() as root, running_stack(root) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "proxy",
        "cpu_manager",
        "quota_manager",
        "scaling_planner",
        "trajectory_router",
        "valkey",
        "postgres",
    ],
)
async def test_a_batch_is_answered_once_and_right_although_a_part_is_killed(stack: RunningStack, name: str) -> None:
    async def kill() -> None:
        pid = stack.kill(name)
        await asyncio.to_thread(stack.await_healthy, name, other_than=pid)

    async with trainer_at(stack.urls["proxy"]) as trainer:
        answers = await grade_through(trainer, kill, size=SIZE, key=name)
        assert trainer.outages or name != "proxy", "the results stream did not break: nothing was shown"
    await in_the_history(stack.database_url, answers[0]["batch"])


async def in_the_history(database_url: str, batch: str) -> None:
    """Wait for every measurement of the batch to be in Postgres."""
    async with database.connect(database_url, name="test") as sessions, asyncio.timeout(90):
        while True:
            async with sessions() as session:
                kept = await BatchHistory(session).requests(batch)
            if kept is not None:
                break
            await asyncio.sleep(0.2)
    assert len(kept.arrival_s) == SIZE
