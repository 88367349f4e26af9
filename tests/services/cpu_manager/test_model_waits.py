"""Actions are parked while their environments only wait for models. The journal of a real Valkey is the judge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import cast

import pytest

from services.cpu_manager import model_waits
from services.cpu_manager.environments.protocol import Environment
from services.cpu_manager.managed_environments import UnparkedAction
from services.cpu_manager.model_waits import REASON, ModelWaits
from shared.bus import functions, parking
from shared.bus.actions import read_action
from shared.bus.connection import connect
from shared.bus.functions import Granting
from shared.messages.grants import Granted
from shared.runtime.background import Background
from tests.services.cpu_manager.node_parts import SPEC, FakeEnvironment, FakeRuntime, in_environment
from tests.shared.bus.journal import Journal
from tests.shared.bus.soon import soon
from tests.shared.bus.test_parking import requests
from tests.shared.bus.test_trajectory_functions import begun, opened, submit

AFTER_S = 0.03


@dataclass
class Node:
    """A node with one environment, of trajectory t1, in which a1 runs."""

    journal: Journal
    waits: ModelWaits = field(init=False)
    environment: FakeEnvironment = field(default_factory=lambda: FakeEnvironment("t1", SPEC, FakeRuntime()))
    parked: bool = False
    thaws: int = 0
    grant: Granted | None = field(default_factory=lambda: in_environment("a1", "t1"))

    def acting_in(self, trajectory: str) -> UnparkedAction | None:
        assert trajectory == "t1"
        if self.grant is None or self.parked:
            return None
        return UnparkedAction(self.grant, cast("Environment", self.environment), self.thaws)

    def calls(self, open_calls: int, waiting: int) -> None:
        self.waits.changed("t1", open_calls, waiting)

    async def computes(self) -> None:
        """Use a whole core."""
        while True:
            await asyncio.sleep(AFTER_S / 10)
            self.environment.used_s = asyncio.get_running_loop().time()

    async def has_asked(self, *wanted: str) -> None:
        async def asked() -> bool:
            return await requests(self.journal) == list(wanted)

        await soon(asked)

    async def still_asks(self, *wanted: str) -> None:
        """Nothing more is requested for a while."""
        await asyncio.sleep(10 * AFTER_S)
        assert await requests(self.journal) == list(wanted)


@pytest.fixture
async def node(redis_url: str) -> AsyncIterator[Node]:
    crashes = list[bool]()
    async with connect(redis_url, name="test") as redis:
        await functions.load(redis)
        journal = await Journal.led(redis)
        await opened(journal)
        await submit(journal, "a1")
        await begun(journal)
        async with Background(lambda: crashes.append(True)) as background:
            node = Node(journal)
            node.waits = ModelWaits(redis, "n", node, background, AFTER_S)
            yield node
        assert not crashes


async def test_an_action_is_parked_until_its_call_is_answered(node: Node) -> None:
    for turn in range(1, 4):
        node.calls(1, 0)
        node.calls(1, 1)
        await node.has_asked(*["Park", "Resu"] * (turn - 1), "Park")
        record = await read_action(node.journal.redis, "a1")
        assert record is not None
        assert record.parked_because == REASON
        node.calls(0, 0)
        await node.has_asked(*["Park", "Resu"] * turn)


async def test_a_call_that_is_answered_soon_parks_nothing(node: Node) -> None:
    for _ in range(20):
        node.calls(1, 1)
        await asyncio.sleep(AFTER_S / 10)
        node.calls(0, 0)
    await node.still_asks()


async def test_a_request_that_is_not_received_whole_parks_nothing(node: Node) -> None:
    node.calls(2, 1)
    await node.still_asks()


async def test_an_environment_that_computes_is_not_parked_before_it_is_idle(node: Node) -> None:
    async with asyncio.TaskGroup() as tasks:
        computing = tasks.create_task(node.computes())
        node.calls(1, 1)
        await node.still_asks()
        computing.cancel()
    await node.has_asked("Park")
    node.calls(0, 0)
    await node.has_asked("Park", "Resu")


async def test_of_two_calls_the_first_answer_lets_it_continue(node: Node) -> None:
    """It is parked again if it does nothing with that answer."""
    node.calls(2, 2)
    await node.has_asked("Park")
    node.calls(1, 1)
    await node.has_asked("Park", "Resu", "Park")
    node.calls(0, 0)
    await node.has_asked("Park", "Resu", "Park", "Resu")


async def test_an_action_that_waits_for_its_cores_is_not_parked_again(node: Node) -> None:
    """It is frozen still, so it only seems to be idle."""
    node.calls(2, 2)
    await node.has_asked("Park")
    node.parked = True
    node.calls(1, 1)
    await node.has_asked("Park", "Resu")
    await node.still_asks("Park", "Resu")
    node.parked, node.thaws = False, 1
    await node.has_asked("Park", "Resu", "Park")


async def test_a_thaw_between_two_looks_is_no_idle_time(node: Node) -> None:
    async with asyncio.TaskGroup() as tasks:

        async def thaw() -> None:
            while True:
                await asyncio.sleep(AFTER_S / 4)
                node.thaws += 1

        thawing = tasks.create_task(thaw())
        node.calls(1, 1)
        await node.still_asks()
        thawing.cancel()
    await node.has_asked("Park")


async def test_a_call_that_never_ends_does_not_park_for_ever(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_waits, "MOST_PARKED_S", 0.2)
    node.calls(1, 1)
    await node.has_asked("Park", "Resu", "Park")


async def test_changes_that_arrive_together_are_one_change(node: Node) -> None:
    node.calls(1, 1)
    await node.has_asked("Park")
    for change in ((0, 0), (1, 0), (1, 1)):
        node.calls(*change)
    await node.has_asked("Park", "Resu", "Park")


@pytest.mark.parametrize("usage", [None, 1.0])
async def test_nothing_is_parked_without_an_action_or_a_measure(node: Node, usage: float | None) -> None:
    node.environment.used_s, node.grant = usage, node.grant if usage is None else None
    node.calls(1, 1)
    await node.still_asks()
    node.calls(0, 0)
    await node.still_asks()


async def test_an_action_that_begins_while_a_call_waits_is_parked(node: Node) -> None:
    grant, node.grant = node.grant, None
    node.calls(1, 1)
    await node.still_asks()
    node.grant = grant
    await node.has_asked("Park")


async def test_an_attempt_that_was_replaced_is_left_alone(node: Node) -> None:
    await functions.send_grants(node.journal.redis, node.journal.epoch, [Granting("grants.n.1", b"m", "a1", "2:n")])
    node.calls(1, 1)
    await node.still_asks()


async def test_what_a_caller_parks_meanwhile_stays_parked(node: Node) -> None:
    node.calls(1, 1)
    await node.has_asked("Park")
    await parking.park(node.journal.redis, "a1", "a quota")
    node.calls(0, 0)
    await node.still_asks("Park")


async def test_the_request_to_continue_is_repeated_until_the_store_answers(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.calls(1, 1)
    await node.has_asked("Park")
    real, failed = parking.resume, 0

    async def resume(*args: object, **named: object) -> parking.ParkingReceipt:
        nonlocal failed
        failed += 1
        if failed < 3:
            raise ConnectionResetError
        return await real(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(parking, "resume", resume)
    node.calls(0, 0)
    await node.has_asked("Park", "Resu")


async def test_an_action_that_has_ended_is_no_error(node: Node) -> None:
    node.calls(1, 1)
    await node.has_asked("Park")
    entry = (await node.journal.fields("action:a1"))["entry"].decode()
    assert await node.journal.finish("a1", entry, trajectory="t1")
    node.calls(0, 0)
    await node.still_asks("Park")
    node.calls(1, 1)
    await node.still_asks("Park")
