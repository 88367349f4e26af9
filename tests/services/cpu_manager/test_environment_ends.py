"""Environments end once, for one reason, after the outcomes of their attempts."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from services.cpu_manager import environment_registry as registry_module
from services.cpu_manager.managed_environments import NONE_HERE
from shared.messages.environments import EnvironmentSpec
from shared.messages.outcomes import EnvironmentEnded, Finished
from tests.services.cpu_manager.node_parts import FakeEnvironment, NodeParts, grant, in_environment, turns

START = 1000.0


@pytest.fixture
async def parts() -> NodeParts:
    return NodeParts()


async def begin(parts: NodeParts, trajectory: str = "t", **spec: float) -> FakeEnvironment:
    """Run the trajectory's first action."""
    environment = EnvironmentSpec(memory_mb=100, **spec)  # type: ignore[arg-type]  # only seconds are passed
    first = in_environment(f"first of {trajectory}", trajectory)
    parts.attempts.accept(msgspec.structs.replace(first, environment=environment))
    await parts.settled()
    parts.reports.clear()
    return parts.runtime.made[-1]


async def at(parts: NodeParts, now: float) -> list[tuple[str, str]]:
    """Return the ends that were reported until this time."""
    parts.clock.now = now
    parts.registry.expire()
    await turns(10)
    return parts.ended()


def reported(parts: NodeParts) -> list[tuple[str, str]]:
    """(type, end) of all reported ends."""
    return [
        (type(one).__name__, one.result.status if isinstance(one, Finished) else one.ended)
        for one in parts.reports
        if isinstance(one, Finished | EnvironmentEnded)
    ]


# ---- lifetimes -----------------------------------------------------------------------------------------------------


async def test_it_ends_after_its_idle_time(parts: NodeParts) -> None:
    environment = await begin(parts, idle_s=10.0)
    assert await at(parts, START + 9.9) == []
    parts.attempts.accept(in_environment("b"))
    await parts.settled()
    assert await at(parts, START + 19.8) == [], "its last action ended 9.9 s ago"

    assert await at(parts, START + 19.9) == [("t", "expired")]
    assert (environment.closed, parts.memory.used) == (True, 0)
    parts.attempts.accept(in_environment("c"))
    late = (await parts.settled())[-1]
    assert (late.result.status, late.result.reason) == ("environment-lost", "it was idle for 10 s")
    assert late.result.environment_ended == "expired"


async def test_it_is_not_idle_during_an_action(parts: NodeParts) -> None:
    await begin(parts, idle_s=10.0)
    parts.runtime.waits = True
    parts.attempts.accept(in_environment("b"))
    await turns()
    assert await at(parts, START + 50.0) == []
    parts.runtime.go.set()
    assert [one.result.status for one in await parts.settled()] == ["ok"]

    assert await at(parts, START + 59.9) == []
    assert await at(parts, START + 60.0) == [("t", "expired")]


async def test_the_end_of_its_lifetime_ends_its_running_action(parts: NodeParts) -> None:
    environment = await begin(parts, idle_s=10.0, lifetime_s=15.0)
    parts.runtime.waits = True
    parts.attempts.accept(in_environment("b"))
    await turns()

    assert await at(parts, START + 14.9) == []
    assert await at(parts, START + 15.0) == [("t", "expired")]
    assert reported(parts) == [("Finished", "environment-lost"), ("EnvironmentEnded", "expired")]
    assert (parts.finished()[0].result.reason, parts.finished()[0].result.environment_ended) == (
        "its lifetime of 15 s is over",
        "expired",
    )
    assert (environment.cleaned, environment.closed, parts.units["cores"].used) == (1, True, 0)


async def test_one_timer_expires_all_of_them() -> None:
    parts = NodeParts()
    parts.clock.now = asyncio.get_running_loop().time()
    for number in range(5):
        await begin(parts, f"t{number}", idle_s=0.5 - 0.05 * number)
    parts.clock.monotonic = asyncio.get_running_loop().time  # type: ignore[method-assign]  # from here on it goes by itself
    async with asyncio.timeout(20):
        while len(parts.registry):  # noqa: ASYNC110  # what is waited for is that nothing is left
            await asyncio.sleep(0.005)

    assert sorted(parts.ended()) == [(f"t{number}", "expired") for number in range(5)]


# ---- closing -------------------------------------------------------------------------------------------------------


async def test_closing_cancels_running_attempts_and_is_reported_after_their_outcomes(parts: NodeParts) -> None:
    environment = await begin(parts)
    parts.runtime.waits = True
    parts.attempts.accept(in_environment("b"))
    await turns()
    parts.attempts.close_environment("t")
    await parts.settled()
    await turns()

    assert reported(parts) == [("Finished", "cancelled"), ("EnvironmentEnded", "closed")]
    assert (environment.cleaned, environment.closed) == (1, True)


async def test_closing_during_creation_leaves_nothing_and_is_reported(parts: NodeParts) -> None:
    parts.runtime.create_waits = True
    parts.attempts.accept(in_environment(begins=True))
    await turns()
    parts.attempts.close_environment("t")
    await parts.settled()
    await turns()

    assert reported(parts) == [("Finished", "cancelled"), ("EnvironmentEnded", "closed")]
    assert not parts.finished()[0].result.environment_exists
    assert (parts.runtime.made, parts.memory.used, len(parts.registry)) == ([], 0, 0)


