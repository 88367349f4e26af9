"""Every manager obeys the laws of a node, with its own executor: the CPU manager's, and a tiny one of permits.

An executor joins by an entry in `MANAGERS`: it names a resource with a queue, and a kind that waits for some seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from services.cpu_manager.acting import Acting
from services.cpu_manager.cores import Cores
from services.cpu_manager.cpu_executor import CpuExecutor, units_of
from services.cpu_manager.environment_registry import EnvironmentRegistry
from services.cpu_manager.environments.runtimes import Runtimes
from services.cpu_manager.graders.registry import build_graders
from services.cpu_manager.grading import Grading
from services.cpu_manager.kinds import MEMORY, STARTS
from services.cpu_manager.sandboxed_graders import NoSandbox
from shared.messages.grants import Granted, InventoryRequested, Revoked, ShareSet
from shared.messages.nodes import NODES, Bye, Heartbeat, Hello
from shared.messages.outcomes import OUTCOMES, RECALLED, Finished, InventoryTaken, Outcome, Parked, Started
from shared.node.agent import NodeAgent
from shared.node.connection import NodeConnection, open_node
from shared.policy.resources.cores import Topology
from shared.runtime.clock import SYSTEM_CLOCK
from tests.conformance.permit_manager.executor import KIND, PERMITS, PermitExecutor
from tests.conformance.sleeping_environment import SleepingRuntime
from tests.shared.bus.soon import soon
from tests.shared.node.leader_end import LeaderEnd
from treadle.testing.servers import running_valkey

UNITS = 2
LONG_S = 600.0
"""Longer than any test."""
HEARTBEAT_S = 0.05

Report = Callable[[Outcome], None]


@dataclass(frozen=True)
class Manager:
    """One manager under test."""

    resource: str
    kind: str
    agent: Callable[[NodeConnection, Report], NodeAgent]


def cpu_agent(connection: NodeConnection, report: Report) -> NodeAgent:
    """The CPU manager's agent on two cores, without a sandbox: `noop`, `sleep` and actions that sleep need none."""
    cores = Cores(Topology((tuple((core,) for core in range(UNITS)),)))
    resources = units_of(cores, slots=8, memory_mb=1000, starts=1)
    identity, clock = connection.identity, SYSTEM_CLOCK
    registry = EnvironmentRegistry(
        node=identity.node,
        incarnation=identity.incarnation,
        acting=Acting(Runtimes([SleepingRuntime()]), clock, 1000, 5.0),
        memory=resources[MEMORY],
        report=report,
        clock=clock,
        starts=resources[STARTS],
    )
    grading = Grading(build_graders({}), NoSandbox("none in this test"), 1000, 5.0)
    executor = CpuExecutor(resources, cores, grading, registry)
    return NodeAgent(connection, executor, environments=registry, parking=executor, clock=clock, report=report)


def permit_agent(connection: NodeConnection, report: Report) -> NodeAgent:
    return NodeAgent(connection, PermitExecutor(UNITS), report=report)


MANAGERS = {
    "cpu": Manager("cores", "sleep", cpu_agent),
    "permits": Manager(PERMITS, KIND, permit_agent),
}


class NodeOf(LeaderEnd):
    """A running node of a manager, and the leader's end of its streams."""

    def __init__(self, connection: NodeConnection, manager: Manager) -> None:
        super().__init__(connection.redis, connection.identity)
        self.manager, self.identity, self.outbox = manager, connection.identity, connection.outbox
        self.used_when_reported: dict[str, int] = {}
        """Action -> units in use when its outcome, or that it was parked, was reported last."""
        self.agent = manager.agent(connection, self._report)

    def grant(
        self, action: str, *, units: int = 1, seconds: float = 0.0, epoch: int = 1, attempt: int = 1, kind: str = ""
    ) -> Granted:
        return Granted(
            action=action, epoch=epoch, attempt=attempt, tenant="ada", stage=0, work=kind or self.manager.kind,
            params=msgspec.json.encode({"seconds": seconds}), units={self.manager.resource: units},
            timeout_s=2 * LONG_S, budget_s=4 * LONG_S,
        )  # fmt: skip

    async def finished(self, count: int) -> list[Finished]:
        """Wait for so many results; return all."""

        async def enough() -> bool:
            return len(await self._finished()) >= count

        await soon(enough)
        return await self._finished()

    async def inventory(self, epoch: int = 1) -> InventoryTaken:
        """Request an inventory, and return it."""
        before = len(await self._inventories())
        await self.send(InventoryRequested(epoch=epoch))

        async def come() -> bool:
            return len(await self._inventories()) > before

        await soon(come)
        return (await self._inventories())[-1]

    async def _finished(self) -> list[Finished]:
        return [one for one in await self.published(OUTCOMES) if isinstance(one, Finished)]

    async def _inventories(self) -> list[InventoryTaken]:
        return [one for one in await self.published(OUTCOMES) if isinstance(one, InventoryTaken)]

    def _report(self, outcome: Outcome) -> None:
        if isinstance(outcome, Finished | Parked):
            self.used_when_reported[outcome.action] = self.agent.resources[self.manager.resource].used
        self.outbox.put(outcome)


