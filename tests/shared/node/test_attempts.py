"""Every grant has exactly one outcome, and its units are free before the outcome is reported."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shared.messages.outcomes import GrantHeld, Started
from shared.policy.model.results import AttemptResult
from tests.shared.node.scripted import AttemptsUnderTest, grant, turns


@pytest.fixture
async def parts() -> AttemptsUnderTest:
    return AttemptsUnderTest()


async def test_a_repeated_grant_runs_once(parts: AttemptsUnderTest) -> None:
    parts.executor.waits = True
    parts.attempts.accept(grant())
    parts.attempts.accept(grant())
    await turns()
    parts.executor.go.set()
    await parts.settled()
    parts.attempts.accept(grant())

    assert len(await parts.settled()) == len(parts.executor.begun) == 1


@pytest.mark.parametrize("other", [{"attempt": 2}, {"stage": 1}, {"epoch": 2}], ids=str)
async def test_another_attempt_or_stage_or_leader_is_no_repeat(parts: AttemptsUnderTest, other: dict[str, Any]) -> None:
    parts.attempts.accept(grant())
    await parts.settled()
    parts.attempts.accept(grant(**other))

    assert len(await parts.settled()) == 2


async def test_a_grant_that_does_not_fit_is_lost_at_once(parts: AttemptsUnderTest) -> None:
    parts.attempts.accept(grant(tokens=5))

    (outcome,) = parts.finished()
    assert (outcome.result.status, outcome.result.reason) == ("lost", "5 tokens granted, the node has 4")
    assert (len(parts.attempts), parts.units["tokens"].used) == (0, 0)


async def test_a_revoked_attempt_is_cancelled_and_its_tokens_are_free(parts: AttemptsUnderTest) -> None:
    parts.executor.waits = True
    parts.attempts.accept(grant())
    await turns()
    parts.attempts.revoke("a", 1)

    assert [one.result.status for one in await parts.settled()] == ["cancelled"]
    assert parts.used_when_reported == [0]


async def test_an_attempt_revoked_before_its_first_step_releases_its_tokens(parts: AttemptsUnderTest) -> None:
    parts.attempts.accept(grant(tokens=4))
    parts.attempts.revoke("a", 1)

    assert [one.result.status for one in await parts.settled()] == ["cancelled"]
    assert (parts.executor.begun, parts.units["tokens"].used) == ([], 0)


@pytest.mark.parametrize(("action", "attempt"), [("a", 2), ("b", 1)])
async def test_revoking_an_unknown_attempt_changes_nothing(parts: AttemptsUnderTest, action: str, attempt: int) -> None:
    parts.attempts.accept(grant())
    parts.attempts.revoke(action, attempt)

    assert [one.result.status for one in await parts.settled()] == ["ok"]


async def test_a_revocation_that_comes_too_late_leaves_the_verdict(parts: AttemptsUnderTest) -> None:
    parts.attempts.accept(grant())
    await parts.settled()
    parts.attempts.revoke("a", 1)

    assert [one.result.status for one in await parts.settled()] == ["ok"]


async def test_attempts_of_a_stopping_node_are_lost_and_not_cancelled(parts: AttemptsUnderTest) -> None:
    parts.executor.waits = True
    for name in ("a", "b"):
        parts.attempts.accept(grant(name))
    await turns()

    async with asyncio.timeout(20):
        await parts.attempts.stop()

    assert [(one.result.status, one.result.reason) for one in parts.finished()] == [
        ("lost", "the node is stopping")
    ] * 2
    assert (len(parts.attempts), parts.units["tokens"].used) == (0, 0)


async def test_a_grant_received_during_shutdown_is_ignored(parts: AttemptsUnderTest) -> None:
    parts.executor.waits = True
    parts.attempts.accept(grant())
    await turns()
    stopping = asyncio.create_task(parts.attempts.stop())
    await asyncio.sleep(0)
    for attempt in range(2, 6):  # more than the node has tokens: none of them may be queued either
        parts.attempts.accept(grant(attempt=attempt))

    async with asyncio.timeout(20):
        await stopping

    assert [(one.attempt, one.result.status) for one in parts.finished()] == [(1, "lost")]
    assert (len(parts.attempts), parts.units["tokens"].used) == (0, 0)


async def test_stopping_waits_for_the_cleanup_of_attempts(parts: AttemptsUnderTest) -> None:
    parts.executor.waits, parts.executor.cleanup_turns = True, 5
    parts.attempts.accept(grant())
    await turns()
    await parts.attempts.stop()

    assert [one.action for one in parts.executor.released] == ["a"]


async def test_each_start_is_released_once_before_its_outcome(parts: AttemptsUnderTest) -> None:
    released: list[int] = []
    record = parts.attempts.report

    def report(outcome: Any) -> None:
        released.append(len(parts.executor.released))
        record(outcome)

    parts.attempts.report = report
    for name in ("a", "b", "c"):
        parts.attempts.accept(grant(name, tokens=2))
    parts.attempts.revoke("a", 1)  # before its first step
    await parts.settled()

    assert sorted(one.action for one in parts.executor.released) == ["a", "b", "c"]
    assert released == [1, 2, 3]


async def test_an_exception_of_the_executor_is_our_failure(parts: AttemptsUnderTest) -> None:
    def crash(_: Any) -> AttemptResult:
        raise KeyError("a bug")

    parts.executor.act = crash
    parts.attempts.accept(grant())

    (outcome,) = await parts.settled()
    assert (outcome.result.status, outcome.result.reason) == ("lost", "the executor failed: KeyError")
    assert parts.units["tokens"].used == 0


async def test_units_of_every_resource_are_counted_while_an_attempt_runs(parts: AttemptsUnderTest) -> None:
    parts.executor.waits = True
    parts.attempts.accept(grant(units={"tokens": 1, "seats": 3}))
    assert (parts.units["tokens"].used, parts.units["seats"].used) == (1, 3)

    parts.executor.go.set()
    await parts.settled()
    assert (parts.units["tokens"].used, parts.units["seats"].used) == (0, 0)


@pytest.mark.parametrize(("units", "reason"), [
    ({"seats": 9}, "9 seats granted, the node has 8"), ({"gpus": 1}, "1 gpus granted, the node has 0"),
])  # fmt: skip
async def test_a_grant_of_units_that_the_node_lacks_is_lost(
    parts: AttemptsUnderTest, units: dict[str, int], reason: str
) -> None:
    parts.attempts.accept(grant(units=units))

    assert [(one.result.status, one.result.reason) for one in parts.finished()] == [("lost", reason)]


async def test_an_attempt_that_runs_at_a_heartbeat_is_reported_once_as_started(parts: AttemptsUnderTest) -> None:
    parts.executor.waits = True
    parts.attempts.accept(grant("a"))
    parts.attempts.report_started()
    parts.attempts.accept(grant("b", attempt=2))
    parts.attempts.report_started()
    parts.attempts.report_started()

    assert parts.reports == [
        Started(action="a", node="n", epoch=1, attempt=1),
        Started(action="b", node="n", epoch=1, attempt=2),
    ]
    await parts.attempts.stop()


async def test_an_inventory_lists_running_attempts(parts: AttemptsUnderTest) -> None:
    parts.executor.waits = True
    parts.attempts.accept(grant("a", tokens=2))
    parts.clock.now += 3.0
    parts.attempts.accept(grant("b", attempt=2, stage=1))

    assert parts.attempts.held_grants() == [
        GrantHeld(action="a", epoch=1, attempt=1, stage=0, units={"tokens": 2}, running_s=3.0),
        GrantHeld(action="b", epoch=1, attempt=2, stage=1, units={"tokens": 1}, running_s=0.0),
    ]
    parts.executor.go.set()
    await parts.settled()
    assert parts.attempts.held_grants() == []


async def test_a_wait_for_a_model_service_is_no_execution(parts: AttemptsUnderTest) -> None:
    parts.executor.waits = True
    parts.executor.act = lambda _: AttemptResult("ok", restore_s=7.0)
    parts.attempts.accept(grant())
    await turns()
    parts.clock.now += 10.0
    parts.executor.go.set()

    (outcome,) = await parts.settled()
    assert (outcome.execution_s, outcome.result.restore_s) == (3.0, 7.0)
