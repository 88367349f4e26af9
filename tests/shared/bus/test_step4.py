"""Step 4 of the schema: data stored under schema 3 is read by this release."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
from redis.asyncio import Redis

from shared.bus.connection import command, connect
from shared.bus.schema import VERSION, apply_upgrade, plan_upgrade, read_version
from shared.messages.actions import ACTIONS, CancelRequested
from shared.messages.outcomes import OUTCOMES, Finished, Started
from shared.policy.model.results import AttemptResult
from tests.shared.bus.schema3 import COMMANDS

SCORED = {
    "kind": "finished.v1", "action": "a", "node": "n", "incarnation": "1", "epoch": 7, "attempt": 2, "stage": 1,
    "status": "ok", "passed": True, "score": 0.5, "output": b"{}", "reason": "why", "queue_s": 1.0, "execution_s": 2.0,
    "cpu_s": 1.5, "peak_memory_bytes": 9, "units": {"cores": 2}, "evidence": "separate",
}  # fmt: skip
CUT = {
    "kind": "finished.v1", "action": "b", "node": "n", "incarnation": "1", "epoch": 7, "attempt": 1, "stage": 0,
    "status": "environment-lost", "environment_exists": False, "retry_in_s": 3.0, "environment_ended": "expired",
}  # fmt: skip
STARTED = Started(action="a", node="n", epoch=7, attempt=2)


@pytest.fixture
async def older(redis_url: str) -> AsyncIterator[Redis]:
    async with connect(redis_url, name="test") as redis:
        await command(redis, "SET", "schema", 3)
        yield redis


@pytest.fixture
async def full(private_url: str) -> AsyncIterator[Redis]:
    """Data of schema 3, with an outcome, in a store without free memory."""
    async with connect(private_url, name="test") as redis:
        for words in COMMANDS:
            await command(redis, *words)
        await command(redis, "XADD", OUTCOMES.name, "*", "m", msgspec.msgpack.encode(SCORED))
        await command(redis, "CONFIG", "SET", "maxmemory", "1")
        yield redis


async def upgraded(redis: Redis) -> list[tuple[bytes, bytes]]:
    """Upgrade, and return (id, message) of each outcome."""
    await apply_upgrade(redis, await plan_upgrade(redis))
    assert await read_version(redis) == VERSION
    return [(entry, fields[1]) for entry, fields in await command(redis, "XRANGE", OUTCOMES.name, "-", "+")]


async def test_an_outcome_gets_its_result_as_one_value_and_keeps_its_id(older: Redis) -> None:
    stored = [msgspec.msgpack.encode(SCORED), OUTCOMES.encode(STARTED), msgspec.msgpack.encode(CUT)]
    ids = [await command(older, "XADD", OUTCOMES.name, "*", "m", raw) for raw in stored]

    found = await upgraded(older)

    assert [entry for entry, _ in found] == ids
    assert [OUTCOMES.decode(raw) for _, raw in found] == [
        Finished(
            action="a",
            node="n",
            incarnation="1",
            epoch=7,
            attempt=2,
            stage=1,
            result=AttemptResult("ok", True, 0.5, b"{}", "why", {"cpu_s": 1.5}, 9, "separate"),
            queue_s=1.0,
            execution_s=2.0,
            units={"cores": 2},
        ),
        STARTED,
        Finished(
            action="b",
            node="n",
            incarnation="1",
            epoch=7,
            attempt=1,
            stage=0,
            result=AttemptResult(
                "environment-lost", retry_in_s=3.0, environment_exists=False, environment_ended="expired"
            ),
        ),
    ]
    await command(older, "SET", "schema", 3)
    assert await upgraded(older) == found, "a repeated step changes nothing"


async def test_a_store_without_free_memory_is_upgraded(full: Redis) -> None:
    """Otherwise a store with changed data would keep its version, and the former release would start on it."""
    ((_, raw),) = await upgraded(full)

    assert isinstance(OUTCOMES.decode(raw), Finished)
    assert await command(full, "HEXISTS", "action:queued", "digest")


async def test_messages_of_schema_2_are_renamed_in_a_store_without_free_memory(full: Redis) -> None:
    old = {"kind": "action.cancel-asked.v1", "action": "a", "reason": "requested"}
    await command(full, "CONFIG", "SET", "maxmemory", "0")
    await command(full, "XADD", ACTIONS.name, "*", "m", msgspec.msgpack.encode(old))
    await command(full, "SET", "schema", 2)
    await command(full, "CONFIG", "SET", "maxmemory", "1")
    await upgraded(full)

    newest = (await command(full, "XREVRANGE", ACTIONS.name, "+", "-"))[0]
    assert ACTIONS.decode(newest[1][1]) == CancelRequested(action="a", reason="requested")
