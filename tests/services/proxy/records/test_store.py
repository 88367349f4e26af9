"""Reads of actions, batches and results that the server-side functions wrote."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from services.proxy.records.store import Store, Stored
from shared.bus import functions
from shared.bus.connection import command
from shared.bus.functions import Granting
from shared.runtime.errors import BadRequest
from tests.services.proxy.stores import store_over
from tests.shared.bus.flaky import Flaky
from tests.shared.bus.journal import Journal


@pytest.fixture
def store(valkey: Redis) -> Store:
    return store_over(valkey)


async def answered(journal: Journal, action: str, batch: str = "") -> None:
    await journal.finish(action, await journal.entry(action, batch), batch, f"answer of {action}".encode())


async def test_an_unsubmitted_action_is_unknown(store: Store) -> None:
    assert await store.action("a1") is None


async def test_an_action_is_queued_then_granted_then_finished(store: Store, journal: Journal) -> None:
    entry = await journal.entry("a1")
    assert await store.action("a1") == Stored("queued", "", None, entry)

    await functions.send_grants(journal.redis, journal.epoch, [Granting("grants.n.1", b"m", "a1", "1:n")])
    assert await store.action("a1") == Stored("granted", "", None, entry)

    await journal.finish("a1", entry, answer=b"answer")
    assert await store.action("a1") == Stored("finished", "", b"answer")


async def test_the_answer_of_a_batchs_action_is_found_in_its_results(store: Store, journal: Journal) -> None:
    await journal.open()
    await answered(journal, "a1", "b")
    await answered(journal, "a2", "b")

    assert await store.action("a2") == Stored("finished", "b", b"answer of a2")


async def test_an_answer_with_expired_results_is_unknown(store: Store, journal: Journal) -> None:
    await journal.open()
    await answered(journal, "a1", "b")
    await command(journal.redis, "DEL", "results:b")

    assert await store.action("a1") is None
    assert await store.answers(["a1"]) == {}


async def test_answers_are_those_there_are(store: Store, journal: Journal) -> None:
    await journal.open()
    await answered(journal, "a1", "b")
    await answered(journal, "a2")
    await journal.entry("a3", "b")

    assert await store.answers(["a3", "a2", "unknown", "a1"]) == {"a1": b"answer of a1", "a2": b"answer of a2"}


async def test_a_batch_is_read_with_its_counts_and_times(store: Store, journal: Journal) -> None:
    await journal.open(size=2)
    before = await store.batch("b")
    await answered(journal, "a1", "b")
    await answered(journal, "a2", "b")

    after = await store.batch("b")

    assert before is not None
    assert after is not None
    assert (before.state, before.size, before.submitted, before.answered) == ("open", 2, 0, 0)
    assert (before.first_at, before.ended_at) == (None, None)
    assert (after.state, after.tenant, after.task, after.workflow) == ("complete", "ada", "t", b"{}")
    assert (after.size, after.submitted, after.answered) == (2, 2, 2)
    assert after.first_at is not None
    assert after.ended_at is not None
    assert 0 < after.opened_at <= after.first_at <= after.active_at <= after.ended_at


async def test_a_batch_of_unknown_size_has_none(store: Store, journal: Journal) -> None:
    await journal.open(size=0)

    found = await store.batch("b")

    assert found is not None
    assert found.size is None


@pytest.mark.parametrize("size", [0, 6])
@pytest.mark.parametrize("state", ["sealed", "cancelled", "abandoned"])
async def test_a_batch_that_takes_no_more_has_the_size_it_came_to(
    store: Store, journal: Journal, size: int, state: str
) -> None:
    await journal.open(size=size)
    entry = await journal.entry("a1", "b")
    await journal.end("b", state)
    sealed = await store.batch("b")
    await journal.finish("a1", entry, "b")
    ended = await store.batch("b")

    assert sealed is not None
    assert ended is not None
    assert (sealed.size, sealed.submitted, sealed.answered) == (1, 1, 0)
    assert (ended.size, ended.answered) == (1, 1)


async def test_there_is_no_batch_that_was_not_opened(store: Store) -> None:
    assert await store.batch("b") is None


async def test_open_batches_come_oldest_first_and_ended_ones_not(store: Store, journal: Journal) -> None:
    for name in ("b2", "b1", "b3"):
        await journal.open(name)
        await command(journal.redis, "ZINCRBY", "batches:open", "b2 b1 b3".index(name), name)
    await journal.end("b1", "cancelled")

    assert [batch.id for batch in await store.open_batches()] == ["b2", "b3"]


async def test_results_are_read_from_one_cursor_to_another(store: Store, journal: Journal) -> None:
    await journal.open()
    for action in ("a1", "a2", "a3"):
        await answered(journal, action, "b")
    (first, one), *_ = rows = await store.results.page("b", "", 10)

    assert one == b"answer of a1"
    assert await store.results.page("b", first, 10) == rows[1:]
    assert await store.results.page("b", "", 2) == rows[:2]


async def test_a_cursor_that_is_none_is_the_callers_mistake(store: Store) -> None:
    with pytest.raises(BadRequest, match="cursor from an earlier line, not 'yesterday'"):
        await store.results.page("b", "yesterday", 1)


async def test_reads_are_repeated_while_valkey_is_away(valkey: Redis, journal: Journal) -> None:
    entry = await journal.entry("a1")
    flaky = Flaky(valkey)
    flaky.failures = ["before", "after"]

    assert await store_over(flaky).action("a1") == Stored("queued", "", None, entry)
