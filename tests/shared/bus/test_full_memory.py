"""At Valkey's memory bound nothing new is accepted, and everything that frees memory continues."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shared.bus import archive, backlog, batches, functions, trajectories
from shared.bus.connection import command, connect, with_retries
from shared.bus.functions import Advancing, Granting
from shared.bus.held_leases import LeaseAcquisition, acquire_leases
from shared.bus.keys import Role
from shared.bus.lease import Lease
from shared.messages.batches import RolloutProgress
from shared.messages.environments import EnvironmentSpec
from shared.policy.dispatch.backlog import Backlog
from shared.runtime.errors import Overloaded
from tests.shared.bus.journal import Journal, lead, resign, submission


@pytest.fixture
async def full(private_url: str) -> AsyncIterator[Journal]:
    """Two accepted actions (`a1` alone, `a2` in batch `b`), two open trajectories, and no free memory."""
    async with connect(private_url, name="test") as redis:
        await functions.load(redis)
        journal = await Journal.led(redis)
        await journal.open("b", size=1)
        await journal.submit("a1")
        await journal.submit("a2", batch="b")
        for name in ("t1", "t2"):
            await opened(journal, name)
        await command(redis, "CONFIG", "SET", "maxmemory", "1")
        yield journal


async def opened(journal: Journal, trajectory: str) -> None:
    await trajectories.open_trajectory(
        journal.redis, trajectory, EnvironmentSpec(), idempotency_key="", digest=b"", most=9, keep_s=60.0,
        node_class="default", fields={},
    )  # fmt: skip


async def entry_of(journal: Journal, action: str) -> str:
    return (await journal.fields(f"action:{action}"))["entry"].decode()


async def test_submitting_is_refused_before_anything_is_accepted(full: Journal) -> None:
    with pytest.raises(Overloaded):
        await full.submit("a3")

    assert await full.unanswered() == ["a1", "a2"]


async def test_opening_a_batch_is_refused(full: Journal) -> None:
    with pytest.raises(Overloaded):
        await full.open("c")


async def test_opening_a_trajectory_is_refused(full: Journal) -> None:
    with pytest.raises(Overloaded):
        await opened(full, "t3")


async def test_trajectories_are_closed_forgotten_and_ended_in_time(full: Journal) -> None:
    await trajectories.record_ends(full.redis, full.epoch, [("t1", "lost", "it died")])
    assert await trajectories.close_trajectory(full.redis, "t2", "done")
    assert await trajectories.expire_trajectories(full.redis, full.epoch) == []

    assert [(await full.fields(f"trajectory:{name}"))["state"] for name in ("t1", "t2")] == [b"lost", b"closed"]


async def test_a_report_of_a_rollout_is_refused(full: Journal) -> None:
    with pytest.raises(Overloaded):
        await batches.progress(full.redis, RolloutProgress(batch="b", at=1.0, generating=3))


async def test_a_plain_write_is_refused_as_overload_where_it_is_repeated_patiently(full: Journal) -> None:
    async def write() -> None:
        await command(full.redis, "SET", "key", "value")

    with pytest.raises(Overloaded):
        await with_retries(write, what="writing", limit_s=1.0)


async def test_reports_of_nodes_are_accepted(full: Journal) -> None:
    await functions.publish(full.redis, "outcomes", 100, [b"one", b"two"])

    assert await command(full.redis, "XLEN", "outcomes") == 2


async def test_the_backlog_is_published(full: Journal) -> None:
    await backlog.publish_backlog(full.redis, full.epoch, Backlog())

    assert (await full.fields("backlog")).keys() == {"pools", "quotas", "stuck"}


async def test_actions_are_granted_advanced_and_answered(full: Journal) -> None:
    await functions.send_grants(full.redis, full.epoch, [Granting("grants.n.1", b"m", "a2", "1:n")])
    await functions.advance_stages(full.redis, full.epoch, [Advancing("a2", 1, b"[]")])

    assert await full.finish("a2", await entry_of(full, "a2"), "b")
    assert len(await full.ended()) == 1


async def test_actions_and_batches_are_cancelled(full: Journal) -> None:
    assert await functions.cancel(full.redis, "a1", "asked") == "requested"
    assert await full.end("b", "cancelled") == "cancelled"


async def test_the_leader_keeps_its_lease(full: Journal) -> None:
    assert await lead(full.redis, "me", 30.0) == full.epoch


async def test_a_successor_takes_the_lease(full: Journal) -> None:
    await resign(full.redis, "me")

    assert await lead(full.redis, "you", 30.0) == full.epoch + 1


async def test_answers_are_archived(full: Journal) -> None:
    """The archiver works on a full store: it acquires its lease, and its writes free memory."""
    assert await Lease(full.redis, Role.ARCHIVER, 30.0).hold()
    assert await full.finish("a2", await entry_of(full, "a2"), "b", b'{"id":"a2"}')
    key = archive.BatchKey("", "b")
    (result,) = await archive.due_results(full.redis, key, 1 << 50, 10, 1 << 20)
    assert await archive.archive_results(full.redis, key, [("a2", len(result.answer))], result.cursor) == 1
    assert await full.results() == []


async def test_a_restarted_service_finds_the_functions_it_needs(full: Journal) -> None:
    await functions.load(full.redis)


async def test_a_lease_is_rejected_and_one_that_may_have_been_written_is_found(full: Journal) -> None:
    lease = [LeaseAcquisition(submission("lease"), None)]
    with pytest.raises(Overloaded):
        await acquire_leases(full.redis, full.epoch, lease, max_journal=100)
    assert await command(full.redis, "EXISTS", "action:lease") == 0
    first = await acquire_leases(full.redis, full.epoch, lease, max_journal=100, again=True)
    assert first is not None
    assert await acquire_leases(full.redis, full.epoch, lease, max_journal=0, again=True) == first
