"""Opening, ending and cancelling, in every state a batch or an action can be in."""

from __future__ import annotations

import pytest

from shared.bus import functions
from shared.bus.connection import command
from shared.messages.actions import CancelRequested
from shared.messages.batches import BATCHES, BatchOpened
from tests.shared.bus.journal import KEEP_BATCH_S, Journal, opened


async def test_an_opened_batch_is_published(journal: Journal) -> None:
    assert await journal.open("b", size=3) == ("opened", "b")

    fields = await journal.batch()
    assert (fields["size"], fields["tenant"], fields["task"]) == ("3", "ada", "t")
    assert await journal.counts() == ("open", 0, 0)
    assert await journal.messages(BATCHES) == [opened("b", size=3)]
    assert await command(journal.redis, "ZRANGE", "batches:open", 0, -1) == [b"b"]


async def test_opening_again_with_the_same_key_finds_the_first_batch(journal: Journal) -> None:
    await journal.open("b", key="step-1")

    assert await journal.open("c", key="step-1") == ("repeated", "b")
    assert await journal.open("d", key="step-2") == ("opened", "d")
    assert [one.batch for one in await journal.messages(BATCHES) if isinstance(one, BatchOpened)] == ["b", "d"]
    assert await journal.fields("batch:c") == {}


@pytest.mark.parametrize(
    ("first", "again", "code"),
    [
        ({"size": 3}, {"size": 3}, "repeated"),
        ({"size": 3}, {"size": 5000}, "conflict"),
        ({"size": 3}, {}, "conflict"),
        ({"size": 3}, {"of_task": 3}, "repeated"),
        ({"of_task": 3}, {"size": 3}, "repeated"),
        ({"of_task": 3}, {"size": 4}, "conflict"),
        ({"of_task": 3}, {"of_task": 4}, "repeated"),  # the task has changed, the request has not
        ({}, {"size": 3}, "conflict"),
    ],
)
async def test_a_key_opens_a_batch_of_one_size(
    journal: Journal, first: dict[str, int], again: dict[str, int], code: str
) -> None:
    await journal.open("b", key="step-1", **first)
    await journal.entry("a1", "b")
    await journal.end("b", "sealed")

    assert await journal.open("c", key="step-1", **again) == (code, "b")
    assert await journal.fields("batch:c") == {}


async def test_a_call_that_is_sent_again_has_opened_its_batch(journal: Journal) -> None:
    for _ in range(2):
        assert await journal.open("b", key="step-1", size=3) == ("opened", "b")


async def test_a_key_outlives_what_it_has_opened(journal: Journal) -> None:
    await journal.open("b", key="step-1", size=3)
    await command(journal.redis, "DEL", "batch:b")

    assert await journal.open("c", key="step-1", size=5) == ("repeated", "b")


async def test_the_same_id_again_opens_nothing_and_resets_nothing(journal: Journal) -> None:
    await journal.open("b")
    await journal.entry("a1", "b")

    assert await journal.open("b") == ("opened", "b")
    assert await journal.counts() == ("open", 1, 0)


async def test_ending_an_unopened_batch_is_reported(journal: Journal) -> None:
    assert await journal.end("b", "sealed") is None


@pytest.mark.parametrize(
    ("state", "now"), [("sealed", "complete"), ("cancelled", "cancelled"), ("abandoned", "abandoned")]
)
async def test_a_batch_with_nothing_left_to_answer_is_over_at_once(journal: Journal, state: str, now: str) -> None:
    await journal.open(size=9)
    await journal.finish("a1", await journal.entry("a1", "b"), "b")

    assert await journal.end("b", state) == now
    assert [(one.state, one.size) for one in await journal.ended()] == [(now, 1)]
    assert await journal.ttl_s("batch:b") > KEEP_BATCH_S - 5


async def test_an_empty_batch_ends_with_its_opening_as_its_first_moment(journal: Journal) -> None:
    await journal.open()

    assert await journal.end("b", "sealed") == "complete"
    (ended,) = await journal.ended()
    assert (ended.size, ended.first_at) == (0, ended.opened_at)


@pytest.mark.parametrize("again", ["sealed", "cancelled", "abandoned"])
@pytest.mark.parametrize("state", ["cancelled", "abandoned"])
async def test_a_cancelled_or_abandoned_batch_stays_so(journal: Journal, state: str, again: str) -> None:
    await journal.open()
    await journal.entry("a1", "b")
    await journal.end("b", state)

    assert await journal.end("b", again) == state
    assert len(await journal.cancels()) == 1


@pytest.mark.parametrize("again", ["sealed", "cancelled", "abandoned"])
async def test_a_complete_batch_stays_complete(journal: Journal, again: str) -> None:
    await journal.open(size=1)
    await journal.finish("a1", await journal.entry("a1", "b"), "b")

    assert await journal.end("b", again) == "complete"
    assert len(await journal.ended()) == 1
    assert await journal.cancels() == []


async def test_sealing_twice_changes_nothing(journal: Journal) -> None:
    await journal.open()
    await journal.entry("a1", "b")

    assert [await journal.end("b", "sealed") for _ in range(2)] == ["sealed", "sealed"]
    assert await journal.cancels() == []


@pytest.mark.parametrize("state", ["cancelled", "abandoned"])
async def test_a_sealed_batch_can_still_be_given_up(journal: Journal, state: str) -> None:
    await journal.open()
    await journal.entry("a1", "b")
    await journal.end("b", "sealed")

    assert await journal.end("b", state) == state
    assert await journal.cancels() == [CancelRequested(batch="b", reason=state)]


async def test_cancelling_an_action_asks_the_leader(journal: Journal) -> None:
    await journal.entry("a1")

    assert await functions.cancel(journal.redis, "a1", "not needed") == "requested"
    assert await journal.cancels() == [CancelRequested(action="a1", reason="not needed")]


@pytest.mark.parametrize("batch", ["", "b"])
async def test_cancelling_what_is_answered_changes_nothing(journal: Journal, batch: str) -> None:
    await journal.open("b")
    await journal.finish("a1", await journal.entry("a1", batch), batch)

    assert await functions.cancel(journal.redis, "a1", "too late") == "answered"
    assert await journal.cancels() == []


async def test_cancelling_an_unknown_action_is_reported(journal: Journal) -> None:
    assert await functions.cancel(journal.redis, "a1", "asked") == "unknown"
    assert await journal.cancels() == []
