"""The schema's version: an empty store gets it, an older one is upgraded, a newer one is refused."""

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

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
