"""Requests to park and to resume: rejected with a reason, stored for a new leader, and fulfilled by a message."""

from __future__ import annotations

from shared.bus import functions, parking
from shared.bus.actions import read_action, read_continuations
from shared.bus.functions import Granting
from shared.messages.actions import ACTIONS, ParkActionRequested, ResumeActionRequested
from tests.shared.bus.journal import Journal, submission
from tests.shared.bus.test_trajectory_functions import begun, opened, submit


async def wanted(journal: Journal, action: str = "a1") -> str:
    (found,) = await read_continuations(journal.redis, [action])
    assert found is not None
    return found.wanted


async def request(journal: Journal, action: str = "a1") -> str:
    """Return the journal entry of the newest request to resume, as a new leader reads it."""
    (found,) = await read_continuations(journal.redis, [action])
    assert found is not None
    return found.resume


async def resumed(journal: Journal, entry: str, action: str = "a1") -> None:
    """Send the message that fulfils a request to resume."""
    message = Granting("grants.n.1", b"m", action, resumes=entry)
    await functions.send_grants(journal.redis, journal.epoch, [message])


async def requests(journal: Journal) -> list[str]:
    return [
        type(one).__name__[:4]
        for one in await journal.messages(ACTIONS)
        if isinstance(one, ParkActionRequested | ResumeActionRequested)
    ]


async def test_what_cannot_be_parked_is_rejected_with_the_reason(journal: Journal) -> None:
    await opened(journal)
    await submit(journal, "a1")
    await functions.journal_actions(journal.redis, [submission("plain")], max_journal=1000)
    assert await parking.park(journal.redis, "nothing", "why") == "unknown"
    assert await parking.park(journal.redis, "plain", "why") == "no-trajectory"
    assert await parking.park(journal.redis, "a1", "why") == "not-running"
    await begun(journal)
    assert await parking.resume(journal.redis, "a1") == "not-running"
    assert await requests(journal) == []


async def test_requests_are_in_the_journal_in_order_and_a_new_leader_reads_the_newest(journal: Journal) -> None:
    await opened(journal)
    await submit(journal, "a1")
    await begun(journal)
    assert await wanted(journal) == ""
    assert await parking.park(journal.redis, "a1", "a model call") == "requested"
    assert await wanted(journal) == "parked"
    assert await parking.resume(journal.redis, "a1") == "requested"
    assert await wanted(journal) == "resumed"
    assert await parking.park(journal.redis, "a1", "another") == "requested"
    assert await wanted(journal) == "parked"
    assert await requests(journal) == ["Park", "Resu", "Park"]


async def test_a_repeated_request_adds_no_journal_entry(journal: Journal) -> None:
    """Requests count against the bound of the journal, which rejects new work."""
    await opened(journal)
    await submit(journal, "a1")
    await begun(journal)
    for _ in range(3):
        assert await parking.park(journal.redis, "a1", "a model call") == "requested"
    assert await requests(journal) == ["Park"]
    for _ in range(3):
        assert await parking.resume(journal.redis, "a1") == "requested"
    await resumed(journal, await request(journal))
    assert await wanted(journal) == ""
    assert await parking.resume(journal.redis, "a1") == "requested", "it may be repeated after it was fulfilled"
    assert await wanted(journal) == ""
    assert await requests(journal) == ["Park", "Resu"]


async def test_a_message_that_fulfils_an_earlier_request_leaves_a_later_one(journal: Journal) -> None:
    """A flush is repeated as a whole, and may be written after the next requests."""
    await opened(journal)
    await submit(journal, "a1")
    await begun(journal)
    await parking.park(journal.redis, "a1", "one")
    await parking.resume(journal.redis, "a1")
    first = await request(journal)
    await parking.park(journal.redis, "a1", "two")
    await resumed(journal, first)
    assert await wanted(journal) == "parked"
    assert await parking.resume(journal.redis, "a1") == "requested"
    await resumed(journal, first)
    assert await wanted(journal) == "resumed", "a new leader continues it"
    await resumed(journal, await request(journal))
    assert await wanted(journal) == ""


async def test_a_request_is_about_one_grant(journal: Journal) -> None:
    await opened(journal)
    await submit(journal, "a1")
    await begun(journal)
    await parking.park(journal.redis, "a1", "one")
    await functions.send_grants(journal.redis, journal.epoch, [Granting("grants.n.1", b"m", "a1", "2:n")])
    assert await wanted(journal) == ""
    assert await parking.resume(journal.redis, "a1") == "not-running"


async def test_a_node_parks_and_resumes_its_own_grant_alone(journal: Journal) -> None:
    await opened(journal)
    await submit(journal, "a1")
    await begun(journal)
    assert await parking.park(journal.redis, "a1", "a call", grant="2:n", parker="n") == "not-running"
    for _ in range(2):
        assert await parking.park(journal.redis, "a1", "a call", grant="1:n", parker="n") == "requested"
    assert await parking.resume(journal.redis, "a1", grant="2:n", parker="n") == "not-running"
    assert await wanted(journal) == "parked"
    for _ in range(2):
        assert await parking.resume(journal.redis, "a1", grant="1:n", parker="n") == "requested"
    assert await requests(journal) == ["Park", "Resu"]


async def test_a_caller_decides_over_the_node(journal: Journal) -> None:
    """What a caller has parked before, or meanwhile, stays parked; what it resumes, continues."""
    await opened(journal)
    await submit(journal, "a1")
    await begun(journal)
    node = {"grant": "1:n", "parker": "n"}
    assert await parking.park(journal.redis, "a1", "a quota") == "requested"
    assert await parking.park(journal.redis, "a1", "a call", **node) == "parked-by-another"
    assert await parking.resume(journal.redis, "a1", **node) == "parked-by-another"
    assert await parking.resume(journal.redis, "a1") == "requested"

    assert await parking.park(journal.redis, "a1", "a call", **node) == "requested"
    assert await parking.park(journal.redis, "a1", "a quota") == "requested"
    assert await parking.resume(journal.redis, "a1", **node) == "parked-by-another"
    assert await wanted(journal) == "parked"
    record = await read_action(journal.redis, "a1")
    assert record is not None
    assert record.parked_because == "a quota"
    assert await parking.resume(journal.redis, "a1") == "requested"

    assert await parking.park(journal.redis, "a1", "a call", **node) == "requested"
    assert await parking.resume(journal.redis, "a1") == "requested"
    assert await parking.resume(journal.redis, "a1", **node) == "requested"
    assert await requests(journal) == ["Park", "Resu"] * 3


async def test_an_answer_removes_the_requests(journal: Journal) -> None:
    await opened(journal)
    _, entry = await submit(journal, "a1")
    await begun(journal)
    await parking.park(journal.redis, "a1", "one")
    await parking.resume(journal.redis, "a1")
    await journal.finish("a1", entry, trajectory="t1")
    assert not {"grant", "parking", "resume", "parker"} & set(await journal.fields("action:a1"))
