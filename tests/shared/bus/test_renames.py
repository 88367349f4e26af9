"""Step 3 of the schema: messages stored under schema 2 are read with their new names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import redis as blocking
from redis.asyncio import Redis

from shared.bus import renames
from shared.bus.connection import command, connect
from shared.bus.schema import VERSION, apply_upgrade, plan_upgrade, read_version
from shared.messages.actions import ACTIONS, ActionSubmitted, CancelRequested, CloseRequested
from shared.messages.base import Topic
from shared.messages.nodes import NODES, Bye, Hello
from shared.messages.outcomes import OUTCOMES, EnvironmentCreated, Finished, ImagesChanged
from shared.runtime.errors import Unavailable
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
DAMAGED = {
    "not UTF-8": b"\x81\xa4kind\xa5\xff\xff\xff\xff\xff",
    "5000 arrays inside each other": b"\x91" * 5000 + b"\xc0",
    "a kind that is an array": b"\x81\xa4kind\x90",
}


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
    assert (finished.action, finished.result.environment_exists) == ("a", False)
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
    for topic, message in ((NODES, HELLO), (NODES, BYE), (OUTCOMES, FINISHED), (ACTIONS, CLOSE)):
        await add(older, topic, message)
    await upgrade(older)
    once = [await entries(older, topic) for topic in (NODES, OUTCOMES, ACTIONS)]
    await command(older, "SET", "schema", 2)
    await upgrade(older)
    assert [await entries(older, topic) for topic in (NODES, OUTCOMES, ACTIONS)] == once


@pytest.mark.parametrize("topic", [NODES, OUTCOMES, ACTIONS], ids=lambda topic: topic.name)
@pytest.mark.parametrize("damaged", DAMAGED.values(), ids=DAMAGED)
async def test_a_damaged_entry_is_kept_as_it_is(older: Redis, topic: Topic[Any], damaged: bytes) -> None:
    entry = await add(older, topic, damaged)
    await upgrade(older)
    assert await entries(older, topic) == [(entry, [b"m", damaged])]


class Publisher:
    """Publishes a message in the middle of each rewrite: when its first entry is changed."""

    def __init__(self, redis_url: str, *, times: int) -> None:
        self.published: list[bytes] = []
        self._left = times
        self._url = redis_url
        self._change = renames._changed

    def changed(self, fields: list[bytes], change: renames.Change) -> list[bytes] | None:
        if self._left:
            self._left -= 1
            with blocking.Redis.from_url(self._url) as redis:
                self.published.append(redis.xadd(OUTCOMES.name, {"m": msgspec.msgpack.encode(MADE)}))
        return self._change(fields, change)


async def test_an_outcome_published_during_the_rewrite_is_renamed_too(
    older: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = Publisher(redis_url, times=1)
    monkeypatch.setattr(renames, "_changed", publisher.changed)
    first = await add(older, OUTCOMES, FINISHED)
    await upgrade(older)
    assert [entry for entry, _ in await entries(older, OUTCOMES)] == [first, *publisher.published]
    assert len(publisher.published) == 1
    created = EnvironmentCreated(node="n", incarnation="1", trajectory="t")
    assert (await messages(older, OUTCOMES))[1] == created


async def test_a_stream_that_always_changes_stops_the_upgrade_and_no_entry_is_lost(
    older: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = Publisher(redis_url, times=1000)
    monkeypatch.setattr(renames, "_changed", publisher.changed)
    first = await add(older, OUTCOMES, FINISHED)
    planned = await plan_upgrade(older)
    with pytest.raises(Unavailable, match=r"'outcomes' changes during the upgrade.*Stop every service"):
        await apply_upgrade(older, planned)
    assert [entry for entry, _ in await entries(older, OUTCOMES)] == [first, *publisher.published]
    assert await read_version(older) == 2
