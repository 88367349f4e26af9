"""`submit`: accepted means it is in the journal; everything else returns its reason."""

from __future__ import annotations

from shared.bus import functions
from shared.bus.connection import command
from shared.bus.functions import Receipt
from shared.messages.actions import ACTIONS
from shared.messages.batches import BATCHES, BatchOpened, FirstArrival
from tests.shared.bus.journal import Journal, submission


async def test_an_accepted_request_is_in_the_journal_under_the_entry_of_its_receipt(journal: Journal) -> None:
    (receipt,) = await journal.submit("a1")

    ((entry, fields),) = await command(journal.redis, "XRANGE", ACTIONS.name, "-", "+")
    assert receipt == Receipt("accepted", entry.decode())
    assert fields[1] == submission("a1").payload
    assert await journal.fields("action:a1") == {"digest": b"body", "entry": entry, "batch": b""}


async def test_a_repeat_returns_the_first_entry_and_adds_none(journal: Journal) -> None:
    first, second = await journal.submit("a1", "a1")
    (third,) = await journal.submit("a1")

    assert [second, third] == [Receipt("repeated", first.entry)] * 2
    assert await journal.unanswered() == ["a1"]


async def test_a_repeat_after_the_answer_is_still_a_repeat(journal: Journal) -> None:
    entry = await journal.entry("a1")
    await journal.finish("a1", entry)

    assert await journal.submit("a1") == [Receipt("repeated", entry)]
    assert await journal.unanswered() == []


async def test_the_same_id_with_another_body_is_a_conflict_and_changes_nothing(journal: Journal) -> None:
    await journal.submit("a1", body=b"one")

    assert await journal.submit("a1", body=b"two") == [Receipt("conflict", "")]
    assert (await journal.fields("action:a1"))["digest"] == b"one"
    assert await journal.unanswered() == ["a1"]


async def test_a_batch_that_was_never_opened_takes_nothing(journal: Journal) -> None:
    assert await journal.submit("a1", batch="b") == [Receipt("no-batch", "")]
    assert await journal.unanswered() == []
    assert await journal.fields("action:a1") == {}
    assert await journal.fields("batch:b") == {}


async def test_a_closed_batch_is_reported_with_its_state(journal: Journal) -> None:
    await journal.open()
    await journal.submit("a1", batch="b")
    await journal.end("b", "sealed")

    assert await journal.submit("a2", batch="b") == [Receipt("batch-closed", "sealed")]
    assert await journal.counts() == ("sealed", 1, 0)


async def test_a_repeat_in_a_closed_batch_is_a_repeat(journal: Journal) -> None:
    await journal.open()
    entry = await journal.entry("a1", "b")
    await journal.end("b", "sealed")

    assert await journal.submit("a1", batch="b") == [Receipt("repeated", entry)]


async def test_requests_beyond_the_size_are_rejected_with_the_size(journal: Journal) -> None:
    await journal.open(size=2)

    codes = await journal.submit("a1", "a2", "a3", batch="b")

    assert [code for code, _ in codes] == ["accepted", "accepted", "batch-full"]
    assert codes[2].entry == "2"
    assert await journal.counts() == ("open", 2, 0)


async def test_a_full_journal_takes_no_more_until_something_is_answered(journal: Journal) -> None:
    receipts = await journal.submit("a1", "a2", "a3", room=2)
    assert [code for code, _ in receipts] == ["accepted", "accepted", "journal-full"]

    await journal.finish("a1", receipts[0].entry)

    assert [code for code, _ in await journal.submit("a3", room=2)] == ["accepted"]


async def test_a_repeat_needs_no_room_in_the_journal(journal: Journal) -> None:
    entry = await journal.entry("a1")

    assert await journal.submit("a1", room=1) == [Receipt("repeated", entry)]


async def test_the_index_counts_the_accepted_requests_of_each_batch(journal: Journal) -> None:
    await journal.open("b")
    await journal.open("c")
    await functions.journal_actions(
        journal.redis,
        [
            submission("a0", batch="b"),
            submission("a1"),
            submission("a2", batch="c"),
            submission("a0", batch="b"),
            submission("a3", batch="b"),
        ],
        max_journal=100,
    )

    assert await journal.indexes() == [0, -1, 0, 1]


async def test_the_first_arrival_of_a_batch_is_published_once(journal: Journal) -> None:
    await journal.open()
    entry = await journal.entry("a1", "b")
    await journal.entry("a2", "b")

    first, *others = [one for one in await journal.messages(BATCHES) if not isinstance(one, BatchOpened)]
    assert first == FirstArrival(batch="b", arrived_at=int(entry.partition("-")[0]) / 1000)
    assert others == []
    assert (await journal.batch())["first_ms"] == entry.partition("-")[0]


async def test_loading_the_functions_again_keeps_them_and_the_data(journal: Journal) -> None:
    await journal.submit("a1")

    await functions.load(journal.redis)
    await functions.load(journal.redis)

    assert [code for code, _ in await journal.submit("a1", "a2")] == ["repeated", "accepted"]
