"""A node and its leader: messages handled in order, older epochs ignored, and the node's own reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from services.cpu_manager import node_manager as node_manager_module
from services.cpu_manager.environments.protocol import Postponed
from services.cpu_manager.node_executor import NodeExecutor
from services.cpu_manager.node_manager import HEARTBEATS_A_HELLO, NodeManager
from services.cpu_manager.outbox import Outbox
from shared.bus import functions
from shared.bus.connection import command, connect
from shared.messages.base import Message, Topic
from shared.messages.grants import (
    EnvironmentClosed,
    Grant,
    ImageRequested,
    InventoryRequested,
    Revoked,
    ShareSet,
    grants_topic,
)
from shared.messages.nodes import NODES, Bye, Heartbeat, Hello
from shared.messages.outcomes import (
    OUTCOMES,
    EnvironmentCreated,
    EnvironmentEnded,
    EnvironmentHeld,
    Finished,
    ImagesChanged,
    InventoryTaken,
    Started,
)
from tests.services.cpu_manager.node_parts import NodeParts, grant, in_environment
from tests.shared.bus.soon import soon

TOPIC = grants_topic("n", "1")
HELLO = Hello(node="n", incarnation="1", node_class="default", capacity={"cores": 4}, kinds=["work"])


class NodeUnderTest:
    """A running node, and the leader's end of its streams."""

    def __init__(self, redis: Redis, reader: Redis) -> None:
        self.redis = redis
        self.parts = NodeParts()
        self.outbox = Outbox(redis)
        self.parts.attempts.report = self.parts.registry.report = self.outbox.put
        self.executor = NodeExecutor(self.parts.sandbox, {}, {})
        self.node = NodeManager(
            redis,
            reader,
            HELLO,
            self.parts.attempts,
            self.outbox,
            {"cores": self.parts.cores.usage, "slots": self.parts.slots, "memory_mb": self.parts.memory},
            self.parts.clock,
            self.executor.cold_start_s,
        )

    async def send(self, *messages: Grant) -> None:
        for message in messages:
            await command(self.redis, "XADD", TOPIC.name, "*", "m", TOPIC.encode(message))

    async def published(self, topic: Topic[Any]) -> list[Any]:
        return [topic.decode(fields[1]) for _, fields in await command(self.redis, "XRANGE", topic.name, "-", "+")]

    async def outcomes(self, count: int) -> list[Any]:
        """Return its first `count` outcomes."""
        return await self._first(OUTCOMES, count)

    async def announcements(self, count: int) -> list[Any]:
        """Return its first `count` messages on the topic `nodes`."""
        return await self._first(NODES, count)

    async def _first(self, topic: Topic[Any], count: int) -> list[Any]:
        async def enough() -> bool:
            return len(await self.published(topic)) >= count

        await soon(enough)
        return (await self.published(topic))[:count]


@pytest.fixture
async def post(redis_url: str) -> AsyncIterator[NodeUnderTest]:
    async with connect(redis_url, name="test") as redis, connect(redis_url, name="test-reader") as reader:
        await functions.load(redis)
        made = NodeUnderTest(redis, reader)
        async with running(made.node.run, made.outbox.run):
            yield made
            await made.parts.attempts.stop()


@asynccontextmanager
async def running(*loops: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(loop()) for loop in loops]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def kinds(messages: list[Message]) -> list[type[Message]]:
    return [type(message) for message in messages]


async def test_it_publishes_hello_first(post: NodeUnderTest) -> None:
    assert await post.announcements(1) == [HELLO]


async def test_a_grant_is_executed_and_its_outcome_published(post: NodeUnderTest) -> None:
    await post.send(grant("a", attempt=2))

    (outcome,) = await post.outcomes(1)
    assert isinstance(outcome, Finished)
    assert (outcome.action, outcome.attempt, outcome.result.status) == ("a", 2, "ok")


