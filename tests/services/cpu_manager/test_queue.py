"""Prefetched grants wait on the node in order, and can be revoked before they start."""

from __future__ import annotations

import msgspec
import pytest

from services.cpu_manager.graders.protocol import Verdict
from tests.services.cpu_manager.node_parts import Bed, grant, turns


@pytest.fixture
async def bed() -> Bed:
    return Bed()


async def test_grants_without_free_cores_wait_in_order(bed: Bed) -> None:
    bed.grader.waits = True
    for name, cores in (("a", 2), ("b", 2), ("c", 3), ("d", 1)):
        bed.attempts.accept(grant(name, cores=cores))
    await turns()
    assert (len(bed.attempts), bed.cores.used, len(bed.grader.begun)) == (4, 4, 2)
    assert [(one.action, one.queued) for one in bed.attempts.held_grants()] == [
        ("a", False), ("b", False), ("c", True), ("d", True)
    ]  # fmt: skip

    bed.clock.now += 1.5
    bed.grader.go.set()
    bed.grader.act = lambda _, context: Verdict(status="ok", output={"cores": len(context.cores)})
    done = await bed.settled()
    assert [one.action for one in done] == ["a", "b", "c", "d"]
    assert [one.queue_s for one in done] == [0.0, 0.0, 1.5, 1.5]
    assert [msgspec.json.decode(one.output)["cores"] for one in done] == [2, 2, 3, 1]


async def test_a_waiting_grant_starts_before_the_outcome_that_freed_its_cores_is_reported(bed: Bed) -> None:
    bed.grader.waits = True
    bed.attempts.accept(grant("a", cores=4))
    bed.attempts.accept(grant("b", cores=4))
    await turns()
    bed.grader.go.set()
    await bed.settled()
    assert bed.used_when_reported == [4, 0]


async def test_it_is_busy_while_more_grants_wait_than_cores_are_used(bed: Bed) -> None:
    bed.grader.waits = True
    for number in range(8):
        bed.attempts.accept(grant(f"a{number}"))
    assert not bed.attempts.busy()
    bed.attempts.accept(grant("one-more"))
    assert bed.attempts.busy()
    await bed.attempts.stop()


async def test_a_grant_without_cores_does_not_wait(bed: Bed) -> None:
    bed.grader.waits = True
    bed.attempts.accept(grant("a", cores=4))
    bed.attempts.accept(grant("b"))
    bed.attempts.accept(grant("c", cores=0))
    await turns()
    assert len(bed.grader.begun) == 2
    await bed.attempts.stop()


@pytest.mark.parametrize(("recall", "status"), [(False, "cancelled"), (True, "lost")])
async def test_a_waiting_grant_can_be_revoked(bed: Bed, recall: bool, status: str) -> None:
    bed.grader.waits = True
    for name, cores in (("a", 3), ("b", 2), ("c", 1)):
        bed.attempts.accept(grant(name, cores=cores))
    await turns()
    bed.attempts.revoke("b", 1, recall=recall)
    await turns()
    assert [(one.action, one.status) for one in bed.finished()] == [("b", status)]
    assert len(bed.grader.begun) == 2, "it is no longer before c"
    bed.grader.go.set()
    assert [one.status for one in await bed.settled()] == [status, "ok", "ok"]


async def test_a_running_attempt_is_not_recalled(bed: Bed) -> None:
    bed.grader.waits = True
    bed.attempts.accept(grant())
    await turns()
    bed.attempts.revoke("a", 1, recall=True)
    bed.grader.go.set()
    assert [one.status for one in await bed.settled()] == ["ok"]


async def test_a_stopping_node_reports_waiting_grants_lost(bed: Bed) -> None:
    bed.grader.waits = True
    bed.attempts.accept(grant("a", cores=4))
    bed.attempts.accept(grant("b"))
    await turns()
    await bed.attempts.stop()
    assert {one.action: one.status for one in bed.finished()} == {"a": "lost", "b": "lost"}
    assert len(bed.grader.begun) == 1
