"""A parked attempt holds no units, has one outcome, and continues before every waiting grant."""

from __future__ import annotations

import asyncio

import pytest

from shared.messages.grants import AttemptParkRequested, AttemptResumed
from shared.messages.outcomes import Finished, Parked
from tests.shared.node.scripted import AttemptsUnderTest, grant, turns


def park(action: str = "a", serial: int = 1, epoch: int = 1, attempt: int = 1) -> AttemptParkRequested:
    return AttemptParkRequested(action=action, epoch=epoch, attempt=attempt, serial=serial)


def resume(action: str = "a", serial: int = 2, epoch: int = 1, attempt: int = 1) -> AttemptResumed:
    return AttemptResumed(action=action, epoch=epoch, attempt=attempt, serial=serial)


@pytest.fixture
async def parts() -> AttemptsUnderTest:
    """Attempts with one that runs on three of the four tokens."""
    made = AttemptsUnderTest()
    made.executor.waits = True
    made.attempts.accept(grant(tokens=3))
    await turns()
    return made


def parked(parts: AttemptsUnderTest) -> list[Parked]:
    return [one for one in parts.reports if isinstance(one, Parked)]


async def test_units_are_free_when_parked_is_reported_and_taken_before_it_continues(parts: AttemptsUnderTest) -> None:
    parts.executor.may_park.clear()
    parts.attempts.park(park())
    await turns()
    assert (parts.units["tokens"].used, parked(parts)) == (3, [])
    parts.executor.may_park.set()
    await turns()
    assert (parts.units["tokens"].used, len(parked(parts))) == (0, 1)
    parts.attempts.resume(resume())
    assert (parts.units["tokens"].used, parts.executor.resumed) == (3, ["a"])


async def test_parked_time_is_no_execution(parts: AttemptsUnderTest) -> None:
    parts.clock.now += 1.0
    parts.attempts.park(park())
    await turns()
    parts.clock.now += 100.0
    (held,) = parts.attempts.held_grants()
    assert (held.running_s, held.paused_s) == (1.0, 100.0)
    parts.attempts.resume(resume())
    parts.clock.now += 2.0
    (held,) = parts.attempts.held_grants()
    assert (held.running_s, held.paused_s) == (3.0, 100.0)
    parts.executor.go.set()
    (end,) = await parts.settled()
    assert end.execution_s == pytest.approx(3.0)
    assert parts.units["tokens"].used == 0


async def test_an_attempt_that_continues_goes_before_waiting_grants(parts: AttemptsUnderTest) -> None:
    parts.attempts.park(park())
    await turns()
    parts.attempts.accept(grant("b", tokens=4))
    parts.attempts.accept(grant("c", tokens=1))
    await turns()
    parts.attempts.resume(resume())
    held = {one.action: one for one in parts.attempts.held_grants()}
    assert (held["a"].parked, held["a"].resuming, held["c"].queued) == (True, True, True)
    parts.attempts.revoke("b", 1)
    await turns()
    assert parts.executor.resumed == ["a"]
    assert [one.action for one in parts.executor.begun] == ["a", "b", "c"]
    assert parts.units["tokens"].used == 4


async def test_one_that_waits_for_units_can_be_parked_again(parts: AttemptsUnderTest) -> None:
    """It is reported parked, because the leader counts its units as taken; those behind it may go."""
    parts.attempts.park(park())
    await turns()
    parts.attempts.accept(grant("b", tokens=2))
    parts.attempts.accept(grant("c", tokens=2))
    await turns()
    parts.attempts.resume(resume())
    parts.attempts.revoke("c", 1)
    await turns()
    parts.attempts.accept(grant("d", tokens=1))
    await turns()
    assert [one.action for one in parts.executor.begun] == ["a", "b", "c"], "d does not pass a"
    parts.clock.now += 10.0
    parts.attempts.park(park(serial=3))
    await turns()
    assert ([one.action for one in parts.executor.begun], len(parked(parts))) == (["a", "b", "c", "d"], 2)
    parts.attempts.resume(resume(serial=4))
    parts.attempts.revoke("b", 1)
    await turns()
    assert (parts.executor.resumed, parts.units["tokens"].used) == (["a"], 4)
    parts.clock.now += 2.0
    parts.executor.go.set()
    assert {one.action: one.execution_s for one in await parts.settled()}["a"] == 2.0


async def test_parking_frees_the_units_of_waiting_grants(parts: AttemptsUnderTest) -> None:
    parts.attempts.accept(grant("b", tokens=2))
    parts.attempts.park(park())
    await turns()
    assert [one.action for one in parts.executor.begun] == ["a", "b"]


async def test_repeated_and_older_messages_change_nothing(parts: AttemptsUnderTest) -> None:
    for message in (park(serial=1), park(serial=1)):
        parts.attempts.park(message)
        await turns()
    for asked in (resume(serial=2), resume(serial=2)):
        parts.attempts.resume(asked)
    parts.attempts.park(park(serial=3))
    await turns()
    parts.attempts.resume(resume(serial=2))
    parts.attempts.resume(resume(serial=9, attempt=2))
    assert (len(parked(parts)), parts.executor.resumed, parts.units["tokens"].used) == (2, ["a"], 0)
    parts.attempts.resume(resume(serial=1, epoch=2))
    assert parts.executor.resumed == ["a", "a"]


