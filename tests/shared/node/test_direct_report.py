"""Direct reports: an outcome is confirmed, or stored; and what is behind it is stored after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from shared.bus import channels, functions
from shared.bus.connection import command, connect
from shared.messages.outcomes import CONFIRMATIONS, OUTCOMES, Confirmed, Finished, Outcome, Started
from shared.node import direct_report
from shared.node.direct_report import MOST_BYTES, DirectReport, confirmation_of
from shared.node.identity import NodeIdentity
from shared.node.outbox import Outbox
from shared.policy.model.results import AttemptResult
from tests.shared.bus.soon import soon

NODE = NodeIdentity("n", "1")


def finished(action: str, status: Any = "ok", output: bytes = b"") -> Finished:
    return Finished(
        action=action, node="n", incarnation="1", epoch=3, attempt=1, stage=0,
        result=AttemptResult(status, output=output),
    )  # fmt: skip


STARTED = Started(action="b", node="n", epoch=3, attempt=1)


@dataclass
class LeaderOfATest:
    """Receives direct outcomes, and confirms what it is told to."""

    redis: Redis
    confirms: Callable[[Finished], Confirmed | bytes | None] = confirmation_of
    received: list[Outcome] = field(default_factory=list)

    def receive(self, message: bytes) -> None:
        outcome = OUTCOMES.decode(message)
        assert isinstance(outcome, Finished)
        self.received.append(outcome)
        confirmed = self.confirms(outcome)
        if confirmed is not None:
            message = confirmed if isinstance(confirmed, bytes) else CONFIRMATIONS.encode(confirmed)
            channels.post(self.redis, channels.confirmations("n", "1"), message)


@dataclass
class NodeOfATest:
    redis: Redis
    box: Outbox
    leader: LeaderOfATest

    async def stored(self) -> list[Outcome]:
        rows = await command(self.redis, "XRANGE", OUTCOMES.name, "-", "+")
        return [OUTCOMES.decode(fields[1]) for _, fields in rows]

    async def all_left(self) -> None:
        async def left() -> bool:
            return not self.box._waiting

        await soon(left)


@asynccontextmanager
async def node(redis_url: str, *, led: bool = True) -> AsyncIterator[NodeOfATest]:
    async with (
        connect(redis_url, name="node") as redis,
        connect(redis_url, name="confirmations") as confirmations,
        connect(redis_url, name="leader") as subscriber,
    ):
        await functions.load(redis)
        leader = LeaderOfATest(redis)
        direct = DirectReport(redis, confirmations, NODE)
        box = Outbox(redis, direct)
        box.is_idle = lambda: True
        tasks = [asyncio.create_task(direct.run()), asyncio.create_task(box.run())]
        if led:
            tasks.append(asyncio.create_task(channels.follow(subscriber, channels.DIRECT_OUTCOMES, leader.receive)))

        async def ready() -> bool:
            listed = await command(redis, "PUBSUB", "CHANNELS")
            return len(listed) == 1 + led

        await soon(ready)
        try:
            yield NodeOfATest(redis, box, leader)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


async def test_a_confirmed_outcome_is_not_stored(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_report, "CONFIRMED_WITHIN_S", 3600.0)  # whatever pauses this machine makes
    async with node(redis_url) as one:
        sent = [finished(f"a{number}") for number in range(20)]
        for outcome in sent:
            one.box.put(outcome)
            await one.all_left()
        assert one.leader.received == sent
        assert await one.stored() == []


async def test_an_outcome_that_nobody_receives_is_stored_at_once(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_report, "CONFIRMED_WITHIN_S", 3600.0)
    async with node(redis_url, led=False) as one:
        for name in ("a", "b"):
            one.box.put(finished(name))
            await one.all_left()
        assert await one.stored() == [finished("a"), finished("b")]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"no message",
        Confirmed(action="other", stage=0, epoch=3, attempt=1),
        Confirmed(action="a", stage=1, epoch=3, attempt=1),
        Confirmed(action="a", stage=0, epoch=4, attempt=1),
        Confirmed(action="a", stage=0, epoch=3, attempt=2),
    ],
)
async def test_an_outcome_that_is_not_confirmed_is_stored(redis_url: str, answer: Confirmed | bytes | None) -> None:
    """And those that follow within `PAUSE_S` are stored only."""
    async with node(redis_url) as one:
        one.leader.confirms = lambda _: answer
        for name in ("a", "b"):
            one.box.put(finished(name))
            await one.all_left()
        assert one.leader.received == [finished("a")]
        assert await one.stored() == [finished("a"), finished("b")]


async def test_direct_reports_go_on_after_a_pause(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_report, "PAUSE_S", 0.05)
    async with node(redis_url) as one:
        one.leader.confirms = lambda _: None
        one.box.put(finished("a"))
        await one.all_left()
        one.leader.confirms = confirmation_of
        monkeypatch.setattr(direct_report, "CONFIRMED_WITHIN_S", 3600.0)
        await asyncio.sleep(0.06)
        one.box.put(finished("b"))
        await one.all_left()
        assert await one.stored() == [finished("a")]


async def test_what_is_put_behind_it_ends_the_wait_and_is_stored_after_it(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_report, "CONFIRMED_WITHIN_S", 3600.0)
    async with node(redis_url) as one:
        one.leader.confirms = lambda _: None
        one.box.put(finished("a"))

        async def received() -> bool:
            return bool(one.leader.received)

        await soon(received)
        one.box.put(STARTED)
        await one.all_left()
        assert await one.stored() == [finished("a"), STARTED]
        one.leader.confirms = confirmation_of
        one.box.put(finished("c"))
        await one.all_left()
        assert await one.stored() == [finished("a"), STARTED], "no pause follows"


@pytest.mark.parametrize("why", ["another outcome waits", "it is no result", "it is large", "the node is busy"])
async def test_other_outcomes_are_stored_only(redis_url: str, why: str) -> None:
    async with node(redis_url) as one:
        sent: list[Outcome] = [finished("a")]
        match why:
            case "another outcome waits":
                sent.append(STARTED)
            case "it is no result":
                sent = [finished("a", "lost")]
            case "it is large":
                sent = [finished("a", output=b"1" * MOST_BYTES)]
            case _:
                one.box.is_idle = lambda: False
        for outcome in sent:
            one.box.put(outcome)
        await one.all_left()
        assert one.leader.received == []
        assert await one.stored() == sent


async def test_a_stopping_node_stores_what_is_not_confirmed(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_report, "CONFIRMED_WITHIN_S", 0.2)
    async with node(redis_url) as one:
        one.leader.confirms = lambda _: None
        one.box.put(finished("a"))
        await asyncio.sleep(0.02)
        async with asyncio.timeout(2.0):
            await one.box.flush()
        assert await one.stored() == [finished("a")]


def test_a_confirmation_names_the_attempt() -> None:
    outcome = msgspec.structs.replace(finished("a"), stage=2, attempt=5)
    assert confirmation_of(outcome) == Confirmed(action="a", stage=2, epoch=3, attempt=5)


async def test_a_user_without_channels_stores_outcomes(redis_url: str) -> None:
    """Access control lists give a new user no channel (`acl-pubsub-default resetchannels`)."""
    scheme, _, rest = redis_url.partition("://")
    async with connect(redis_url, name="admin") as admin:
        await command(admin, "ACL", "SETUSER", "plain", "reset", "on", ">pw", "~*", "+@all", "resetchannels")
        try:
            async with connect(f"{scheme}://plain:pw@{rest}", name="node") as redis:
                direct = DirectReport(redis, redis, NODE)
                box = Outbox(redis, direct)
                box.is_idle = lambda: True
                following = asyncio.create_task(direct.run())
                box.put(finished("a"))
                await box.flush()
                await asyncio.sleep(0.05)
                assert not following.done(), "the process goes on"
                following.cancel()
                await asyncio.wait([following])
            ((_, fields),) = await command(admin, "XRANGE", OUTCOMES.name, "-", "+")
            assert OUTCOMES.decode(fields[1]) == finished("a")
        finally:
            await command(admin, "ACL", "DELUSER", "plain")