async def test_grants_that_were_sent_before_it_read_are_not_lost(redis_url: str) -> None:
    async with connect(redis_url, name="test") as redis, connect(redis_url, name="test-reader") as reader:
        await functions.load(redis)
        late = NodeUnderTest(redis, reader)
        await late.send(grant("a"), grant("b"))
        async with running(late.node.run, late.outbox.run):
            assert sorted(one.action for one in await late.outcomes(2)) == ["a", "b"]


async def test_messages_of_an_older_epoch_are_ignored(post: NodeUnderTest) -> None:
    await post.send(grant("new", epoch=5), grant("old", epoch=4), Revoked(action="x", epoch=4, attempt=1))
    await post.send(ShareSet(epoch=4, resource="cores", units=1), grant("newer", epoch=6), grant("new again", epoch=5))
    await post.send(InventoryRequested(epoch=6))

    reported = await post.outcomes(3)
    assert [one.action for one in reported if isinstance(one, Finished)] == ["new", "newer"]
    assert post.parts.cores.usage.owned == 4


async def test_a_revocation_stops_a_running_attempt(post: NodeUnderTest) -> None:
    post.parts.grader.waits = True
    await post.send(grant("a"), Revoked(action="a", epoch=1, attempt=1))

    (outcome,) = await post.outcomes(1)
    assert (outcome.action, outcome.result.status) == ("a", "cancelled")


async def test_it_owns_the_share_that_the_leader_set(post: NodeUnderTest) -> None:
    shares = [("cores", 2), ("slots", 5), ("gpus", 1)]
    await post.send(
        *(ShareSet(epoch=1, resource=name, units=units) for name, units in shares), InventoryRequested(epoch=1)
    )
    await post.outcomes(1)

    assert (post.parts.cores.usage.owned, post.parts.slots.owned) == (2, 5)


async def test_an_inventory_comes_after_every_outcome_before_it(post: NodeUnderTest) -> None:
    await post.send(*(grant(f"a{number}") for number in range(4)))
    await post.outcomes(4)
    post.parts.grader.waits = True
    await post.send(grant("runs", attempt=3, stage=1, cores=2), InventoryRequested(epoch=7))

    *finished, inventory = await post.outcomes(5)

    assert kinds(finished) == [Finished] * 4
    assert isinstance(inventory, InventoryTaken)
    assert (inventory.node, inventory.incarnation, inventory.epoch) == ("n", "1", 7)
    assert [(one.action, one.attempt, one.stage, one.units) for one in inventory.held] == [("runs", 3, 1, {"cores": 2})]
    assert post.node.met_leader


async def test_environments_are_listed_in_the_inventory_from_creation_to_end(post: NodeUnderTest) -> None:
    post.parts.runtime.create_waits = True
    await post.send(in_environment("a", begins=True), InventoryRequested(epoch=1))
    (being_made,) = await post.outcomes(1)
    post.parts.runtime.go.set()
    await post.outcomes(2)
    await post.send(InventoryRequested(epoch=1))
    _, began, listed = await post.outcomes(3)
    await post.send(EnvironmentClosed(epoch=1, trajectory="t"), EnvironmentClosed(epoch=1, trajectory="unknown"))
    ended = (await post.outcomes(5))[3:]

    assert being_made.environments == [EnvironmentHeld(trajectory="t", units={"memory_mb": 100, "starts": 1})]
    assert listed.environments == [EnvironmentHeld(trajectory="t", units={"memory_mb": 100})]
    assert (began.action, began.result.status) == ("a", "ok")
    assert kinds(ended) == [EnvironmentEnded] * 2
    assert {one.trajectory: (one.node, one.incarnation, one.ended) for one in ended} == {
        "t": ("n", "1", "closed"),
        "unknown": ("n", "1", "closed"),
    }
    assert post.parts.runtime.made[0].closed


async def test_a_requested_image_is_prepared(post: NodeUnderTest) -> None:
    await post.send(ImageRequested(epoch=1, image="local"))

    async def prepared() -> bool:
        return post.parts.runtime.prepared == ["local"]

    await soon(prepared)


