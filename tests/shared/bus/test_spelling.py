"""Step 4 of the schema: hashes and leases that schema 3 stored are read by their spelt-out names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from shared.bus import archive, functions, spelling
from shared.bus.archive import BatchKey
from shared.bus.connection import command, connect
from shared.bus.functions import Answering
from shared.bus.keys import Role
from shared.bus.lease import Lease
from shared.bus.schema import VERSION, WrongSchema, check_schema, plan_upgrade, read_version
from shared.bus.step4 import apply_step_4
from shared.bus.tail import Tail
from shared.messages.actions import ACTIONS, ActionSubmitted, unreadable_entry
from tests.shared.bus.journal import Journal
from tests.shared.bus.schema3 import COMMANDS
from tests.shared.bus.test_renames import upgrade


@pytest.fixture
async def older(redis_url: str) -> AsyncIterator[Redis]:
    async with connect(redis_url, name="test") as redis:
        for words in COMMANDS:
            await command(redis, *words)
        yield redis


async def fields(redis: Redis, key: str) -> dict[bytes, bytes]:
    flat = await command(redis, "HGETALL", key)
    return dict(zip(flat[::2], flat[1::2], strict=True))


async def dump(redis: Redis) -> dict[bytes, Any]:
    """Every key with its serialized value and the whole minutes of its lifetime."""
    found = {}
    for key in sorted(await command(redis, "KEYS", "*")):
        left_s = await command(redis, "TTL", key)
        kind = await command(redis, "TYPE", key)
        value = await (fields(redis, key) if kind == b"hash" else command(redis, "DUMP", key))
        found[key] = (value, left_s // 60)
    return found


async def test_this_release_does_not_start_on_older_data(older: Redis) -> None:
    with pytest.raises(WrongSchema, match="schema 3"):
        await check_schema(older)


async def test_fields_and_keys_are_spelt_out_and_nothing_else_changes(older: Redis) -> None:
    before = await dump(older)
    await upgrade(older)
    after = await dump(older)
    digest = b"0123456789abcdef"
    expected = {
        b"action:queued": {b"digest": digest, b"entry": b"1700000000000-0", b"batch": b""},
        b"action:granted": {
            b"digest": digest, b"entry": b"1700000000000-1", b"batch": b"", b"stage": b"1", b"carried": b"[]",
            b"grant": b"1:n",
        },
        b"action:answered": {
            b"digest": digest, b"entry": b"1700000000000-2", b"batch": b"", b"answer": b'{"id":"answered"}'
        },
        b"action:archived": {b"digest": digest, b"entry": b"1700000000000-3", b"batch": b"", b"archived": b"1"},
        b"action:waits": {b"digest": digest, b"entry": b"1700000000000-4", b"batch": b"b1"},
        b"action:scored": {
            b"digest": digest, b"entry": b"1700000000000-5", b"batch": b"b1", b"result": b"1700000000001-1"
        },
        b"action:acts": {
            b"digest": digest, b"entry": b"1700000000000-7", b"batch": b"", b"trajectory": b"t1", b"grant": b"1:n"
        },
        b"action:acted": {
            b"digest": digest, b"entry": b"1700000000000-8", b"batch": b"", b"trajectory": b"t1",
            b"answer": b'{"id":"acted"}',
        },
    }  # fmt: skip
    assert {key: value for key, (value, _) in after.items() if key.startswith(b"action:")} == expected
    assert await command(older, "HMGET", "trajectory:t1", "node", "n", "state") == [b"n", None, b"open"]
    assert await command(older, "GET", "epoch:dispatcher") == b"1"
    untouched = before.keys() - expected.keys() - {b"trajectory:t1", b"leader:epoch", b"schema"}
    untouched -= {b"leader", b"planner:lease"}  # expired
    assert len(untouched) == 23
    assert {key: after[key] for key in untouched} == {key: before[key] for key in untouched}
    assert {after[key][1] - before[key][1] for key in (*expected, b"trajectory:t1")} <= {0, -1}, "lifetimes stay"


async def test_an_interrupted_upgrade_is_repeated_without_a_difference(
    older: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spelling, "READ_AT_ONCE", 1)
    await apply_step_4(older)
    once = await dump(older)
    for key, names in (
        ("action:queued", ("digest", "d")),
        ("action:acts", ("grant", "g")),
    ):
        value = await command(older, "HGET", key, names[0])
        await command(older, "HDEL", key, names[0])
        await command(older, "HSET", key, names[1], value)
    await apply_step_4(older)
    await apply_step_4(older)
    again = await dump(older)
    assert {key: value for key, (value, _) in again.items()} == {key: value for key, (value, _) in once.items()}


async def test_more_keys_than_a_chunk_are_all_renamed(older: Redis) -> None:
    for number in range(3 * spelling.READ_AT_ONCE):
        await command(older, "HSET", f"action:{number}", "d", "x", "e", "1-1", "b", "")
    await upgrade(older)
    for number in range(3 * spelling.READ_AT_ONCE):
        assert (await fields(older, f"action:{number}")).keys() == {b"digest", b"entry", b"batch"}


async def test_a_leader_of_this_release_continues_with_the_data(older: Redis) -> None:
    await upgrade(older)
    assert await read_version(older) == VERSION
    await functions.load(older)
    lease = Lease(older, Role.DISPATCHER, 30.0)
    assert await lease.hold() == 2, "the epoch continues, so the former leader is fenced"
    journal = Journal(older, 2)

    entries = await Tail(older, {ACTIONS: "0"}).read(block=False)
    assert [(entry.message.action, entry.index) for entry in entries if isinstance(entry.message, ActionSubmitted)] == [
        ("queued", -1), ("granted", -1), ("waits", 0), ("acts", -1)
    ]  # fmt: skip
    assert [await functions.cancel(older, action, "") for action in ("queued", "answered", "scored", "archived")] == [
        "requested", "answered", "answered", "answered"
    ]  # fmt: skip
    assert await journal.finish("waits", "1700000000000-4", "b1")
    assert await journal.finish("acts", "1700000000000-7", trajectory="t1")
    assert await journal.end("b1", "sealed") == "complete"

    due = await archive.due_actions(older, 2**53, 10, 1 << 20)
    assert [(one.action, one.size, one.tenant, one.answer) for one in due] == [
        ("answered", "267", "ada", b'{"id":"answered"}'), ("acted", "264", "ada", b'{"id":"acted"}')
    ]  # fmt: skip
    assert await archive.archive_actions(older, due) == 2
    (row,) = (await archive.due_results(older, BatchKey("ada", "b1"), None, 1, 1 << 20))[:1]
    assert await archive.archive_results(older, BatchKey("ada", "b1"), [("scored", len(row.answer))], row.cursor) == 1


async def test_a_damaged_entry_from_before_the_step_is_known_by_its_envelope(older: Redis) -> None:
    del older
    fields = {b"m": b"\xff", b"i": b"3", b"a": b"action:a1", b"b": b"b1"}
    found = unreadable_entry(fields, "damaged")
    assert (found.action, found.batch) == ("a1", "b1")


@pytest.mark.parametrize(
    ("lease", "service"),
    [("leader", "proxy"), ("leader:dispatcher", "proxy"), ("planner:lease", "planner"), ("leader:planner", "planner")],
)
async def test_a_service_of_either_release_that_runs_prevents_the_upgrade(
    older: Redis, lease: str, service: str
) -> None:
    await command(older, "SET", lease, "running")
    (need,) = (await plan_upgrade(older)).needs
    assert f"no running {service}" in need
    await command(older, "DEL", lease)
    assert (await plan_upgrade(older)).needs == []


async def test_an_answer_in_an_older_trajectory_is_counted_for_its_batch(older: Redis) -> None:
    await upgrade(older)
    await functions.load(older)
    epoch = await Lease(older, Role.DISPATCHER, 30.0).hold()
    answering = Answering("acts", "1700000000000-7", "", b"{}", 60, "ada", "refused it", trajectory="t1")
    await Journal(older, epoch).finish_all(answering)
    assert (await fields(older, "environments:b1"))[b"count:refused"] == b"2"
