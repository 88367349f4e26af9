"""The schema's version: an empty store gets it, an older one is upgraded, a newer one is refused."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from redis.asyncio import Redis

from shared.bus import schema
from shared.bus.connection import command, connect
from shared.bus.schema import (
    VERSION,
    SchemaStep,
    WrongSchema,
    apply_upgrade,
    check_schema,
    plan_upgrade,
    read_version,
)


async def mark(redis: Redis) -> None:
    await command(redis, "SET", "changed", "yes")


STEPS = (SchemaStep(2, "two"), SchemaStep(3, "three", empty_journal=True, apply=mark))


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with connect(redis_url, name="test") as redis:
        yield redis


async def test_a_service_stamps_an_empty_store_and_starts_on_its_own_version(redis: Redis) -> None:
    await check_schema(redis)
    assert await read_version(redis) == VERSION
    await check_schema(redis)


async def test_data_without_a_version_is_version_1_and_no_service_starts_on_it(redis: Redis) -> None:
    await command(redis, "INCR", "leader:epoch")
    assert await read_version(redis) == 1
    with pytest.raises(
        WrongSchema, match=f"schema 1, and this release of treadle uses schema {VERSION}.*treadle upgrade"
    ):
        await check_schema(redis)
    assert await command(redis, "EXISTS", "schema") == 0


async def test_newer_data_is_refused_and_left(redis: Redis) -> None:
    await command(redis, "SET", "schema", VERSION + 1)
    for refused in (check_schema(redis), plan_upgrade(redis)):
        with pytest.raises(WrongSchema, match=f"schema {VERSION + 1}.*reads schema {VERSION} at most"):
            await refused
    assert await read_version(redis) == VERSION + 1


async def test_another_programs_key_is_refused(redis: Redis) -> None:
    await command(redis, "SET", "schema", "public")
    with pytest.raises(WrongSchema, match="another program"):
        await check_schema(redis)


async def test_steps_are_applied_in_order_up_to_the_release(redis: Redis) -> None:
    await command(redis, "INCR", "leader:epoch")
    planned = await plan_upgrade(redis, STEPS)
    assert (planned.found, planned.version, planned.steps, planned.needs) == (1, 3, list(STEPS), [])
    await apply_upgrade(redis, planned)
    assert (await read_version(redis), await command(redis, "GET", "changed")) == (3, b"yes")
    assert (await plan_upgrade(redis, STEPS)).steps == []


async def test_a_step_that_needs_an_empty_journal_is_refused_and_changes_nothing(redis: Redis) -> None:
    await command(redis, "XADD", "actions", "*", "m", b"x")
    planned = await plan_upgrade(redis, STEPS)
    (need,) = planned.needs
    assert "an empty journal for schema 3 (three): 1 requests are unanswered" in need
    with pytest.raises(WrongSchema, match="needs an empty journal"):
        await apply_upgrade(redis, planned)
    assert (await read_version(redis), await command(redis, "EXISTS", "changed")) == (1, 0)


async def test_a_running_proxy_blocks_an_upgrade_and_a_killed_one_does_not(redis: Redis) -> None:
    await command(redis, "INCR", "leader:epoch")
    await command(redis, "SET", "leader", "x")
    assert "no running proxy" in (await plan_upgrade(redis, STEPS)).needs[0]
    await command(redis, "SET", "leader", "x", "PX", 300)
    assert (await plan_upgrade(redis, STEPS)).needs == []


async def report(redis: Redis, kind: str, node: str = "n", incarnation: str = "1", *, entry: str = "*") -> None:
    """Publish a node's report, with a field that this release does not have."""
    message = {"kind": kind, "node": node, "incarnation": incarnation, "lines_up": ["cores"]}
    await command(redis, "XADD", "nodes", entry, "m", msgspec.msgpack.encode(message))


@pytest.fixture
async def used(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> Redis:
    """A store of schema 1. A node is silent after 0.5 s instead of 10."""
    monkeypatch.setattr(schema, "LONGEST_SILENCE_S", 0.5)
    await command(redis, "INCR", "leader:epoch")
    return redis


@pytest.mark.parametrize("kind", ["hello.v1", "heartbeat.v1"])
async def test_running_managers_prevent_an_upgrade_and_nothing_is_changed(used: Redis, kind: str) -> None:
    async def run() -> None:
        while True:
            for number in range(7):
                await report(used, kind, f"n{number}")
            await asyncio.sleep(0.05)

    await report(used, kind)
    managers = asyncio.create_task(run())
    try:
        planned = await plan_upgrade(used, STEPS)
    finally:
        managers.cancel()
    (need,) = planned.needs
    assert "no running CPU manager: n0, n1, n2, n3, n4 and 2 more reported in the last 0.5 s. Stop every" in need
    with pytest.raises(WrongSchema, match="needs no running CPU manager"):
        await apply_upgrade(used, planned)
    assert (await read_version(used), await command(used, "EXISTS", "changed")) == (1, 0)


async def test_a_killed_manager_prevents_no_upgrade_after_its_silence(used: Redis) -> None:
    await report(used, "heartbeat.v1")
    before = asyncio.get_running_loop().time()
    assert (await plan_upgrade(used, STEPS)).needs == []
    assert asyncio.get_running_loop().time() - before > 0.4


async def test_an_upgrade_does_not_wait_for_stopped_and_silent_managers(
    used: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await report(used, "heartbeat.v1", "silent", entry="1-1")
    for kind in ("hello.v1", "heartbeat.v1", "bye.v1"):
        await report(used, kind, "stopped")
    for damaged in (b"\xff", b"\x91" * 5000 + b"\xc0", b"\x81\xa4kind\xa1\xff"):
        await command(used, "XADD", "nodes", "*", "m", damaged)
    monkeypatch.setattr(schema, "LONGEST_SILENCE_S", 3600.0)
    async with asyncio.timeout(10):
        assert (await plan_upgrade(used, STEPS)).needs == []


async def test_a_bye_of_a_former_incarnation_does_not_count(used: Redis) -> None:
    await report(used, "hello.v1", incarnation="2")
    await report(used, "bye.v1", incarnation="1")
    assert list(await schema._report_ages(used)) == [("n", "2")]


async def test_a_store_without_pending_steps_is_planned_while_managers_run(used: Redis) -> None:
    await command(used, "SET", "schema", 3)
    await report(used, "heartbeat.v1")
    planned = await plan_upgrade(used, STEPS)
    assert (planned.steps, planned.needs) == ([], [])