async def test_a_heartbeat_reports_a_created_environment_during_its_first_action(post: NodeUnderTest) -> None:
    post.parts.runtime.create_waits = post.parts.runtime.waits = True
    await post.send(in_environment("a", begins=True))
    async with running(lambda: post.node.heartbeats(0.01)):
        (started,) = await post.outcomes(1)
        assert isinstance(started, Started)
        post.parts.runtime.create_waits = False
        post.parts.runtime.go.set()
        post.parts.runtime.go = asyncio.Event()
        made = (await post.outcomes(2))[1]
        post.parts.runtime.go.set()
        finished = (await post.outcomes(3))[2]

    assert (made, finished.result.status) == (EnvironmentCreated(node="n", incarnation="1", trajectory="t"), "ok")


async def test_a_heartbeat_reports_added_and_removed_images(post: NodeUnderTest) -> None:
    post.parts.runtime.has = {"a:1", "b:1"}
    await post.send(InventoryRequested(epoch=1))
    (inventory,) = await post.outcomes(1)
    post.parts.runtime.has = {"b:1", "c:1"}
    async with running(lambda: post.node.heartbeats(0.01)):
        changed = (await post.outcomes(2))[1]

    assert inventory.images == ["a:1", "b:1"]
    assert changed == ImagesChanged(node="n", incarnation="1", added=["c:1"], removed=["a:1"])


async def test_a_postponed_attempt_is_reported_with_its_reason_and_time(post: NodeUnderTest) -> None:
    post.parts.runtime.fails = Postponed("the registry limits pulls", 7.0)
    await post.send(in_environment("a", begins=True))
    (end,) = await post.outcomes(1)

    assert (end.result.status, end.result.reason, end.result.retry_in_s) == (
        "postponed",
        "the registry limits pulls",
        7.0,
    )
    assert (end.result.environment_exists, post.parts.memory.used) == (False, 0)


async def test_a_heartbeat_reports_memory_and_finds_dead_environments(post: NodeUnderTest) -> None:
    await post.send(in_environment("a", begins=True))
    await post.outcomes(1)
    async with running(lambda: post.node.heartbeats(0.01)):
        _, beat = await post.announcements(2)
        post.parts.runtime.made[0].alive = False
        ended = (await post.outcomes(2))[1]

    assert (beat.used["memory_mb"], beat.owned["memory_mb"]) == (100, 1000)
    assert isinstance(ended, EnvironmentEnded)
    assert (ended.trajectory, ended.ended) == ("t", "lost")


async def test_stopping_closes_environments_before_bye(post: NodeUnderTest) -> None:
    await post.send(in_environment("a", begins=True))
    await post.outcomes(1)

    await post.node.stop()

    ended = (await post.published(OUTCOMES))[-1]
    assert (ended.trajectory, ended.ended, ended.reason) == ("t", "lost", "the node is stopping")
    assert (await post.published(NODES))[-1] == Bye(node="n", incarnation="1")


async def test_read_entries_are_trimmed(post: NodeUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_manager_module, "TRIM_EVERY", 10)
    await post.send(*(grant(f"a{number}") for number in range(25)))

    async def trimmed() -> bool:
        return int(await command(post.redis, "XLEN", TOPIC.name)) < 10

    assert len(await post.outcomes(25)) == 25
    await soon(trimmed)


