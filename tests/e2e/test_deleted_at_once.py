"""`PROXY_KEEP_DELETED_S=0`: after DELETE of a batch nothing can be read, and both stores are free of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator

import aiohttp
import asyncpg
import pytest
import redis

from tests.e2e.trainer import Trainer, trainer_at
from tests.shared.bus.soon import soon
from treadle.stack.services import PROXY
from treadle.testing.servers import temporary_home
from treadle.testing.stack import RunningStack, running_stack

WITHIN_S = 120.0
SETTINGS = {
    "PROXY_KEEP_DELETED_S": "0",
    "PROXY_ARCHIVE_AFTER_S": "3600",
    "CPU_MANAGER_CORES": "2",
    "CPU_MANAGER_ENGINE": "none",
}
NOTHING = {"stages": [{"name": "noop", "kind": "noop"}]}


@pytest.fixture
def settings() -> dict[str, str]:
    return SETTINGS


@pytest.fixture
def stack(settings: dict[str, str]) -> Iterator[RunningStack]:
    with temporary_home() as root, running_stack(root, environ=settings) as running:
        yield running


@pytest.fixture
async def trainer(stack: RunningStack) -> AsyncIterator[Trainer]:
    async with trainer_at(stack.urls[PROXY], timeout_s=WITHIN_S) as one:
        await one.declare("nothing", NOTHING)
        yield one


async def answered_batch(stack: RunningStack, trainer: Trainer, size: int, sent: int) -> tuple[str, list[str]]:
    """A batch with so many answers, and the ids of its actions."""
    batch = await trainer.open("nothing", f"of {size}", size)
    lines = b"\n".join(b'{"request_id":"r%d"}' % number for number in range(sent))
    status, receipt = await trainer.call("POST", f"/v1/rewards/bulk?batch={batch}", data=lines)
    assert (status, receipt["accepted"]) == (200, sent)

    async def answered() -> bool:
        return bool((await trainer.view(batch))["answered"] == sent)

    await soon(answered, within_s=WITHIN_S)
    async with (
        aiohttp.ClientSession(stack.urls[PROXY]) as http,
        http.get(f"/v1/batches/{batch}/results") as response,
    ):
        return batch, [json.loads(line)["id"] async for line in response.content]


def keys_of(stack: RunningStack, batch: str, actions: list[str]) -> list[str]:
    """Keys of a batch in Valkey."""
    named = [f"batch:{batch}", f"results:{batch}", f"archived:{batch}", *(f"action:{action}" for action in actions)]
    with redis.Redis.from_url(stack.redis_url) as client:
        left = [key for key in named if client.exists(key)]
        left += [index for index in ("archived", "unarchived") if client.zscore(index, f"default/{batch}") is not None]
        return left + (["kept:batches"] if client.hexists("kept:batches", f"default/{batch}") else [])


async def rows_of(stack: RunningStack, batch: str) -> int:
    connection = await asyncpg.connect(stack.database_url.replace("+asyncpg", ""))
    try:
        return int(await connection.fetchval("SELECT count(*) FROM answers WHERE batch = $1", batch))
    finally:
        await connection.close()


async def delete_and_look(stack: RunningStack, trainer: Trainer, batch: str, actions: list[str]) -> str:
    """Delete a batch; nothing of it can be read at once, and nothing is left soon. The state that the call showed."""
    status, view = await trainer.call("DELETE", f"/v1/batches/{batch}")
    assert status == 200, view
    assert view["answered"] == len(actions)
    for path in (f"/v1/batches/{batch}", f"/v1/batches/{batch}/results", f"/v1/actions/{actions[0]}"):
        status, _ = await trainer.call("GET", path)
        assert (path, status) == (path, 404)

    async def freed() -> bool:
        return not keys_of(stack, batch, actions) and await rows_of(stack, batch) == 0

    await soon(freed, within_s=WITHIN_S)
    return str(view["state"])


async def test_young_answers_of_a_deleted_batch_are_gone_at_once(stack: RunningStack, trainer: Trainer) -> None:
    for size, sent, state in ((50, 50, "complete"), (60, 50, "cancelled")):
        batch, actions = await answered_batch(stack, trainer, size, sent)
        assert await delete_and_look(stack, trainer, batch, actions) == state


@pytest.mark.parametrize("settings", [{**SETTINGS, "PROXY_ARCHIVE_AFTER_S": "0"}])
async def test_archived_answers_of_a_deleted_batch_are_gone_at_once(stack: RunningStack, trainer: Trainer) -> None:
    batch, actions = await answered_batch(stack, trainer, 50, 50)

    async def archived() -> bool:
        return await rows_of(stack, batch) == 50

    await soon(archived, within_s=WITHIN_S)
    assert await delete_and_look(stack, trainer, batch, actions) == "complete"
