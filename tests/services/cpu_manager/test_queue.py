"""Prefetched grants wait on the node in order, and can be revoked before they start."""

from __future__ import annotations

import msgspec
import pytest

from services.cpu_manager.graders.protocol import Verdict
from tests.services.cpu_manager.node_parts import NodeParts, grant, turns


@pytest.fixture
async def parts() -> NodeParts:
    return NodeParts()


async def test_grants_without_free_cores_wait_in_order(parts: NodeParts) -> None:
    parts.grader.waits = True
    for name, cores in (("a", 2), ("b", 2), ("c", 3), ("d", 1)):
        parts.attempts.accept(grant(name, cores=cores))
    await turns()
    assert (len(parts.attempts), parts.cores.used, len(parts.grader.begun)) == (4, 4, 2)
    assert [(one.action, one.queued) for one in parts.attempts.held_grants()] == [
        ("a", False), ("b", False), ("c", True), ("d", True)
    ]  # fmt: skip

    parts.clock.now += 1.5
    parts.grader.go.set()
    parts.grader.act = lambda _, context: Verdict(status="ok", output={"cores": len(context.cores)})
    done = await parts.settled()
    assert [one.action for one in done] == ["a", "b", "c", "d"]
    assert [one.queue_s for one in done] == [0.0, 0.0, 1.5, 1.5]
    assert [msgspec.json.decode(one.result.output)["cores"] for one in done] == [2, 2, 3, 1]


async def test_a_waiting_grant_starts_before_the_outcome_that_freed_its_cores_is_reported(parts: NodeParts) -> None:
    parts.grader.waits = True
    parts.attempts.accept(grant("a", cores=4))
    parts.attempts.accept(grant("b", cores=4))
    await turns()
    parts.grader.go.set()
    await parts.settled()
    assert parts.used_when_reported == [4, 0]


async def test_it_is_busy_while_more_grants_wait_than_cores_are_used(parts: NodeParts) -> None:
    parts.grader.waits = True
    for number in range(8):
        parts.attempts.accept(grant(f"a{number}"))
    assert not parts.attempts.busy()
    parts.attempts.accept(grant("one-more"))
    assert parts.attempts.busy()
    await parts.attempts.stop()


async def test_a_grant_without_cores_does_not_wait(parts: NodeParts) -> None:
    parts.grader.waits = True
    parts.attempts.accept(grant("a", cores=4))
    parts.attempts.accept(grant("b"))
    parts.attempts.accept(grant("c", cores=0))
    await turns()
    assert len(parts.grader.begun) == 2
    await parts.attempts.stop()


@pytest.mark.parametrize(("recall", "status"), [(False, "cancelled"), (True, "lost")])
async def test_a_waiting_grant_can_be_revoked(parts: NodeParts, recall: bool, status: str) -> None:
    parts.grader.waits = True
    for name, cores in (("a", 3), ("b", 2), ("c", 1)):
        parts.attempts.accept(grant(name, cores=cores))
    await turns()
    parts.attempts.revoke("b", 1, recall=recall)
    await turns()
    assert [(one.action, one.result.status) for one in parts.finished()] == [("b", status)]
    assert len(parts.grader.begun) == 2, "it is no longer before c"
    parts.grader.go.set()
    assert [one.result.status for one in await parts.settled()] == [status, "ok", "ok"]


async def test_a_running_attempt_is_not_recalled(parts: NodeParts) -> None:
    parts.grader.waits = True
    parts.attempts.accept(grant())
    await turns()
    parts.attempts.revoke("a", 1, recall=True)
    parts.grader.go.set()
    assert [one.result.status for one in await parts.settled()] == ["ok"]


async def test_a_stopping_node_reports_waiting_grants_lost(parts: NodeParts) -> None:
    parts.grader.waits = True
    parts.attempts.accept(grant("a", cores=4))
    parts.attempts.accept(grant("b"))
    await turns()
    await parts.attempts.stop()
    assert {one.action: one.result.status for one in parts.finished()} == {"a": "lost", "b": "lost"}
    assert len(parts.grader.begun) == 1