async def test_large_grants_are_trimmed_sooner(post: NodeUnderTest) -> None:
    params = b'"' + b"x" * (node_manager_module.TRIM_BYTES // 4) + b'"'
    await post.send(*(grant(f"a{number}", params=params) for number in range(12)))

    async def trimmed() -> bool:
        return int(await command(post.redis, "XLEN", TOPIC.name)) < 4

    assert len(await post.outcomes(12)) == 12
    await soon(trimmed)


async def test_a_heartbeat_trims_the_rest_and_keeps_unread_entries(post: NodeUnderTest) -> None:
    await post.send(grant("a"))
    await post.outcomes(1)
    async with running(lambda: post.node.heartbeats(3600.0)):

        async def trimmed() -> bool:
            return int(await command(post.redis, "XLEN", TOPIC.name)) == 0

        await soon(trimmed)
    await post.send(grant("b"))

    assert [one.action for one in await post.outcomes(2)] == ["a", "b"]


async def test_a_heartbeat_reports_units_and_running_attempts(post: NodeUnderTest) -> None:
    post.parts.grader.waits = True
    shares = [ShareSet(epoch=1, resource=name, units=units) for name, units in (("cores", 2), ("slots", 0))]
    await post.send(grant("a", units={"cores": 3, "slots": 1}), *shares, InventoryRequested(epoch=1))
    await post.outcomes(1)
    post.parts.clock.now += 2.0
    async with running(lambda: post.node.heartbeats(3600.0)):
        _, beat = await post.announcements(2)

    assert isinstance(beat, Heartbeat)
    held = {"cores": 3, "slots": 1, "memory_mb": 0}
    assert (beat.owned, beat.used) == (held | {"memory_mb": 1000}, held), "what is used is owned, whatever the share"
    assert beat.used_unit_s == {"cores": 6.0, "slots": 2.0, "memory_mb": 0.0}
    assert (await post.outcomes(2))[1] == Started(action="a", node="n", epoch=1, attempt=1)


async def test_a_heartbeat_reports_the_cold_start_once_it_was_measured(post: NodeUnderTest) -> None:
    async with running(lambda: post.node.heartbeats(0.01)):
        _, unknown = await post.announcements(2)
        post.executor.cold_start.measured(0.25)

        async def reported() -> bool:
            newest: Heartbeat = (await post.published(NODES))[-1]
            return newest.cold_start_s == {"cores": 0.25}

        await soon(reported)
    assert unknown.cold_start_s == {}


async def test_the_hello_is_repeated(post: NodeUnderTest) -> None:
    async with running(lambda: post.node.heartbeats(0.0)):
        output = await post.announcements(1 + HEARTBEATS_A_HELLO + 1)

    assert [place for place, one in enumerate(output) if isinstance(one, Hello)] == [0, HEARTBEATS_A_HELLO]


async def test_a_node_with_a_new_offer_publishes_and_repeats_it(post: NodeUnderTest) -> None:
    await post.announcements(1)
    more = {"kinds": ["act", "work"], "runtimes": ["docker"], "labels": {"runtime.docker": "28.2"}}
    await post.node.offer(**more)  # type: ignore[arg-type]
    async with running(lambda: post.node.heartbeats(0.0)):
        output = await post.announcements(2 + HEARTBEATS_A_HELLO + 1)

    grown = msgspec.structs.replace(HELLO, **more)
    assert [one for one in output if isinstance(one, Hello)] == [HELLO, grown, grown]


async def test_stopping_reports_lost_attempts_and_publishes_bye(post: NodeUnderTest) -> None:
    post.parts.grader.waits = True
    await post.send(*(grant(name) for name in ("a", "b")), InventoryRequested(epoch=1))
    await post.outcomes(1)

    await post.node.stop()

    lost = (await post.published(OUTCOMES))[1:]
    assert sorted((one.action, one.result.status) for one in lost) == [("a", "lost"), ("b", "lost")]
    assert (await post.published(NODES))[-1] == Bye(node="n", incarnation="1")


async def test_stopping_without_valkey_ends(tmp_path: Any) -> None:
    nowhere = f"unix://{tmp_path}/no.sock"
    async with connect(nowhere, name="test") as redis, connect(nowhere, name="test-reader") as reader:
        lonely = NodeUnderTest(redis, reader)
        lonely.parts.grader.waits = True
        lonely.parts.attempts.accept(grant("a"))

        async with asyncio.timeout(20):
            await lonely.node.stop()

        assert len(lonely.parts.attempts) == 0