@asynccontextmanager
async def running_node(url: str, manager: Manager) -> AsyncIterator[NodeOf]:
    async with open_node(url, name="test", node="n") as connection:
        node = NodeOf(connection, manager)
        async with node.agent.running(heartbeat_s=HEARTBEAT_S):
            yield node


@pytest.fixture(params=MANAGERS)
def manager(request: pytest.FixtureRequest) -> Manager:
    return MANAGERS[request.param]


@pytest.fixture
async def node(redis_url: str, manager: Manager) -> AsyncIterator[NodeOf]:
    async with running_node(redis_url, manager) as running:
        yield running


def ends(finished: list[Finished]) -> list[tuple[str, str]]:
    return [(one.action, one.result.status) for one in finished]


async def test_it_publishes_what_it_offers_and_then_that_it_is_alive(node: NodeOf) -> None:
    hello, beat = (await node.announcements(2))[:2]
    assert isinstance(hello, Hello)
    assert (hello.node, hello.incarnation) == ("n", node.identity.incarnation)
    assert (hello.capacity[node.manager.resource], hello.prefetches) == (UNITS, [node.manager.resource])
    assert node.manager.kind in hello.kinds
    assert isinstance(beat, Heartbeat)
    assert (beat.owned[node.manager.resource], beat.used[node.manager.resource]) == (UNITS, 0)


async def test_each_grant_has_exactly_one_outcome(node: NodeOf) -> None:
    await node.send(*(node.grant(f"a{number}") for number in range(20)))
    await node.finished(20)
    await node.inventory()

    assert ends(await node.finished(20)) == [(f"a{number}", "ok") for number in range(20)]


async def test_a_repeated_grant_changes_nothing(node: NodeOf) -> None:
    await node.send(node.grant("a"), node.grant("a"))
    await node.finished(1)
    await node.send(node.grant("a"), node.grant("b"))

    assert ends(await node.finished(2)) == [("a", "ok"), ("b", "ok")]


async def test_messages_of_an_older_epoch_are_rejected(node: NodeOf) -> None:
    resource = node.manager.resource
    await node.send(node.grant("runs", epoch=5, seconds=LONG_S), node.grant("old", epoch=4))
    await node.send(Revoked(action="runs", epoch=4, attempt=1), ShareSet(epoch=4, resource=resource, units=0))
    await node.send(node.grant("new", epoch=5))

    assert ends(await node.finished(1)) == [("new", "ok")]
    assert [one.action for one in (await node.inventory(5)).held] == ["runs"]
    assert node.agent.resources[resource].owned == UNITS


async def test_units_are_free_before_the_outcome_is_reported(node: NodeOf) -> None:
    await node.send(node.grant("a", units=UNITS))
    await node.finished(1)

    assert node.used_when_reported == {"a": 0}


async def test_grants_beyond_the_units_start_in_order(node: NodeOf) -> None:
    await node.send(node.grant("first", seconds=LONG_S))
    await node.send(node.grant("big", units=UNITS), node.grant("small"), node.grant("smaller"))  # a unit is free
    held = (await node.inventory()).held
    assert [(one.action, one.queued) for one in held] == [
        ("first", False), ("big", True), ("small", True), ("smaller", True),
    ]  # fmt: skip

    await node.send(Revoked(action="first", epoch=1, attempt=1))
    assert [one for one, _ in ends(await node.finished(4))] == ["first", "big", "small", "smaller"]


