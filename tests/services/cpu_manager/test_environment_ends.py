"""Environments end once, for one reason, after the outcomes of their attempts."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from services.cpu_manager import environment_registry as registry_module
from services.cpu_manager.managed_environments import NONE_HERE
from shared.messages.environments import EnvironmentSpec
from shared.messages.outcomes import EnvironmentEnded, Finished
from tests.services.cpu_manager.node_parts import Bed, FakeEnvironment, grant, in_environment, turns

START = 1000.0


@pytest.fixture
async def bed() -> Bed:
    return Bed()


async def begin(bed: Bed, trajectory: str = "t", **spec: float) -> FakeEnvironment:
    """Run the trajectory's first action."""
    environment = EnvironmentSpec(memory_mb=100, **spec)  # type: ignore[arg-type]  # only seconds are passed
    first = in_environment(f"first of {trajectory}", trajectory)
    bed.attempts.accept(msgspec.structs.replace(first, environment=environment))
    await bed.settled()
    bed.reports.clear()
    return bed.runtime.made[-1]


async def at(bed: Bed, now: float) -> list[tuple[str, str]]:
    """Return the ends that were reported until this time."""
    bed.clock.now = now
    bed.registry.expire()
    await turns(10)
    return bed.ended()


def reported(bed: Bed) -> list[tuple[str, str]]:
    """(type, end) of all reported ends."""
    return [
        (type(one).__name__, one.status if isinstance(one, Finished) else one.ended)
        for one in bed.reports
        if isinstance(one, Finished | EnvironmentEnded)
    ]


# ---- lifetimes -----------------------------------------------------------------------------------------------------


async def test_it_ends_after_its_idle_time(bed: Bed) -> None:
    environment = await begin(bed, idle_s=10.0)
    assert await at(bed, START + 9.9) == []
    bed.attempts.accept(in_environment("b"))
    await bed.settled()
    assert await at(bed, START + 19.8) == [], "its last action ended 9.9 s ago"

    assert await at(bed, START + 19.9) == [("t", "expired")]
    assert (environment.closed, bed.memory.used) == (True, 0)
    bed.attempts.accept(in_environment("c"))
    late = (await bed.settled())[-1]
    assert (late.status, late.reason) == ("environment-lost", "it was idle for 10 s")
    assert late.environment_ended == "expired"


async def test_it_is_not_idle_during_an_action(bed: Bed) -> None:
    await begin(bed, idle_s=10.0)
    bed.runtime.waits = True
    bed.attempts.accept(in_environment("b"))
    await turns()
    assert await at(bed, START + 50.0) == []
    bed.runtime.go.set()
    assert [one.status for one in await bed.settled()] == ["ok"]

    assert await at(bed, START + 59.9) == []
    assert await at(bed, START + 60.0) == [("t", "expired")]


async def test_the_end_of_its_lifetime_ends_its_running_action(bed: Bed) -> None:
    environment = await begin(bed, idle_s=10.0, lifetime_s=15.0)
    bed.runtime.waits = True
    bed.attempts.accept(in_environment("b"))
    await turns()

    assert await at(bed, START + 14.9) == []
    assert await at(bed, START + 15.0) == [("t", "expired")]
    assert reported(bed) == [("Finished", "environment-lost"), ("EnvironmentEnded", "expired")]
    assert (bed.finished()[0].reason, bed.finished()[0].environment_ended) == (
        "its lifetime of 15 s is over",
        "expired",
    )
    assert (environment.cleaned, environment.closed, bed.cores.used) == (1, True, 0)


async def test_one_timer_expires_all_of_them() -> None:
    bed = Bed()
    bed.clock.now = asyncio.get_running_loop().time()
    for number in range(5):
        await begin(bed, f"t{number}", idle_s=0.5 - 0.05 * number)
    bed.clock.monotonic = asyncio.get_running_loop().time  # type: ignore[method-assign]  # from here on it goes by itself
    async with asyncio.timeout(20):
        while len(bed.registry):  # noqa: ASYNC110  # what is waited for is that nothing is left
            await asyncio.sleep(0.005)

    assert sorted(bed.ended()) == [(f"t{number}", "expired") for number in range(5)]


# ---- closing -------------------------------------------------------------------------------------------------------


async def test_closing_cancels_running_attempts_and_is_reported_after_their_outcomes(bed: Bed) -> None:
    environment = await begin(bed)
    bed.runtime.waits = True
    bed.attempts.accept(in_environment("b"))
    await turns()
    bed.attempts.close_environment("t")
    await bed.settled()
    await turns()

    assert reported(bed) == [("Finished", "cancelled"), ("EnvironmentEnded", "closed")]
    assert (environment.cleaned, environment.closed) == (1, True)


async def test_closing_during_creation_leaves_nothing_and_is_reported(bed: Bed) -> None:
    bed.runtime.create_waits = True
    bed.attempts.accept(in_environment(begins=True))
    await turns()
    bed.attempts.close_environment("t")
    await bed.settled()
    await turns()

    assert reported(bed) == [("Finished", "cancelled"), ("EnvironmentEnded", "closed")]
    assert not bed.finished()[0].environment_exists
    assert (bed.runtime.made, bed.memory.used, len(bed.registry)) == ([], 0, 0)


