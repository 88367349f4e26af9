"""Prefetched grants wait on the node in order, and can be revoked before they start."""

from __future__ import annotations

import pytest

from tests.shared.node.scripted import AttemptsUnderTest, grant, turns


@pytest.fixture
async def parts() -> AttemptsUnderTest:
    return AttemptsUnderTest()


async def test_grants_without_free_tokens_wait_in_order(parts: AttemptsUnderTest) -> None:
    parts.executor.waits = True
    for name, tokens in (("a", 2), ("b", 2), ("c", 3), ("d", 1)):
        parts.attempts.accept(grant(name, tokens=tokens))
    await turns()
    assert (len(parts.attempts), parts.units["tokens"].used, len(parts.executor.begun)) == (4, 4, 2)
    assert [(one.action, one.queued) for one in parts.attempts.held_grants()] == [
        ("a", False), ("b", False), ("c", True), ("d", True)
    ]  # fmt: skip

    parts.clock.now += 1.5
    parts.executor.go.set()
    done = await parts.settled()
    assert [one.action for one in done] == ["a", "b", "c", "d"]
    assert [one.queue_s for one in done] == [0.0, 0.0, 1.5, 1.5]
    assert [one.action for one in parts.executor.begun] == ["a", "b", "c", "d"]


async def test_a_waiting_grant_starts_before_the_outcome_that_freed_its_tokens_is_reported(
    parts: AttemptsUnderTest,
) -> None:
    parts.executor.waits = True
    parts.attempts.accept(grant("a", tokens=4))
    parts.attempts.accept(grant("b", tokens=4))
    await turns()
    parts.executor.go.set()
    await parts.settled()
    assert parts.used_when_reported == [4, 0]


async def test_it_is_busy_while_more_grants_wait_than_tokens_are_used(parts: AttemptsUnderTest) -> None:
    parts.executor.waits = True
    for number in range(8):
        parts.attempts.accept(grant(f"a{number}"))
    assert not parts.attempts.busy()
    parts.attempts.accept(grant("one-more"))
    assert parts.attempts.busy()
    await parts.attempts.stop()


async def test_an_action_in_an_environment_overtakes_waiting_grants_if_its_units_are_free(
    parts: AttemptsUnderTest,
) -> None:
    parts.executor.waits = True
    for name, tokens, trajectory in (("a", 3, ""), ("b", 2, ""), ("c", 1, "t"), ("d", 1, "t")):
        parts.attempts.accept(grant(name, tokens=tokens, trajectory=trajectory))
    await turns()
    assert [one.action for one in parts.executor.begun] == ["a", "c"]
    await parts.attempts.stop()


async def test_a_grant_without_tokens_does_not_wait(parts: AttemptsUnderTest) -> None:
    parts.executor.waits = True
    parts.attempts.accept(grant("a", tokens=4))
    parts.attempts.accept(grant("b"))
    parts.attempts.accept(grant("c", tokens=0))
    await turns()
    assert len(parts.executor.begun) == 2
    await parts.attempts.stop()


@pytest.mark.parametrize(("recall", "status"), [(False, "cancelled"), (True, "lost")])
async def test_a_waiting_grant_can_be_revoked(parts: AttemptsUnderTest, recall: bool, status: str) -> None:
    parts.executor.waits = True
    for name, tokens in (("a", 3), ("b", 2), ("c", 1)):
        parts.attempts.accept(grant(name, tokens=tokens))
    await turns()
    parts.attempts.revoke("b", 1, recall=recall)
    await turns()
    assert [(one.action, one.result.status) for one in parts.finished()] == [("b", status)]
    assert len(parts.executor.begun) == 2, "it is no longer before c"
    parts.executor.go.set()
    assert [one.result.status for one in await parts.settled()] == [status, "ok", "ok"]


async def test_a_running_attempt_is_not_recalled(parts: AttemptsUnderTest) -> None:
    parts.executor.waits = True
    parts.attempts.accept(grant())
    await turns()
    parts.attempts.revoke("a", 1, recall=True)
    parts.executor.go.set()
    assert [one.result.status for one in await parts.settled()] == ["ok"]


async def test_a_stopping_node_reports_waiting_grants_lost(parts: AttemptsUnderTest) -> None:
    parts.executor.waits = True
    parts.attempts.accept(grant("a", tokens=4))
    parts.attempts.accept(grant("b"))
    await turns()
    await parts.attempts.stop()
    assert {one.action: one.result.status for one in parts.finished()} == {"a": "lost", "b": "lost"}
    assert len(parts.executor.begun) == 1
