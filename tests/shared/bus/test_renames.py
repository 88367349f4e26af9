"""Step 3 of the schema: messages stored under schema 2 are read with their new names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from shared.bus.connection import command, connect
from shared.bus.schema import VERSION, apply_upgrade, plan_upgrade, read_version
from shared.messages.actions import ACTIONS, ActionSubmitted, CancelRequested, CloseRequested
from shared.messages.base import Topic
from shared.messages.nodes import NODES, Bye, Hello
from shared.messages.outcomes import OUTCOMES, EnvironmentCreated, Finished, ImagesChanged
from tests.shared.bus.journal import submission

HELLO = {
    "kind": "hello.v1", "node": "n", "incarnation": "1", "node_class": "cpu", "capacity": {"cores": 4},
    "kinds": ["code.run"], "lines_up": ["cores"],
}  # fmt: skip
BYE = {"kind": "bye.v1", "node": "n", "incarnation": "1"}
FINISHED = {
    "kind": "finished.v1", "action": "a", "node": "n", "incarnation": "1", "epoch": 1, "attempt": 1, "stage": 0,
    "status": "lost", "environment_stands": False,
}  # fmt: skip
MADE = {"kind": "environment.made.v1", "node": "n", "incarnation": "1", "trajectory": "t"}
IMAGES = {"kind": "images-changed.v1", "node": "n", "incarnation": "1", "here": ["a:1"], "gone": ["b:1"]}
CANCEL = {"kind": "action.cancel-asked.v1", "action": "a", "reason": "not needed"}
CLOSE = {"kind": "trajectory.close-asked.v1", "trajectory": "t"}


async def add(redis: Redis, topic: Topic[Any], message: object) -> bytes:
    raw = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
    entry: bytes = await command(redis, "XADD", topic.name, "*", "m", raw)
    return entry


async def entries(redis: Redis, topic: Topic[Any]) -> list[tuple[bytes, list[bytes]]]:
    return [(entry, fields) for entry, fields in await command(redis, "XRANGE", topic.name, "-", "+")]


async def messages(redis: Redis, topic: Topic[Any]) -> list[Any]:
    return [topic.decode(fields[1]) for _, fields in await entries(redis, topic)]


async def upgrade(redis: Redis) -> None:
    planned = await plan_upgrade(redis)
    assert planned.needs == []
    await apply_upgrade(redis, planned)
    assert await read_version(redis) == VERSION


@pytest.fixture
async def older(redis_url: str) -> AsyncIterator[Redis]:
    async with connect(redis_url, name="test") as redis:
        await command(redis, "SET", "schema", 2)
        yield redis


async def test_reports_of_nodes_keep_their_ids_and_get_the_new_names(older: Redis) -> None:
    ids = [await add(older, NODES, one) for one in (HELLO, b"\xff", BYE)]
    outcomes = [await add(older, OUTCOMES, one) for one in (FINISHED, MADE, IMAGES)]
    await upgrade(older)
    stored = await entries(older, NODES)
    assert [entry for entry, _ in stored] == ids
    assert [entry for entry, _ in await entries(older, OUTCOMES)] == outcomes
    hello, _, bye = (fields[1] for _, fields in stored)
    met = Hello(
        node="n", incarnation="1", node_class="cpu", capacity={"cores": 4}, kinds=["code.run"], prefetches=["cores"]
    )
    assert (NODES.decode(hello), NODES.decode(bye)) == (met, Bye(node="n", incarnation="1"))
    finished, created, images = await messages(older, OUTCOMES)
    assert isinstance(finished, Finished)
    assert (finished.action, finished.environment_exists) == ("a", False)
    assert created == EnvironmentCreated(node="n", incarnation="1", trajectory="t")
    assert images == ImagesChanged(node="n", incarnation="1", added=["a:1"], removed=["b:1"])


async def test_requests_of_the_journal_are_renamed_and_submissions_are_not_touched(older: Redis) -> None:
    payload = submission("a").payload
    await add(older, ACTIONS, CANCEL)
    first = await command(older, "XADD", "actions", "*", "m", payload, "i", -1, "a", "action:a", "b", "")
    await add(older, ACTIONS, CLOSE)
    before = (await entries(older, ACTIONS))[1]
    await upgrade(older)
    assert (await entries(older, ACTIONS))[0] == before
    assert before[0] == first
    submitted, *requests = await messages(older, ACTIONS)
    assert isinstance(submitted, ActionSubmitted)
    assert requests == [CancelRequested(action="a", reason="not needed"), CloseRequested(trajectory="t")]


async def test_an_interrupted_upgrade_is_repeated_without_a_difference(older: Redis) -> None:
    for topic, message in ((NODES, HELLO), (OUTCOMES, FINISHED), (ACTIONS, CLOSE)):
        await add(older, topic, message)
    await upgrade(older)
    once = [await entries(older, topic) for topic in (NODES, OUTCOMES, ACTIONS)]
    await command(older, "SET", "schema", 2)
    await upgrade(older)
    assert [await entries(older, topic) for topic in (NODES, OUTCOMES, ACTIONS)] == once
