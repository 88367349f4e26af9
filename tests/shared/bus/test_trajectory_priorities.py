"""Priorities of trajectories in Valkey: record and journal change together, and later submissions carry them."""

from __future__ import annotations

from typing import Any

import pytest

from shared.bus import functions, trajectories
from shared.bus.connection import command
from shared.bus.tail import Entry, Tail
from shared.bus.trajectories import PriorityReceipt
from shared.messages.actions import ACTIONS, ActionSubmitted, PriorityRequested, UnreadableEntry
from tests.shared.bus.journal import Journal, submission
from tests.shared.bus.test_trajectory_functions import opened, submit

SET = PriorityReceipt("set", "")


async def entries(journal: Journal) -> list[Entry[Any]]:
    return await Tail(journal.redis, {ACTIONS: "0"}).read(block=False)


async def changes(journal: Journal) -> list[float]:
    return [one.priority for one in await journal.messages(ACTIONS) if isinstance(one, PriorityRequested)]


async def test_a_change_is_in_the_record_and_in_the_journal(journal: Journal) -> None:
    await opened(journal)

    assert await trajectories.set_priority(journal.redis, "t1", 2.5) == SET

    assert await changes(journal) == [2.5]
    assert await trajectories.read_priorities(journal.redis, ["t0", "t1"]) == {"t1": 2.5}
    assert [one.trajectory for one in await journal.messages(ACTIONS) if isinstance(one, PriorityRequested)] == ["t1"]


async def test_a_repeat_writes_nothing(journal: Journal) -> None:
    await opened(journal)
    for priority in (0.0, -3.0, -3, -3.0, 0.0):
        assert await trajectories.set_priority(journal.redis, "t1", priority) == SET
    assert await changes(journal) == [-3.0, 0.0]
    assert await trajectories.read_priorities(journal.redis, ["t1"]) == {"t1": 0.0}, (
        "a new leader reads that it is back"
    )


@pytest.mark.parametrize("priority", [1e9, -1e9, 1e-9, 0.1 + 0.2, -1234567.125])
async def test_every_number_arrives_as_it_was_sent(journal: Journal, priority: float) -> None:
    await opened(journal)
    await trajectories.set_priority(journal.redis, "t1", priority)
    await submit(journal, "a1")

    assert await changes(journal) == [priority]
    assert [one.priority for one in await entries(journal)][1:] == [priority]


async def test_entries_of_actions_carry_the_priority_at_their_submission(journal: Journal) -> None:
    await opened(journal)
    await opened(journal, "t2")
    await submit(journal, "a1")
    await trajectories.set_priority(journal.redis, "t1", 7.0)
    await submit(journal, "a2")
    await submit(journal, "b1", "t2")
    await functions.journal_actions(journal.redis, [submission("plain")], max_journal=1000)

    read = [
        (one.message.action, one.priority) for one in await entries(journal) if isinstance(one.message, ActionSubmitted)
    ]

    assert [priority for _, priority in read] == [0.0, 7.0, 0.0, 0.0]


async def test_what_has_ended_or_never_was_is_not_changed(journal: Journal) -> None:
    await opened(journal)
    await trajectories.close_trajectory(journal.redis, "t1", "done")

    assert await trajectories.set_priority(journal.redis, "t1", 1.0) == PriorityReceipt("ended", "closed done")
    assert await trajectories.set_priority(journal.redis, "t9", 1.0) == PriorityReceipt("unknown", "")

    assert await changes(journal) == []
    assert await trajectories.read_priorities(journal.redis, ["t1", "t9"]) == {}
    assert await command(journal.redis, "EXISTS", "trajectory:t9") == 0


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -2e9])
async def test_a_number_that_has_no_place_in_the_order_is_unreadable(journal: Journal, number: float) -> None:
    """It would crash the leader, and after that each leader that reads the journal."""
    raw = ACTIONS.encode(PriorityRequested(trajectory="t1", priority=number))
    await command(journal.redis, "XADD", ACTIONS.name, "*", "m", raw)
    (found,) = await entries(journal)
    assert isinstance(found.message, UnreadableEntry)
    assert found.message.action == ""
