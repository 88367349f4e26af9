"""Outcomes that come before they are stored: handled once, and confirmed after what follows from them is stored."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from redis.asyncio import Redis

from services.proxy.leader import direct_outcomes
from services.proxy.leader.direct_outcomes import DirectOutcomes
from services.proxy.leader.leader import Leader
from shared.messages.outcomes import CONFIRMATIONS, OUTCOMES, Confirmed
from tests.services.proxy.mesh import (
    EPOCH,
    StillClock,
    WriteRecorder,
    answers,
    from_node,
    granted,
    hello,
    inventory,
    journalled,
    leader_of,
    outcome,
    stage,
    steps,
    submitted,
)

SOON_S = 5 * direct_outcomes.CONFIRMED_AFTER_S


class Posts:
    """Records what is posted."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, Confirmed]] = []

    def post(self, name: str, channel: str, message: bytes) -> None:
        assert name == "PUBLISH"
        self.posted.append((channel, CONFIRMATIONS.decode(message)))


class DirectDriver:
    """A leader with one node of four cores that has sent its inventory."""

    def __init__(self) -> None:
        self.recorder = WriteRecorder()
        self.leader: Leader = leader_of(self.recorder, StillClock())
        self.redis = Posts()
        redis = cast("Redis", self.redis)
        self.direct = DirectOutcomes(self.leader, redis, redis)
        self.take(from_node(hello()), from_node(inventory()))

    def take(self, *entries: Any) -> list[Any]:
        self.leader.take(list(entries))
        self.leader.dispatcher.check()
        return self.recorder.take()

    def report(self, *outcomes: Any) -> list[Any]:
        self.direct.handle(list(outcomes))
        self.leader.dispatcher.check()
        return self.recorder.take()

    async def confirmed(self) -> list[tuple[str, Confirmed]]:
        await asyncio.sleep(SOON_S)
        posted, self.redis.posted = self.redis.posted, []
        return posted


@pytest.fixture
async def driver() -> DirectDriver:
    return DirectDriver()


def confirmed(action: str, stage: int = 0, attempt: int = 1) -> tuple[str, Confirmed]:
    return "confirmed:n:1", Confirmed(action=action, stage=stage, epoch=EPOCH, attempt=attempt)


async def test_an_answer_is_confirmed_when_it_is_stored(driver: DirectDriver) -> None:
    driver.take(journalled(submitted("a")))

    (answer,) = answers(driver.report(outcome("a", score=0.5)))

    assert (answer.action, answer.outcome) == ("a", ""), "no entry of outcomes is deleted with it"
    assert await driver.confirmed() == []
    driver.direct.stored("a")
    driver.direct.stored("a")
    assert await driver.confirmed() == [confirmed("a")]


async def test_the_stored_copy_of_an_outcome_changes_nothing(driver: DirectDriver) -> None:
    driver.take(journalled(submitted("a")))

    assert len(driver.report(outcome("a"))) == 1
    assert driver.take(from_node(outcome("a"))) == []


async def test_the_stored_copy_of_a_handled_outcome_is_left_out(
    driver: DirectDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it reports of a provider would count twice. A copy of another attempt is none."""
    monkeypatch.setattr(direct_outcomes, "REMEMBERED", 2)
    driver.take(journalled(submitted("a")))
    handled = outcome("a")
    driver.report(handled)

    assert driver.direct.repeats(from_node(handled))
    for other in (outcome("b"), outcome("a", attempt=2), outcome("a", stage=1), outcome("a", node="m")):
        assert not driver.direct.repeats(from_node(other))
    assert not driver.direct.repeats(from_node(hello()))
    driver.report(outcome("b"), outcome("c"))
    assert not driver.direct.repeats(from_node(handled)), "the oldest is forgotten"
    driver.leader.behind = True
    driver.report(late := outcome("d"))
    assert not driver.direct.repeats(from_node(late)), "it was not handled"


async def test_an_outcome_whose_stored_copy_comes_first_is_handled_as_the_copy(driver: DirectDriver) -> None:
    for name in ("a", "b"):
        driver.take(journalled(submitted(name)))
        driver.direct._receive(OUTCOMES.encode(outcome(name)))

    assert not driver.direct.repeats(from_node(outcome("a")))
    assert [one.action for one in driver.direct._received] == ["b"]


async def test_an_outcome_that_was_stored_before_is_confirmed_at_once(driver: DirectDriver) -> None:
    driver.take(journalled(submitted("a")))
    driver.take(from_node(outcome("a")))

    assert driver.report(outcome("a")) == []
    assert await driver.confirmed() == [confirmed("a")]


async def test_a_next_stage_is_confirmed_when_it_is_stored(driver: DirectDriver) -> None:
    driver.take(journalled(submitted("a", stage("first"), stage("second"))))

    writes = driver.report(outcome("a"))

    assert [step.stage for step in steps(writes)] == [1]
    assert [grant.stage for grant in granted(writes)] == [1]
    assert await driver.confirmed() == []
    driver.direct.stored("a")
    assert await driver.confirmed() == [confirmed("a")]


async def test_units_are_free_for_the_next_action(driver: DirectDriver) -> None:
    driver.take(journalled(submitted("a", stage(cores=4))), journalled(submitted("b", stage(cores=4))))

    assert [one.action for one in granted(driver.report(outcome("a", units={"cores": 4})))] == ["b"]


async def test_nothing_is_handled_before_entries_that_wait(driver: DirectDriver) -> None:
    """The node stores the outcome, which comes after these."""
    driver.take(journalled(submitted("a")))
    driver.leader.behind = True

    assert driver.report(outcome("a")) == []

    driver.direct.stored("a")
    assert await driver.confirmed() == []
    assert len(driver.take(from_node(outcome("a")))) == 1


async def test_an_outcome_of_a_former_attempt_is_not_confirmed_without_a_write(driver: DirectDriver) -> None:
    driver.take(journalled(submitted("a")))
    writes = driver.take(from_node(outcome("a", status="lost")))
    assert [grant.attempt for grant in granted(writes)] == [2]

    driver.report(outcome("a", attempt=1, status="lost"))

    assert await driver.confirmed() == []


async def test_outcomes_without_a_write_are_forgotten(driver: DirectDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_outcomes, "KEPT_S", 0.0)
    for number in range(5):
        driver.take(journalled(submitted(f"a{number}")))
        driver.report(outcome(f"a{number}"))
        await asyncio.sleep(0.001)
    assert len(driver.direct._unconfirmed) == 1


async def test_what_is_received_is_bounded_and_only_results(
    driver: DirectDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_outcomes, "MOST", 3)
    driver.direct._receive(b"no message")
    driver.direct._receive(OUTCOMES.encode(inventory()))
    for number in range(5):
        driver.direct._receive(OUTCOMES.encode(outcome(f"a{number}")))
    assert [one.action for one in driver.direct._received] == ["a0", "a1", "a2"]


async def test_received_outcomes_are_handled_in_order(driver: DirectDriver) -> None:
    for name in ("a", "b"):
        driver.take(journalled(submitted(name)))
    running = asyncio.create_task(driver.direct.run())
    for name in ("b", "a"):
        driver.direct._receive(OUTCOMES.encode(outcome(name)))
    await asyncio.sleep(SOON_S)
    running.cancel()
    await asyncio.wait([running])
    assert [one.action for one in answers(driver.recorder.take())] == ["b", "a"]