async def test_closing_cancels_grants_that_wait_for_cores(parts: NodeParts) -> None:
    parts.grader.waits = True
    parts.attempts.accept(grant("runs", cores=4))
    parts.attempts.accept(in_environment("b", begins=True))
    parts.attempts.close_environment("t")
    await turns()

    assert reported(parts) == [("Finished", "cancelled"), ("EnvironmentEnded", "closed")]
    await parts.attempts.stop()


async def test_closing_an_unknown_environment_is_reported(parts: NodeParts) -> None:
    parts.attempts.close_environment("unknown")

    assert parts.ended() == [("unknown", "closed")]


async def test_it_ends_once(parts: NodeParts) -> None:
    environment = await begin(parts, idle_s=10.0)
    parts.runtime.may_close.clear()
    await at(parts, START + 10.0)
    parts.attempts.close_environment("t")
    environment.alive = False
    parts.registry.check()
    parts.attempts.accept(in_environment("late"))
    assert [(one.result.status, one.result.reason) for one in await parts.settled()] == [
        ("environment-lost", "it was idle for 10 s")
    ]

    parts.runtime.may_close.set()
    await turns(10)
    assert (parts.ended(), parts.memory.used) == ([("t", "expired")], 0)


async def test_an_environment_that_cannot_be_closed_is_reported_as_ended(
    parts: NodeParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "CLOSING_S", 0.01)
    await begin(parts)
    parts.runtime.may_close.clear()
    parts.attempts.close_environment("t")

    async with asyncio.timeout(20):
        while not parts.ended():  # noqa: ASYNC110  # waits for its timeout
            await asyncio.sleep(0.005)
    assert (parts.ended(), parts.memory.used) == ([("t", "closed")], 0)


# ---- dying ---------------------------------------------------------------------------------------------------------


async def test_an_environment_that_died_while_idle_is_found_and_reported(parts: NodeParts) -> None:
    environment = await begin(parts)
    await begin(parts, "alive")
    environment.alive = False
    parts.registry.check()
    await turns()

    assert parts.ended() == [("t", "lost")]
    assert [one.trajectory for one in parts.registry.held()] == ["alive"]


async def test_an_action_in_a_dead_environment_is_not_executed(parts: NodeParts) -> None:
    environment = await begin(parts)
    environment.alive = False
    parts.attempts.accept(in_environment("b"))
    await parts.settled()
    await turns()

    assert reported(parts) == [("Finished", "environment-lost"), ("EnvironmentEnded", "lost")]
    assert len(environment.acts) == 1


async def test_reasons_of_the_newest_ends_are_remembered(parts: NodeParts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "REMEMBERED", 2)
    for trajectory in ("first", "second", "third"):
        await begin(parts, trajectory)
        parts.attempts.close_environment(trajectory)
        await turns()
    for trajectory in ("first", "second", "third"):
        parts.attempts.accept(in_environment(f"late in {trajectory}", trajectory))

    closed = "its trajectory was closed"
    assert [one.result.reason for one in await parts.settled()] == [NONE_HERE.reason, closed, closed]


# ---- stopping and coming back --------------------------------------------------------------------------------------


async def test_a_stopping_node_closes_all_environments(parts: NodeParts) -> None:
    await begin(parts, "rests")
    await begin(parts, "acts")
    parts.runtime.waits = parts.runtime.create_waits = True
    parts.attempts.accept(in_environment("b", "acts"))
    parts.attempts.accept(in_environment("c", "is being made", begins=True))
    await turns()

    async with asyncio.timeout(20):
        await parts.attempts.stop()

    outcomes = {
        one.action: (one.result.status, one.result.reason, one.result.environment_exists) for one in parts.finished()
    }
    assert outcomes == {
        "b": ("environment-lost", "the node is stopping", True),
        "c": ("lost", "the node is stopping", False),
    }
    assert sorted(parts.ended()) == [("acts", "lost"), ("rests", "lost")]
    assert [one.closed for one in parts.runtime.made] == [True, True]
    assert (parts.memory.used, parts.units["cores"].used, len(parts.registry)) == (0, 0, 0)


async def test_a_stopping_node_waits_for_its_environments_for_a_bounded_time(
    parts: NodeParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.node.attempts.CLOSING_S", 0.01)
    await begin(parts)
    parts.runtime.may_close.clear()

    async with asyncio.timeout(20):
        await parts.attempts.stop()

    assert parts.ended() == []
    parts.runtime.may_close.set()
    await turns()


async def test_survivors_are_adopted_with_their_memory_and_their_age(parts: NodeParts) -> None:
    spec = EnvironmentSpec(memory_mb=300, idle_s=50.0, lifetime_s=100.0)
    old, young = FakeEnvironment("old", spec, parts.runtime), FakeEnvironment("young", spec, parts.runtime)
    old.age_s = 80.0
    parts.runtime.standing_by = [old, young]
    parts.registry.adopt(await parts.runtimes.survivors())

    assert (parts.memory.used, [one.trajectory for one in parts.registry.held()]) == (600, ["old", "young"])
    parts.attempts.accept(in_environment("b", "old"))
    assert [one.result.status for one in await parts.settled()] == ["ok"]
    assert await at(parts, START + 20.0) == [("old", "expired")]
    assert await at(parts, START + 49.9) == [("old", "expired")]
    assert await at(parts, START + 50.0) == [("old", "expired"), ("young", "expired")]
