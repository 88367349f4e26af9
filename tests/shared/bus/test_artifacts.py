"""Artifacts live as long as their unanswered action, and only the present stage writes its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from shared.bus import functions
from shared.bus.artifacts import read_artifact, store_artifact
from shared.bus.connection import command, connect
from shared.bus.functions import Advancing, Granting
from shared.runtime.errors import Overloaded
from tests.shared.bus.journal import Journal

CONTENT = bytes(range(256)) * 64


async def advance(journal: Journal, action: str, stage: int) -> None:
    await functions.advance_stages(journal.redis, journal.epoch, [Advancing(action, stage, b"[]")])


async def granted(journal: Journal, action: str) -> None:
    await functions.send_grants(journal.redis, journal.epoch, [Granting("grants.n.i", b"g", action, "1:n")])


async def test_a_later_stage_reads_what_an_earlier_one_has_stored(journal: Journal) -> None:
    await journal.entry("a1")
    assert await read_artifact(journal.redis, "a1", 1) is None
    assert await store_artifact(journal.redis, "a1", 0, CONTENT)
    await advance(journal, "a1", 1)
    assert await read_artifact(journal.redis, "a1", 1) == CONTENT
    assert await read_artifact(journal.redis, "a1", 0) is None, "no stage is before it"


async def test_the_nearest_earlier_stage_counts(journal: Journal) -> None:
    await journal.entry("a1")
    for stage in range(3):
        if stage != 1:
            assert await store_artifact(journal.redis, "a1", stage, b"%d" % stage)
        await advance(journal, "a1", stage + 1)
    assert await read_artifact(journal.redis, "a1", 2) == b"0", "stage 1 has made none, and 2 is the reader's own"
    assert await read_artifact(journal.redis, "a1", 3) == b"2"


async def test_another_attempt_of_a_stage_replaces_its_artifact(journal: Journal) -> None:
    await journal.entry("a1")
    for content in (b"first", b"second"):
        assert await store_artifact(journal.redis, "a1", 0, content)
    assert await read_artifact(journal.redis, "a1", 1) == b"second"


async def test_a_late_attempt_of_an_earlier_stage_changes_nothing(journal: Journal) -> None:
    await journal.entry("a1")
    await store_artifact(journal.redis, "a1", 0, b"counted")
    await advance(journal, "a1", 1)
    assert not await store_artifact(journal.redis, "a1", 0, b"late")
    assert await read_artifact(journal.redis, "a1", 1) == b"counted"


@pytest.mark.parametrize("batch", ["", "b"])
@pytest.mark.parametrize("stages", [1, 16])
async def test_the_answer_deletes_it(journal: Journal, batch: str, stages: int) -> None:
    if batch:
        await journal.open(batch, size=1)
    entry = await journal.entry("a1", batch)
    for stage in range(stages):
        await granted(journal, "a1")
        await store_artifact(journal.redis, "a1", stage, CONTENT)
        if stage < stages - 1:
            await advance(journal, "a1", stage + 1)
    await journal.finish("a1", entry, batch)
    assert await read_artifact(journal.redis, "a1", 1) is None
    assert not await store_artifact(journal.redis, "a1", 0, CONTENT), "it is answered"
    assert not [name for name in await journal.fields("action:a1") if name.startswith("artifact")]


async def test_an_unknown_action_has_none(valkey: Redis) -> None:
    assert not await store_artifact(valkey, "nobody", 0, CONTENT)
    assert await command(valkey, "DBSIZE") == 0


@pytest.fixture
async def full(private_url: str) -> AsyncIterator[Journal]:
    async with connect(private_url, name="test") as redis:
        await functions.load(redis)
        journal = await Journal.led(redis)
        await journal.submit("a1")
        await command(redis, "CONFIG", "SET", "maxmemory", "1")
        yield journal


async def test_without_memory_nothing_is_written(full: Journal) -> None:
    with pytest.raises(Overloaded):
        await store_artifact(full.redis, "a1", 0, CONTENT)
    assert await read_artifact(full.redis, "a1", 1) is None
