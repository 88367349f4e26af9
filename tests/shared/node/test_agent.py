"""A node and its leader: messages handled in order, older epochs ignored, and the node's own reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from shared.bus.connection import command
from shared.bus.nodes import publish_hello, read_hellos
from shared.bus.streams import trim_through
from shared.messages.grants import EnvironmentClosed, ImageRequested, InventoryRequested, Revoked, ShareSet
from shared.messages.nodes import NODES, Bye, Heartbeat, Hello
from shared.messages.outcomes import OUTCOMES, Finished, InventoryTaken, Started
from shared.node import agent as agent_module
from shared.node.agent import HEARTBEATS_A_HELLO, NodeAgent
from shared.node.connection import NodeConnection, open_node
from shared.node.executor import Offer
from tests.shared.bus.soon import soon
from tests.shared.node.leader_end import LeaderEnd, kinds, loaded_connection, node_connection, running
from tests.shared.node.scripted import ScriptedExecutor, StoppedClock, grant

HELLO = Hello(
    node="n", incarnation="1", node_class="default", capacity={"tokens": 4, "seats": 8}, kinds=["work"],
    prefetches=["tokens"],
)  # fmt: skip


class AgentUnderTest(LeaderEnd):
    """An agent with a scripted executor, and the leader's end of its streams."""

    def __init__(self, connection: NodeConnection) -> None:
        super().__init__(connection.redis, connection.identity)
        self.outbox = connection.outbox
        self.executor = ScriptedExecutor()
        self.units = self.executor.resources
        self.clock = StoppedClock()
        self.agent = NodeAgent(connection, self.executor, clock=self.clock)


@pytest.fixture
async def post(redis_url: str) -> AsyncIterator[AgentUnderTest]:
    async with loaded_connection(redis_url) as connection:
        made = AgentUnderTest(connection)
        async with running(made.agent.run, made.outbox.run):
            yield made
            await made.agent.attempts.stop()


async def test_it_publishes_hello_first(post: AgentUnderTest) -> None:
    assert await post.announcements(1) == [HELLO]


async def test_a_grant_is_executed_and_its_outcome_published(post: AgentUnderTest) -> None:
    await post.send(grant("a", attempt=2))

    (outcome,) = await post.outcomes(1)
    assert isinstance(outcome, Finished)
    assert (outcome.action, outcome.attempt, outcome.result.status) == ("a", 2, "ok")


async def test_grants_that_were_sent_before_it_read_are_not_lost(redis_url: str) -> None:
    async with loaded_connection(redis_url) as connection:
        late = AgentUnderTest(connection)
        await late.send(grant("a"), grant("b"))
        async with running(late.agent.run, late.outbox.run):
            assert sorted(one.action for one in await late.outcomes(2)) == ["a", "b"]


async def test_messages_of_an_older_epoch_are_ignored(post: AgentUnderTest) -> None:
    post.executor.waits = True
    await post.send(grant("new", epoch=5), grant("old", epoch=4), Revoked(action="new", epoch=4, attempt=1))
    await post.send(ShareSet(epoch=4, resource="tokens", units=1), grant("newer", epoch=6), grant("new again", epoch=5))
    await post.send(InventoryRequested(epoch=6))
    await post.outcomes(1)
    post.executor.go.set()

    finished = [one for one in await post.outcomes(3) if isinstance(one, Finished)]
    assert [(one.action, one.result.status) for one in finished] == [("new", "ok"), ("newer", "ok")]
    assert post.units["tokens"].owned == 4


async def test_a_revocation_stops_a_running_attempt(post: AgentUnderTest) -> None:
    post.executor.waits = True
    await post.send(grant("a"), Revoked(action="a", epoch=1, attempt=1))

    (outcome,) = await post.outcomes(1)
    assert (outcome.action, outcome.result.status) == ("a", "cancelled")


async def test_it_owns_the_share_that_the_leader_set(post: AgentUnderTest) -> None:
    shares = [("tokens", 2), ("seats", 5), ("gpus", 1)]
    await post.send(
        *(ShareSet(epoch=1, resource=name, units=units) for name, units in shares), InventoryRequested(epoch=1)
    )
    await post.outcomes(1)

    assert (post.units["tokens"].owned, post.units["seats"].owned) == (2, 5)


