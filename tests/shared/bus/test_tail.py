"""A tail returns every entry after its start, once, in order, across restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path

from redis.asyncio import Redis

from shared.bus.connection import command, connect
from shared.bus.tail import Entry, Tail
from shared.messages.actions import ACTIONS, ActionSubmitted
from shared.messages.nodes import NODES, Bye, Heartbeat, Hello
from shared.messages.outcomes import ANSWERED, Answered
from tests.shared.bus.flaky import Flaky
from tests.shared.bus.journal import Journal
from treadle.testing.servers import running_valkey

AnsweredEntry = Entry[Answered]


def answered(name: str) -> Answered:
    return Answered(actions=[name], batches=[])


async def publish(redis: Redis, *names: str) -> list[str]:
    ids = [await command(redis, "XADD", ANSWERED.name, "*", "m", ANSWERED.encode(answered(name))) for name in names]
    return [entry.decode() for entry in ids]


def names(entries: list[AnsweredEntry]) -> list[str]:
    return [entry.message.actions[0] for entry in entries]


async def test_it_reads_everything_after_its_start(valkey: Redis, reader: Redis) -> None:
    ids = await publish(valkey, "a", "b", "c")

    entries = await Tail(reader, {ANSWERED: ids[0]}).read()

    assert [(entry.id, entry.message) for entry in entries] == [(ids[1], answered("b")), (ids[2], answered("c"))]


async def test_a_tail_continues_where_it_stopped(valkey: Redis, reader: Redis) -> None:
    ids = await publish(valkey, "a", "b", "c")
    tail = Tail(reader, {ANSWERED: "0"}, count=2)

    assert names(await tail.read()) == ["a", "b"]
    assert tail.last(ANSWERED) == ids[1]
    assert not tail.is_drained(ANSWERED)
    assert names(await tail.read()) == ["c"]
    assert tail.is_drained(ANSWERED)
    assert await tail.read(block=False) == []
    assert tail.is_drained(ANSWERED)


async def test_ignored_entries_are_left_out_and_passed(valkey: Redis, reader: Redis) -> None:
    ids = await publish(valkey, "a", "b", "c")
    tail = Tail(reader, {ANSWERED: "0"})
    tail.ignores = lambda entry: entry.message == answered("b") or entry.id == ids[2]

    assert names(await tail.read()) == ["a"]
    assert tail.last(ANSWERED) == ids[2]


async def test_it_wakes_up_for_what_comes_while_it_waits(valkey: Redis, reader: Redis) -> None:
    tail = Tail(reader, {ANSWERED: "0"}, block_s=30.0)
    reading = asyncio.create_task(tail.read())
    await asyncio.sleep(0.02)
    await publish(valkey, "a")

    async with asyncio.timeout(20):
        assert names(await reading) == ["a"]


async def test_several_streams_come_in_the_order_of_the_start(valkey: Redis, reader: Redis) -> None:
    bye = Bye(node="n", incarnation="1")
    await command(valkey, "XADD", NODES.name, "*", "m", NODES.encode(bye))
    await publish(valkey, "a")

    entries = await Tail(reader, {ANSWERED: "0", NODES: "0"}).read()

    assert [(entry.topic, entry.message) for entry in entries] == [(ANSWERED.name, answered("a")), (NODES.name, bye)]


async def test_an_entry_has_its_time_and_index(journal: Journal, reader: Redis) -> None:
    await journal.open()
    written = await journal.entry("a1", "b")

    (entry,) = await Tail(reader, {ACTIONS: "0"}).read()

    assert isinstance(entry.message, ActionSubmitted)
    assert (entry.id, entry.index, entry.at) == (written, 0, int(written.partition("-")[0]) / 1000)


async def test_undecodable_entries_are_skipped_once(valkey: Redis, reader: Redis) -> None:
    await publish(valkey, "a")
    for fields in (
        ("m", b"\xc1"),
        ("m", b"\x81\xa4kind\xa5\xff\xff\xff\xff\xff"),
        ("m", b"\x81\xa4deep" + b"\x91" * 5000 + b"\xc0"),
        ("m", NODES.encode(Heartbeat(node="n", incarnation="1", owned={}, used={}))),
        ("x", "y"),
    ):
        await command(valkey, "XADD", ANSWERED.name, "*", *fields)
    ids = await publish(valkey, "b")
    tail = Tail(reader, {ANSWERED: "0"})

    assert names(await tail.read()) == ["a", "b"]
    assert tail.last(ANSWERED) == ids[0]


async def test_a_read_of_nothing_but_rubbish_still_moves_on(valkey: Redis, reader: Redis) -> None:
    rubbish = await command(valkey, "XADD", ANSWERED.name, "*", "m", b"\xc1")
    tail = Tail(reader, {ANSWERED: "0"})

    assert await tail.read() == []
    assert tail.last(ANSWERED) == rubbish.decode()


async def test_batches_hand_out_everything_once_across_a_restart_of_the_server(stack_home: Path) -> None:
    seen: list[str] = []
    hello = Hello(node="n", incarnation="1", node_class="default", capacity={}, kinds=[])

    async def follow(tail: Tail) -> None:
        async for entries in tail.batches():
            seen.extend(entry.message.incarnation for entry in entries)
            tail.stopping = "last" in seen

    async def write(url: str, *incarnations: str) -> None:
        async with connect(url, name="writer") as writer:
            for one in incarnations:
                message = Hello(node=hello.node, incarnation=one, node_class="default", capacity={}, kinds=[])
                await command(writer, "XADD", NODES.name, "*", "m", NODES.encode(message))

    with running_valkey(stack_home) as url:
        away = connect(url, name="reader")
        reader = await away.__aenter__()
        following = asyncio.create_task(follow(Tail(reader, {NODES: "0"}, block_s=0.05)))
        await write(url, "1", "2")
    async with asyncio.timeout(20):
        with running_valkey(stack_home):
            await write(url, "3", "last")
            await following
            await away.__aexit__(None, None, None)

    assert seen == ["1", "2", "3", "last"]


async def test_batches_continue_after_failures(valkey: Redis) -> None:
    await publish(valkey, "a")
    flaky = Flaky(valkey)
    flaky.failures = ["before", "after", "before"]

    tail = Tail(flaky, {ANSWERED: "0"}, block_s=0.01)
    away_s: list[float] = []
    tail.returned = away_s.append
    reading = asyncio.ensure_future(anext(tail.batches()))
    await asyncio.sleep(0.02)
    assert tail.away
    assert names(await reading) == ["a"], "entries lost with their reply are read again"
    assert not tail.away
    assert 0.3 < away_s[0] < 20.0, "it has tried again after 0.05, 0.1 and 0.2 s"


async def test_batches_are_empty_without_entries_and_end_on_stop(valkey: Redis) -> None:
    tail = Tail(valkey, {ANSWERED: "0"}, block_s=0.01)
    turns = []
    async with asyncio.timeout(20):
        async for entries in tail.batches():
            turns.append(entries)
            tail.stopping = len(turns) == 3

    assert turns == [[], [], []]