async def test_closing_cancels_grants_that_wait_for_cores(bed: Bed) -> None:
    bed.grader.waits = True
    bed.attempts.accept(grant("runs", cores=4))
    bed.attempts.accept(in_environment("b", begins=True))
    bed.attempts.close_environment("t")
    await turns()

    assert reported(bed) == [("Finished", "cancelled"), ("EnvironmentEnded", "closed")]
    await bed.attempts.stop()


async def test_closing_an_unknown_environment_is_reported(bed: Bed) -> None:
    bed.attempts.close_environment("unknown")

    assert bed.ended() == [("unknown", "closed")]


async def test_it_ends_once(bed: Bed) -> None:
    environment = await begin(bed, idle_s=10.0)
    bed.runtime.may_close.clear()
    await at(bed, START + 10.0)
    bed.attempts.close_environment("t")
    environment.alive = False
    bed.registry.check()
    bed.attempts.accept(in_environment("late"))
    assert [(one.status, one.reason) for one in await bed.settled()] == [("environment-lost", "it was idle for 10 s")]

    bed.runtime.may_close.set()
    await turns(10)
    assert (bed.ended(), bed.memory.used) == ([("t", "expired")], 0)


async def test_an_environment_that_cannot_be_closed_is_reported_as_ended(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "CLOSING_S", 0.01)
    await begin(bed)
    bed.runtime.may_close.clear()
    bed.attempts.close_environment("t")

    async with asyncio.timeout(20):
        while not bed.ended():  # noqa: ASYNC110  # its patience is what is waited for
            await asyncio.sleep(0.005)
    assert (bed.ended(), bed.memory.used) == ([("t", "closed")], 0)


# ---- dying ---------------------------------------------------------------------------------------------------------


async def test_an_environment_that_died_while_idle_is_found_and_reported(bed: Bed) -> None:
    environment = await begin(bed)
    await begin(bed, "alive")
    environment.alive = False
    bed.registry.check()
    await turns()

    assert bed.ended() == [("t", "lost")]
    assert [one.trajectory for one in bed.registry.held()] == ["alive"]


async def test_an_action_in_a_dead_environment_is_not_executed(bed: Bed) -> None:
    environment = await begin(bed)
    environment.alive = False
    bed.attempts.accept(in_environment("b"))
    await bed.settled()
    await turns()

    assert reported(bed) == [("Finished", "environment-lost"), ("EnvironmentEnded", "lost")]
    assert len(environment.acts) == 1


async def test_reasons_of_the_newest_ends_are_remembered(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "REMEMBERED", 2)
    for trajectory in ("first", "second", "third"):
        await begin(bed, trajectory)
        bed.attempts.close_environment(trajectory)
        await turns()
    for trajectory in ("first", "second", "third"):
        bed.attempts.accept(in_environment(f"late in {trajectory}", trajectory))

    closed = "its trajectory was closed"
    assert [one.reason for one in await bed.settled()] == [NONE_HERE.reason, closed, closed]


# ---- stopping and coming back --------------------------------------------------------------------------------------


async def test_a_stopping_node_closes_all_environments(bed: Bed) -> None:
    await begin(bed, "rests")
    await begin(bed, "acts")
    bed.runtime.waits = bed.runtime.create_waits = True
    bed.attempts.accept(in_environment("b", "acts"))
    bed.attempts.accept(in_environment("c", "is being made", begins=True))
    await turns()

    async with asyncio.timeout(20):
        await bed.attempts.stop()

    outcomes = {one.action: (one.status, one.reason, one.environment_exists) for one in bed.finished()}
    assert outcomes == {
        "b": ("environment-lost", "the node is stopping", True),
        "c": ("lost", "the node is stopping", False),
    }
    assert sorted(bed.ended()) == [("acts", "lost"), ("rests", "lost")]
    assert [one.closed for one in bed.runtime.made] == [True, True]
    assert (bed.memory.used, bed.cores.used, len(bed.registry)) == (0, 0, 0)


async def test_a_stopping_node_waits_for_its_environments_for_a_bounded_time(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.cpu_manager.attempts.CLOSING_S", 0.01)
    await begin(bed)
    bed.runtime.may_close.clear()

    async with asyncio.timeout(20):
        await bed.attempts.stop()

    assert bed.ended() == []
    bed.runtime.may_close.set()
    await turns()


async def test_survivors_are_adopted_with_their_memory_and_their_age(bed: Bed) -> None:
    spec = EnvironmentSpec(memory_mb=300, idle_s=50.0, lifetime_s=100.0)
    old, young = FakeEnvironment("old", spec, bed.runtime), FakeEnvironment("young", spec, bed.runtime)
    old.age_s = 80.0
    bed.runtime.standing_by = [old, young]
    bed.registry.adopt(await bed.runtimes.survivors())

    assert (bed.memory.used, [one.trajectory for one in bed.registry.held()]) == (600, ["old", "young"])
    bed.attempts.accept(in_environment("b", "old"))
    assert [one.status for one in await bed.settled()] == ["ok"]
    assert await at(bed, START + 20.0) == [("old", "expired")]
    assert await at(bed, START + 49.9) == [("old", "expired")]
    assert await at(bed, START + 50.0) == [("old", "expired"), ("young", "expired")]
