"""The agent of a CPU host: environments and images in its reports, and its cold start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from services.cpu_manager.environments.protocol import Postponed
from services.cpu_manager.sandboxed_graders import SandboxedGraders
from shared.messages.grants import EnvironmentClosed, ImageRequested, InventoryRequested
from shared.messages.nodes import NODES, Bye, Heartbeat
from shared.messages.outcomes import (
    OUTCOMES,
    EnvironmentCreated,
    EnvironmentEnded,
    EnvironmentHeld,
    ImagesChanged,
    Started,
)
from shared.node.agent import NodeAgent
from shared.node.connection import NodeConnection
from tests.services.cpu_manager.node_parts import NodeParts, in_environment
from tests.shared.bus.soon import soon
from tests.shared.node.leader_end import LeaderEnd, kinds, loaded_connection, running


class CpuNodeUnderTest(LeaderEnd):
    """A CPU host with a scripted grader and a fake runtime, and the leader's end of its streams."""

    def __init__(self, connection: NodeConnection) -> None:
        super().__init__(connection.redis, connection.identity)
        self.parts = NodeParts()
        self.parts.registry.report = connection.outbox.put
        self.outbox = connection.outbox
        self.graders = SandboxedGraders(self.parts.sandbox, {}, {})
        self.agent = NodeAgent(
            connection,
            self.parts.executor,
            environments=self.parts.registry,
            clock=self.parts.clock,
            cold_start_s=self.graders.cold_start_s,
        )


@pytest.fixture
async def post(redis_url: str) -> AsyncIterator[CpuNodeUnderTest]:
    async with loaded_connection(redis_url) as connection:
        made = CpuNodeUnderTest(connection)
        async with running(made.agent.run, made.outbox.run):
            yield made
            await made.agent.attempts.stop()


async def test_environments_are_listed_in_the_inventory_from_creation_to_end(post: CpuNodeUnderTest) -> None:
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


async def test_a_requested_image_is_prepared(post: CpuNodeUnderTest) -> None:
    await post.send(ImageRequested(epoch=1, image="local"))

    async def prepared() -> bool:
        return post.parts.runtime.prepared == ["local"]

    await soon(prepared)


async def test_a_heartbeat_reports_a_created_environment_during_its_first_action(post: CpuNodeUnderTest) -> None:
    post.parts.runtime.create_waits = post.parts.runtime.waits = True
    await post.send(in_environment("a", begins=True))
    async with running(lambda: post.agent.heartbeats(0.01)):
        (started,) = await post.outcomes(1)
        assert isinstance(started, Started)
        post.parts.runtime.create_waits = False
        post.parts.runtime.go.set()
        post.parts.runtime.go = asyncio.Event()
        made = (await post.outcomes(2))[1]
        post.parts.runtime.go.set()
        finished = (await post.outcomes(3))[2]

    assert (made, finished.result.status) == (EnvironmentCreated(node="n", incarnation="1", trajectory="t"), "ok")


async def test_a_heartbeat_reports_added_and_removed_images(post: CpuNodeUnderTest) -> None:
    post.parts.runtime.has = {"a:1", "b:1"}
    await post.send(InventoryRequested(epoch=1))
    (inventory,) = await post.outcomes(1)
    post.parts.runtime.has = {"b:1", "c:1"}
    async with running(lambda: post.agent.heartbeats(0.01)):
        changed = (await post.outcomes(2))[1]

    assert inventory.images == ["a:1", "b:1"]
    assert changed == ImagesChanged(node="n", incarnation="1", added=["c:1"], removed=["a:1"])


async def test_a_postponed_attempt_is_reported_with_its_reason_and_time(post: CpuNodeUnderTest) -> None:
    post.parts.runtime.fails = Postponed("the registry limits pulls", 7.0)
    await post.send(in_environment("a", begins=True))
    (end,) = await post.outcomes(1)

    assert (end.result.status, end.result.reason, end.result.retry_in_s) == (
        "postponed",
        "the registry limits pulls",
        7.0,
    )
    assert (end.result.environment_exists, post.parts.memory.used) == (False, 0)


async def test_a_heartbeat_reports_memory_and_finds_dead_environments(post: CpuNodeUnderTest) -> None:
    await post.send(in_environment("a", begins=True))
    await post.outcomes(1)
    async with running(lambda: post.agent.heartbeats(0.01)):
        _, beat = await post.announcements(2)
        post.parts.runtime.made[0].alive = False
        ended = (await post.outcomes(2))[1]

    assert (beat.used["memory_mb"], beat.owned["memory_mb"]) == (100, 1000)
    assert isinstance(ended, EnvironmentEnded)
    assert (ended.trajectory, ended.ended) == ("t", "lost")


async def test_stopping_closes_environments_before_bye(post: CpuNodeUnderTest) -> None:
    await post.send(in_environment("a", begins=True))
    await post.outcomes(1)

    await post.agent.stop()

    ended = (await post.published(OUTCOMES))[-1]
    assert (ended.trajectory, ended.ended, ended.reason) == ("t", "lost", "the node is stopping")
    assert (await post.published(NODES))[-1] == Bye(node="n", incarnation="1")


async def test_a_heartbeat_reports_the_cold_start_once_it_was_measured(post: CpuNodeUnderTest) -> None:
    async with running(lambda: post.agent.heartbeats(0.01)):
        _, unknown = await post.announcements(2)
        post.graders.cold_start.measured(0.25)

        async def reported() -> bool:
            newest: Heartbeat = (await post.published(NODES))[-1]
            return newest.cold_start_s == {"cores": 0.25}

        await soon(reported)
    assert unknown.cold_start_s == {}
