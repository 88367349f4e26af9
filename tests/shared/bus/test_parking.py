"""Requests to park and to resume: rejected with a reason, stored for a new leader, and fulfilled by a message."""

from __future__ import annotations

from shared.bus import functions, parking
from shared.bus.actions import read_continuations
from shared.bus.functions import Granting
from shared.messages.actions import ACTIONS, ParkActionRequested, ResumeActionRequested
from tests.shared.bus.journal import Journal, submission
from tests.shared.bus.test_trajectory_functions import begun, opened, submit


async def wanted(journal: Journal, action: str = "a1") -> str:
    (found,) = await read_continuations(journal.redis, [action])
    assert found is not None
    return found.wanted


async def resumed(journal: Journal, action: str = "a1") -> None:
    await functions.send_grants(journal.redis, journal.epoch, [Granting("grants.n.1", b"m", action)])


async def test_what_cannot_be_parked_is_rejected_with_the_reason(journal: Journal) -> None:
    await opened(journal)
    await submit(journal, "a1")
    await functions.journal_actions(journal.redis, [submission("plain")], max_journal=1000)
    assert await parking.park(journal.redis, "nothing", "why") == "unknown"
    assert await parking.park(journal.redis, "plain", "why") == "no-trajectory"
    assert await parking.park(journal.redis, "a1", "why") == "not-running"
    await begun(journal)
    assert await parking.resume(journal.redis, "a1") == "not-running"
    assert not [one for one in await journal.messages(ACTIONS) if isinstance(one, ParkActionRequested)]


async def test_requests_are_in_the_journal_in_order_and_a_new_leader_reads_the_newest(journal: Journal) -> None:
    await opened(journal)
    await submit(journal, "a1")
    await begun(journal)
    assert await wanted(journal) == ""
    assert await parking.park(journal.redis, "a1", "a model call") == "requested"
    assert await parking.park(journal.redis, "a1", "again") == "requested"
    assert await wanted(journal) == "parked"
    assert await parking.resume(journal.redis, "a1") == "requested"
    assert await parking.resume(journal.redis, "a1") == "requested"
    assert await wanted(journal) == "resumed"
    entries = [
        one for one in await journal.messages(ACTIONS) if isinstance(one, ParkActionRequested | ResumeActionRequested)
    ]
    assert [type(one).__name__[:4] for one in entries] == ["Park", "Park", "Resu", "Resu"]
    await resumed(journal)
    assert await wanted(journal) == ""
    assert await parking.resume(journal.redis, "a1") == "requested", "it may be repeated"
    assert await wanted(journal) == ""


async def test_a_message_that_continues_an_earlier_request_leaves_a_later_one(journal: Journal) -> None:
    await opened(journal)
    await submit(journal, "a1")
    await begun(journal)
    await parking.park(journal.redis, "a1", "one")
    await parking.resume(journal.redis, "a1")
    await parking.park(journal.redis, "a1", "two")
    await resumed(journal)
    assert await wanted(journal) == "parked"
    assert await parking.resume(journal.redis, "a1") == "requested"
    assert await wanted(journal) == "resumed"


async def test_a_request_is_about_one_grant(journal: Journal) -> None:
    await opened(journal)
    await submit(journal, "a1")
    await begun(journal)
    await parking.park(journal.redis, "a1", "one")
    await functions.send_grants(journal.redis, journal.epoch, [Granting("grants.n.1", b"m", "a1", "2:n")])
    assert await wanted(journal) == ""
    assert await parking.resume(journal.redis, "a1") == "not-running"