async def test_a_running_attempt_can_be_revoked_and_not_recalled(node: NodeOf) -> None:
    await node.send(node.grant("a", seconds=LONG_S), Revoked(action="a", epoch=1, attempt=1, recall=True))
    assert [one.action for one in (await node.inventory()).held] == ["a"]

    await node.send(Revoked(action="a", epoch=1, attempt=1))
    assert ends(await node.finished(1)) == [("a", "cancelled")]
    assert node.used_when_reported == {"a": 0}


@pytest.mark.parametrize(("recall", "status", "reason"), [(False, "cancelled", ""), (True, "lost", RECALLED)])
async def test_a_waiting_grant_can_be_revoked_and_recalled(
    node: NodeOf, recall: bool, status: str, reason: str
) -> None:
    await node.send(node.grant("runs", units=UNITS, seconds=LONG_S), node.grant("waits"))
    await node.send(Revoked(action="waits", epoch=1, attempt=1, recall=recall))

    (outcome,) = await node.finished(1)
    assert (outcome.action, outcome.result.status, outcome.result.reason) == ("waits", status, reason)


async def test_an_inventory_lists_what_is_held_and_comes_after_the_outcomes(node: NodeOf) -> None:
    await node.send(node.grant("done"), node.grant("runs", seconds=LONG_S, attempt=3))
    await node.finished(1)
    taken = await node.inventory(epoch=7)

    assert (taken.node, taken.incarnation, taken.epoch) == ("n", node.identity.incarnation, 7)
    assert [(one.action, one.attempt, one.units) for one in taken.held] == [("runs", 3, {node.manager.resource: 1})]
    kinds = [type(one) for one in await node.published(OUTCOMES) if not isinstance(one, Started)]
    assert kinds == [Finished, InventoryTaken]


async def test_a_heartbeat_reports_units_in_use_and_attempts_that_run(node: NodeOf) -> None:
    resource = node.manager.resource
    await node.send(node.grant("runs", seconds=LONG_S))

    async def integrated() -> bool:
        beat = (await node.published(NODES))[-1]
        return isinstance(beat, Heartbeat) and beat.used[resource] == 1 and beat.used_unit_s[resource] > 0

    await soon(integrated)
    started = [one for one in await node.published(OUTCOMES) if isinstance(one, Started)]
    assert [(one.action, one.attempt) for one in started] == [("runs", 1)]


@pytest.mark.parametrize(
    "change", [{"work": "unknown.kind"}, {"params": b'{"secs":1}'}, {"params": b"no json"}], ids=str
)
async def test_what_it_cannot_execute_is_refused(node: NodeOf, change: dict[str, str | bytes]) -> None:
    await node.send(msgspec.structs.replace(node.grant("a"), **change))

    assert ends(await node.finished(1)) == [("a", "refused")]


async def test_a_grant_of_more_units_than_exist_is_lost_at_once(node: NodeOf) -> None:
    await node.send(node.grant("a", units=UNITS + 1), node.grant("b"))

    assert ends(await node.finished(2)) == [("a", "lost"), ("b", "ok")]


async def test_a_stopping_node_reports_its_work_lost_and_then_publishes_bye(redis_url: str, manager: Manager) -> None:
    async with open_node(redis_url, name="test", node="n") as connection:
        node = NodeOf(connection, manager)
        async with node.agent.running(heartbeat_s=HEARTBEAT_S):
            await node.send(node.grant("runs", units=UNITS, seconds=LONG_S), node.grant("waits"))
            await node.inventory()
        assert sorted(ends(await node.finished(2))) == [("runs", "lost"), ("waits", "lost")]
        assert (await node.published(NODES))[-1] == Bye(node="n", incarnation=node.identity.incarnation)


async def test_no_outcome_is_lost_while_valkey_is_away(stack_home: Path, manager: Manager) -> None:
    with ExitStack() as at_end:
        valkey = ExitStack()
        url = valkey.enter_context(running_valkey(stack_home))
        at_end.callback(valkey.close)
        async with running_node(url, manager) as node:
            names = [f"a{number}" for number in range(10)]
            await node.send(*(node.grant(name, seconds=0.3) for name in names))
            await node.inventory()
            await asyncio.to_thread(valkey.close)
            async with asyncio.timeout(20):
                while len(node.used_when_reported) < len(names):  # noqa: ASYNC110  # the node executes alone
                    await asyncio.sleep(0.01)
            await asyncio.to_thread(valkey.enter_context, running_valkey(stack_home))

            assert ends(await node.finished(len(names))) == [(name, "ok") for name in names]
            assert (await node.inventory()).held == []