@pytest.mark.parametrize("waits", [False, True], ids=["parked", "waits for units"])
async def test_a_revoked_one_ends_once_and_gives_no_units_back(parts: AttemptsUnderTest, waits: bool) -> None:
    parts.attempts.park(park())
    await turns()
    if waits:
        parts.attempts.accept(grant("b", tokens=4))
        parts.attempts.resume(resume())
    parts.attempts.revoke("a", 1)
    await turns()
    assert [(one.action, one.result.status) for one in parts.finished()] == [("a", "cancelled")]
    assert parts.units["tokens"].used == (4 if waits else 0)
    parts.executor.go.set()
    await parts.settled()
    assert (parts.executor.resumed, parts.units["tokens"].used) == ([], 0)


async def test_one_that_ends_while_it_is_parked_is_reported_only_as_finished(parts: AttemptsUnderTest) -> None:
    parts.executor.may_park.clear()
    parts.attempts.park(park())
    await turns()
    parts.executor.go.set()
    await parts.settled()
    parts.executor.may_park.set()
    await turns()
    assert (parked(parts), parts.units["tokens"].used) == ([], 0)
    assert isinstance(parts.reports[-1], Finished)


async def test_one_that_cannot_be_parked_runs_on(parts: AttemptsUnderTest) -> None:
    parts.executor.parks = False
    parts.attempts.park(park())
    await turns()
    assert (parked(parts), parts.units["tokens"].used) == ([], 3)
    (held,) = parts.attempts.held_grants()
    assert not held.parked


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyError("a bug")], ids=repr)
async def test_one_whose_executor_fails_to_park_it_runs_on(parts: AttemptsUnderTest, error: BaseException) -> None:
    parts.executor.park_error = error
    parts.attempts.park(park())
    await turns()
    assert (parked(parts), parts.units["tokens"].used) == ([], 3)
    parts.executor.park_error = None
    parts.attempts.park(park(serial=2))
    await turns()
    assert (len(parked(parts)), parts.units["tokens"].used) == (1, 0)


async def test_units_that_the_node_lacks_may_be_zero(parts: AttemptsUnderTest) -> None:
    parts.attempts.accept(grant("b", units={"tokens": 1, "gpus": 0}))
    parts.attempts.park(park("b"))
    await turns()
    assert ([one.action for one in parked(parts)], parts.units["tokens"].used) == (["b"], 3)
    parts.attempts.resume(resume("b"))
    assert (parts.executor.resumed, parts.units["tokens"].used) == (["b"], 4)
    parts.executor.go.set()
    assert [one.units for one in await parts.settled() if one.action == "b"] == [{"tokens": 1, "gpus": 0}]
    assert parts.units["tokens"].used == 0


async def test_no_action_of_an_environment_passes_one_that_waits_for_units(parts: AttemptsUnderTest) -> None:
    parts.attempts.park(park())
    await turns()
    parts.attempts.accept(grant("b", tokens=2))
    await turns()
    parts.attempts.resume(resume())
    parts.attempts.accept(grant("c", tokens=2, trajectory="t"))
    parts.attempts.revoke("b", 1)
    await turns()
    assert [one.action for one in parts.executor.begun] == ["a", "b"]
    assert (parts.executor.resumed, parts.units["tokens"].used) == (["a"], 3)


@pytest.mark.parametrize(("messages", "parks"), [
    ([park("b", serial=1)], True),
    ([park("b", serial=1), resume("b", serial=2)], False),
    ([resume("b", serial=2), park("b", serial=1)], False),
    ([park("b", serial=1), resume("b", serial=2), park("b", serial=3)], True),
    ([park("b", serial=1), park("b", attempt=2, serial=2)], True),
], ids=str)  # fmt: skip
async def test_a_waiting_grant_obeys_the_newest_message_when_it_starts(
    parts: AttemptsUnderTest, messages: list[AttemptParkRequested | AttemptResumed], parks: bool
) -> None:
    parts.attempts.accept(grant("b", tokens=2))
    for message in messages:
        if isinstance(message, AttemptParkRequested):
            parts.attempts.park(message)
        else:
            parts.attempts.resume(message)
    await turns()
    assert parked(parts) == []
    parts.attempts.revoke("a", 1)
    await turns()
    assert ([one.action for one in parked(parts)], parts.units["tokens"].used) == ((["b"], 0) if parks else ([], 2))


async def test_a_stopping_node_ends_parked_attempts(parts: AttemptsUnderTest) -> None:
    parts.attempts.park(park())
    await turns()
    await parts.attempts.stop()
    assert [one.result.status for one in parts.finished()] == ["lost"]
    assert parts.units["tokens"].used == 0