async def test_an_inventory_comes_after_every_outcome_before_it(post: AgentUnderTest) -> None:
    await post.send(*(grant(f"a{number}") for number in range(4)))
    await post.outcomes(4)
    post.executor.waits = True
    await post.send(grant("runs", attempt=3, stage=1, tokens=2), InventoryRequested(epoch=7))

    *finished, inventory = await post.outcomes(5)

    assert kinds(finished) == [Finished] * 4
    assert isinstance(inventory, InventoryTaken)
    assert (inventory.node, inventory.incarnation, inventory.epoch) == ("n", "1", 7)
    assert [(one.action, one.attempt, one.stage, one.units) for one in inventory.held] == [
        ("runs", 3, 1, {"tokens": 2})
    ]
    assert post.agent.met_leader


async def test_read_entries_are_trimmed(post: AgentUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_module, "TRIM_EVERY", 10)
    await post.send(*(grant(f"a{number}") for number in range(25)))

    async def trimmed() -> bool:
        return int(await command(post.redis, "XLEN", post.topic.name)) < 10

    assert len(await post.outcomes(25)) == 25
    await soon(trimmed)


async def test_large_grants_are_trimmed_sooner(post: AgentUnderTest) -> None:
    params = b'"' + b"x" * (agent_module.TRIM_BYTES // 4) + b'"'
    await post.send(*(grant(f"a{number}", params=params) for number in range(12)))

    async def trimmed() -> bool:
        return int(await command(post.redis, "XLEN", post.topic.name)) < 4

    assert len(await post.outcomes(12)) == 12
    await soon(trimmed)


async def test_a_heartbeat_trims_the_rest_and_keeps_unread_entries(post: AgentUnderTest) -> None:
    await post.send(grant("a"))
    await post.outcomes(1)
    async with running(lambda: post.agent.heartbeats(3600.0)):

        async def trimmed() -> bool:
            return int(await command(post.redis, "XLEN", post.topic.name)) == 0

        await soon(trimmed)
    await post.send(grant("b"))

    assert [one.action for one in await post.outcomes(2)] == ["a", "b"]


async def test_a_heartbeat_repeats_a_trim_that_has_failed(
    post: AgentUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = asyncio.Event()

    async def failing_once(*arguments: Any) -> None:
        if not failed.is_set():
            failed.set()
            raise ConnectionError
        await trim_through(*arguments)

    monkeypatch.setattr(agent_module, "trim_through", failing_once)
    await post.send(grant("a"))
    await post.outcomes(1)
    async with running(lambda: post.agent.heartbeats(0.01)):

        async def trimmed() -> bool:
            return int(await command(post.redis, "XLEN", post.topic.name)) == 0

        await soon(trimmed)
    assert failed.is_set()


async def test_a_heartbeat_reports_units_and_running_attempts(post: AgentUnderTest) -> None:
    post.executor.waits = True
    shares = [ShareSet(epoch=1, resource=name, units=units) for name, units in (("tokens", 2), ("seats", 0))]
    await post.send(grant("a", units={"tokens": 3, "seats": 1}), *shares, InventoryRequested(epoch=1))
    await post.outcomes(1)
    post.clock.now += 2.0
    async with running(lambda: post.agent.heartbeats(3600.0)):
        _, beat = await post.announcements(2)

    assert isinstance(beat, Heartbeat)
    held = {"tokens": 3, "seats": 1}
    assert (beat.owned, beat.used) == (held, held), "what is used is owned, whatever the share"
    assert beat.used_unit_s == {"tokens": 6.0, "seats": 2.0}
    assert (await post.outcomes(2))[1] == Started(action="a", node="n", epoch=1, attempt=1)


async def test_the_hello_is_repeated(post: AgentUnderTest) -> None:
    async with running(lambda: post.agent.heartbeats(0.0)):
        output = await post.announcements(1 + HEARTBEATS_A_HELLO + 1)

    assert [place for place, one in enumerate(output) if isinstance(one, Hello)] == [0, HEARTBEATS_A_HELLO]


async def test_the_hello_is_repeated_after_a_long_silence(post: AgentUnderTest) -> None:
    """While Valkey is away, or the process is suspended, there are no heartbeats that count."""
    await post.announcements(1)
    post.clock.now += 3600.0
    async with running(lambda: post.agent.heartbeats(0.01)):
        output = await post.announcements(4)

    assert [type(one) for one in output] == [Hello, Hello, Heartbeat, Heartbeat]


async def test_a_node_with_a_new_offer_publishes_and_repeats_it(post: AgentUnderTest) -> None:
    await post.announcements(1)
    more = {"kinds": ["act", "work"], "runtimes": ["docker"], "labels": {"runtime.docker": "28.2"}}
    post.executor.offered = Offer(["work", "act"], {"runtime.docker": "28.2"}, ["docker"])
    await post.agent.publish_offer()
    async with running(lambda: post.agent.heartbeats(0.0)):
        output = await post.announcements(2 + HEARTBEATS_A_HELLO + 1)

    grown = msgspec.structs.replace(HELLO, **more)
    assert [one for one in output if isinstance(one, Hello)] == [HELLO, grown, grown]


async def test_an_older_offer_replaces_no_newer_one(post: AgentUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hello whose publication is repeated has the offer of that time."""
    await post.announcements(1)
    failed = asyncio.Event()

    async def failing_once(*arguments: Any) -> bool:
        if not failed.is_set():
            failed.set()
            raise ConnectionError
        return await publish_hello(*arguments)

    monkeypatch.setattr(agent_module, "publish_hello", failing_once)
    repeated = asyncio.create_task(post.agent.publish_offer())
    await failed.wait()
    post.executor.offered = Offer(["work", "act"])
    await post.agent.publish_offer()
    await repeated

    grown = msgspec.structs.replace(HELLO, kinds=["act", "work"])
    assert [one.hello for one in await read_hellos(post.redis)] == [grown]


async def test_stopping_reports_lost_attempts_and_publishes_bye(post: AgentUnderTest) -> None:
    post.executor.waits = True
    await post.send(*(grant(name) for name in ("a", "b")), InventoryRequested(epoch=1))
    await post.outcomes(1)

    await post.agent.stop()

    lost = (await post.published(OUTCOMES))[1:]
    assert sorted((one.action, one.result.status) for one in lost) == [("a", "lost"), ("b", "lost")]
    assert (await post.published(NODES))[-1] == Bye(node="n", incarnation="1")


async def test_stopping_without_valkey_ends(tmp_path: Any) -> None:
    nowhere = f"unix://{tmp_path}/no.sock"
    async with node_connection(nowhere) as connection:
        lonely = AgentUnderTest(connection)
        lonely.executor.waits = True
        lonely.agent.attempts.accept(grant("a"))

        async with asyncio.timeout(20):
            await lonely.agent.stop()

        assert len(lonely.agent.attempts) == 0


async def test_its_hello_is_stored_until_its_bye(post: AgentUnderTest) -> None:
    await post.announcements(1)
    assert [one.hello for one in await read_hellos(post.redis)] == [HELLO]

    await post.agent.stop()
    assert await read_hellos(post.redis) == []


async def test_an_earlier_start_does_not_take_its_name_back(post: AgentUnderTest) -> None:
    later = msgspec.structs.replace(HELLO, incarnation="2", generation=1)
    await post.announcements(1)
    await publish_hello(post.redis, later)

    await post.agent.publish_offer()

    assert [one.hello for one in await read_hellos(post.redis)] == [later]
    assert await post.published(NODES) == [HELLO, later]


async def test_messages_about_environments_change_nothing_on_a_node_without_them(post: AgentUnderTest) -> None:
    await post.send(EnvironmentClosed(epoch=1, trajectory="t"), ImageRequested(epoch=1, image="a:1"), grant("a"))

    (outcome,) = await post.outcomes(1)
    assert isinstance(outcome, Finished)
    assert outcome.action == "a"


async def test_each_start_of_a_manager_has_an_incarnation_and_a_higher_generation(redis_url: str) -> None:
    async with (
        open_node(redis_url, name="test", node="n") as first,
        open_node(redis_url, name="test", node="n") as next_,
    ):
        assert first.identity.node == next_.identity.node == "n"
        assert first.identity.incarnation != next_.identity.incarnation
        assert 0 < first.identity.generation < next_.identity.generation


async def test_a_running_agent_is_ready_after_a_request_for_its_inventory_and_publishes_bye_at_the_end(
    redis_url: str,
) -> None:
    async with loaded_connection(redis_url) as connection:
        post = AgentUnderTest(connection)
        async with post.agent.running(heartbeat_s=3600.0):
            assert post.agent.unready() == "no leader has requested this node's inventory yet"
            await post.send(InventoryRequested(epoch=1))
            await post.outcomes(1)
            assert post.agent.unready() is None
        assert (await post.published(NODES))[-1] == Bye(node="n", incarnation="1")
