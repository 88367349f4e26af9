"""Managers that park attempts keep the promises of `Parking`; the others ignore requests to park.

A manager that parks joins by an entry in `PARKED`: the change that makes a grant parkable. It must not make progress
while it is parked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import msgspec
import pytest

from shared.messages.environments import EnvironmentSpec
from shared.messages.grants import AttemptParkRequested, AttemptResumed, EnvironmentClosed, Granted, Revoked, ShareSet
from shared.messages.nodes import NODES, Bye, Heartbeat
from shared.messages.outcomes import OUTCOMES, EnvironmentEnded, Finished, InventoryTaken, Parked, Started
from shared.node.connection import open_node
from tests.conformance.test_executors import (
    HEARTBEAT_S,
    LONG_S,
    MANAGERS,
    UNITS,
    Manager,
    NodeOf,
    ends,
    running_node,
)
from tests.shared.bus.soon import soon

SHORT_S = 0.3
PARKED_S = 3 * SHORT_S
SPEC = EnvironmentSpec(memory_mb=100)


def in_environment(grant: Granted) -> Granted:
    """The same amount of work as an action of a trajectory."""
    argv = ["sleep", str(msgspec.json.decode(grant.params)["seconds"])]
    return msgspec.structs.replace(
        grant,
        work="env.exec",
        params=msgspec.json.encode({"argv": argv}),
        trajectory=f"t-{grant.action}",
        environment=SPEC,
    )


PARKED: Mapping[str, Callable[[Granted], Granted]] = {"cpu": in_environment}


class ParkingNode:
    """A node whose manager parks."""

    def __init__(self, node: NodeOf, parkable: Callable[[Granted], Granted]) -> None:
        self.node = node
        self._parkable = parkable
        self._serial = 0

    async def grant(self, action: str, *, units: int = UNITS, seconds: float = LONG_S) -> None:
        """Grant work that can be parked."""
        await self.node.send(self._parkable(self.node.grant(action, units=units, seconds=seconds)))

    def park(self, action: str, *, epoch: int = 1) -> AttemptParkRequested:
        """The next request to park it."""
        self._serial += 1
        return AttemptParkRequested(action=action, epoch=epoch, attempt=1, serial=self._serial)

    def resume(self, action: str, *, epoch: int = 1) -> AttemptResumed:
        """The next message that continues it."""
        self._serial += 1
        return AttemptResumed(action=action, epoch=epoch, attempt=1, serial=self._serial)

    async def parked(self, action: str, count: int = 1) -> None:
        """Wait until it has been reported parked so often."""

        async def reported() -> bool:
            return [one.action for one in await self.parkings()].count(action) >= count

        await soon(reported)

    async def parkings(self) -> list[Parked]:
        """Return all reports of parked attempts."""
        return [one for one in await self.node.published(OUTCOMES) if isinstance(one, Parked)]

    @property
    def used(self) -> int:
        """Units in use."""
        return self.node.agent.resources[self.node.manager.resource].used


@pytest.fixture(params=PARKED)
async def node(redis_url: str, request: pytest.FixtureRequest) -> AsyncIterator[ParkingNode]:
    async with running_node(redis_url, MANAGERS[request.param]) as running:
        yield ParkingNode(running, PARKED[request.param])


async def test_a_parked_attempt_holds_no_units_makes_no_progress_and_continues(node: ParkingNode) -> None:
    await node.grant("a", seconds=SHORT_S)
    await node.node.send(node.park("a"))
    await node.parked("a")
    assert node.node.used_when_reported == {"a": 0}
    await node.grant("b", seconds=0.0)
    await asyncio.sleep(PARKED_S)
    assert ends(await node.node.finished(1)) == [("b", "ok")]
    await node.node.send(node.resume("a"))

    outcome = (await node.node.finished(2))[1]
    assert (outcome.action, outcome.result.status, node.used) == ("a", "ok", 0)
    assert outcome.execution_s < PARKED_S, "parked time is no execution"


async def test_repeated_and_older_messages_change_nothing(node: ParkingNode) -> None:
    await node.grant("a", seconds=SHORT_S)
    park, resume = node.park("a"), node.resume("a")
    await node.node.send(park, park)
    await node.parked("a")
    await node.node.send(park, node.park("unknown"), node.resume("unknown"))
    await node.node.send(resume, resume, park)
    assert ends(await node.node.finished(1)) == [("a", "ok")]
    await node.node.send(resume, node.park("a"))
    await node.node.inventory()
    assert ([one.action for one in await node.parkings()], len(await node.node.finished(1)), node.used) == (["a"], 1, 0)


async def test_a_request_of_an_older_leader_is_rejected(node: ParkingNode) -> None:
    await node.grant("a")
    await node.node.inventory(epoch=2)
    await node.node.send(node.park("a", epoch=1))
    (held,) = (await node.node.inventory(epoch=2)).held
    assert (held.parked, node.used) == (False, UNITS)
    await node.node.send(node.park("a", epoch=2))
    await node.parked("a")


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.05])
async def test_one_that_ends_while_it_is_being_parked_has_one_outcome(node: ParkingNode, seconds: float) -> None:
    """Whatever comes first. The report that it is parked never comes after its outcome."""
    for number in range(5):
        name = f"a{number}"
        await node.grant(name, seconds=seconds)
        await asyncio.sleep(seconds)
        await node.node.send(node.park(name), node.resume(name))
        await asyncio.sleep(0.01)
        await node.node.send(node.resume(name))
        assert ends(await node.node.finished(number + 1))[-1] == (name, "ok")
        assert node.used == 0
    last = {one.action: type(one) for one in await node.node.published(OUTCOMES) if isinstance(one, Finished | Parked)}
    assert set(last.values()) == {Finished}


async def test_an_inventory_lists_a_parked_attempt_with_the_units_that_it_needs(node: ParkingNode) -> None:
    await node.grant("a")
    await node.node.send(node.park("a"))
    await node.parked("a")
    await node.grant("b")
    (first, second) = (await node.node.inventory()).held
    assert (first.action, first.parked, first.resuming, first.units) == ("a", True, False, second.units)
    assert (second.action, second.parked, node.used) == ("b", False, UNITS)
    await node.node.send(node.resume("a"))
    first = (await node.node.inventory()).held[0]
    assert (first.action, first.parked, first.resuming) == ("a", True, True)
    assert first.running_s < 1.0

    await node.node.send(Revoked(action="b", epoch=1, attempt=1))
    await node.node.finished(1)
    (held,) = (await node.node.inventory()).held
    assert (held.action, held.parked, node.used) == ("a", False, UNITS)


@pytest.mark.parametrize("resuming", [False, True])
async def test_a_parked_attempt_can_be_revoked(node: ParkingNode, resuming: bool) -> None:
    await node.grant("a")
    await node.node.send(node.park("a"))
    await node.parked("a")
    await node.grant("b")
    if resuming:
        await node.node.send(node.resume("a"))
    await node.node.send(Revoked(action="a", epoch=1, attempt=1))
    assert ends(await node.node.finished(1)) == [("a", "cancelled")]
    assert node.used == UNITS
    await node.node.send(node.resume("a"), Revoked(action="b", epoch=1, attempt=1))
    assert ends(await node.node.finished(2)) == [("a", "cancelled"), ("b", "cancelled")]
    assert node.used == 0


async def test_a_closed_environment_ends_its_parked_attempt_first(node: ParkingNode) -> None:
    await node.grant("a")
    await node.node.send(node.park("a"))
    await node.parked("a")
    await node.node.send(EnvironmentClosed(epoch=1, trajectory="t-a"))
    assert ends(await node.node.finished(1)) == [("a", "cancelled")]

    async def closed() -> bool:
        return isinstance((await node.node.published(OUTCOMES))[-1], EnvironmentEnded)

    await soon(closed)


async def test_an_attempt_continues_on_a_node_whose_share_was_taken_away(node: ParkingNode) -> None:
    """A planner that drains a node takes its share; what it holds comes to its end there."""
    resource = node.node.manager.resource
    await node.grant("a", seconds=SHORT_S)
    await node.node.send(node.park("a"))
    await node.parked("a")
    await node.node.send(ShareSet(epoch=1, resource=resource, units=0))

    async def drained() -> bool:
        beat = (await node.node.published(NODES))[-1]
        return isinstance(beat, Heartbeat) and (beat.owned[resource], beat.used[resource]) == (0, 0)

    await soon(drained)
    await node.node.send(node.resume("a"))
    assert ends(await node.node.finished(1)) == [("a", "ok")]


@pytest.mark.parametrize("name", PARKED)
@pytest.mark.parametrize("resuming", [False, True])
async def test_a_stopping_node_reports_parked_attempts_lost_once(redis_url: str, name: str, resuming: bool) -> None:
    async with open_node(redis_url, name="test", node="n") as connection:
        node = ParkingNode(NodeOf(connection, MANAGERS[name]), PARKED[name])
        async with node.node.agent.running(heartbeat_s=HEARTBEAT_S):
            await node.grant("a")
            await node.node.send(node.park("a"))
            await node.parked("a")
            if resuming:
                await node.grant("b")
                await node.node.send(node.resume("a"))
            await node.node.inventory()
        held = ["a", "b"] if resuming else ["a"]
        outcomes = await node.node.finished(len(held))
        assert sorted(one.action for one in outcomes) == held
        assert {one.result.status for one in outcomes} <= {"lost", "environment-lost"}
        assert node.used == 0
        assert (await node.node.published(NODES))[-1] == Bye(node="n", incarnation=connection.identity.incarnation)


@pytest.mark.parametrize("manager", [one for name, one in MANAGERS.items() if name not in PARKED], ids=["permits"])
async def test_a_manager_that_parks_nothing_ignores_the_request(redis_url: str, manager: Manager) -> None:
    """The attempt keeps its units and runs on. No report claims that it is parked."""
    async with running_node(redis_url, manager) as node:
        assert node.agent.attempts.parking is None
        await node.send(node.grant("a", units=UNITS, seconds=SHORT_S))
        await node.send(AttemptParkRequested(action="a", epoch=1, attempt=1, serial=1))
        (held,) = (await node.inventory()).held
        assert (held.parked, node.agent.resources[manager.resource].used) == (False, UNITS)
        await node.send(AttemptResumed(action="a", epoch=1, attempt=1, serial=2))
        assert ends(await node.finished(1)) == [("a", "ok")]
        kinds = {type(one) for one in await node.published(OUTCOMES)}
        assert kinds <= {Started, InventoryTaken, Finished}
