"""Newest hello of each node: replaced by later incarnations only, removed by a Bye or after a long silence."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from shared.bus import keys, nodes
from shared.bus.connection import command
from shared.bus.functions import Deposed
from shared.bus.nodes import expire_hellos, next_generation, publish_bye, publish_hello, read_hellos
from shared.messages.base import Message
from shared.messages.nodes import NODES, Bye, Hello
from tests.shared.bus.journal import Journal


def hello(node: str = "n", incarnation: str = "1", *, generation: int = 0, cores: int = 4) -> Hello:
    return Hello(
        node=node, incarnation=incarnation, node_class="default", capacity={"cores": cores}, kinds=[],
        generation=generation,
    )  # fmt: skip


async def stored(redis: Redis) -> list[Hello]:
    return [one.hello for one in await read_hellos(redis)]


async def published(redis: Redis) -> list[Message]:
    return [NODES.decode(fields[1]) for _, fields in await command(redis, "XRANGE", NODES.name, "-", "+")]


async def test_a_hello_is_published_and_stored_with_its_time(valkey: Redis) -> None:
    assert await publish_hello(valkey, hello())

    (one,) = await read_hellos(valkey)
    ((entry, _),) = await command(valkey, "XRANGE", NODES.name, "-", "+")
    assert (one.hello, await published(valkey)) == (hello(), [hello()])
    assert one.entry == f"{entry.partition(b'-')[0].decode()}-0"


async def test_the_newest_hello_of_each_node_is_stored(valkey: Redis) -> None:
    for one in (hello("a"), hello("b"), hello("a", cores=8), hello("b", "2", generation=1)):
        assert await publish_hello(valkey, one)

    assert await stored(valkey) == [hello("a", cores=8), hello("b", "2", generation=1)]


async def test_an_earlier_incarnation_neither_publishes_nor_replaces_a_hello(valkey: Redis) -> None:
    await publish_hello(valkey, hello(incarnation="2", generation=2))

    assert not await publish_hello(valkey, hello(incarnation="1", generation=1))
    assert await stored(valkey) == await published(valkey) == [hello(incarnation="2", generation=2)]


async def test_each_start_has_a_higher_generation(valkey: Redis) -> None:
    first, second = await next_generation(valkey, "n"), await next_generation(valkey, "m")
    assert 0 < first < second


async def test_a_start_is_later_than_a_stored_hello_whose_counter_was_lost(valkey: Redis) -> None:
    await publish_hello(valkey, hello(generation=7))
    assert [await next_generation(valkey, name) for name in ("n", "m")] == [8, 9]


async def test_a_bye_removes_the_hello_of_its_incarnation_only(valkey: Redis) -> None:
    await publish_hello(valkey, hello(incarnation="2"))
    await publish_bye(valkey, Bye(node="n", incarnation="1"))
    assert await stored(valkey) == [hello(incarnation="2")]

    await publish_bye(valkey, Bye(node="n", incarnation="2"))
    assert await stored(valkey) == []
    assert (await published(valkey))[1:] == [Bye(node="n", incarnation="1"), Bye(node="n", incarnation="2")]


async def test_long_silent_nodes_leave(journal: Journal) -> None:
    await publish_hello(journal.redis, hello("silent"))
    await publish_hello(journal.redis, hello("here"))
    await command(journal.redis, "ZINCRBY", keys.HELLOS_AT, -3_700_000, "silent")

    assert await expire_hellos(journal.redis, journal.epoch, ()) == ["silent"]
    assert await stored(journal.redis) == [hello("here")]
    assert await command(journal.redis, "HKEYS", keys.HELLOS) == [b"here"]


async def test_a_present_node_keeps_its_hello_for_the_next_leader(journal: Journal) -> None:
    """Its heartbeats have arrived, and its next hello has not."""
    for name in ("silent", "present"):
        await publish_hello(journal.redis, hello(name))
        await command(journal.redis, "ZINCRBY", keys.HELLOS_AT, -3_700_000, name)

    assert await expire_hellos(journal.redis, journal.epoch, {"present"}) == ["silent"]
    assert await stored(journal.redis) == [hello("present")]


async def test_a_former_leader_removes_no_hello(journal: Journal) -> None:
    await publish_hello(journal.redis, hello())
    with pytest.raises(Deposed):
        await expire_hellos(journal.redis, journal.epoch - 1, (), silent_s=-1.0)
    assert await stored(journal.redis) == [hello()]


async def test_beyond_the_bound_the_longest_silent_node_leaves(valkey: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "MOST_NODES", 2)
    for name in ("a", "b"):
        await publish_hello(valkey, hello(name))
    await command(valkey, "ZINCRBY", keys.HELLOS_AT, -1000, "b")
    await publish_hello(valkey, hello("c"))

    assert await stored(valkey) == [hello("a"), hello("c")]
    assert sorted(await command(valkey, "HKEYS", keys.HELLOS)) == [b"a", b"c"]


async def test_a_hello_that_cannot_be_read_hides_no_other(valkey: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "READ_AT_ONCE", 2)
    names = ["a", "b", "c", "d", "e"]
    for name in names:
        await publish_hello(valkey, hello(name))
    for damaged in (b"\xc1", b"", b"\x01"):
        await command(valkey, "HSET", keys.HELLOS, "b", damaged)

        assert [one.node for one in await stored(valkey)] == ["a", "c", "d", "e"]
        await publish_bye(valkey, Bye(node="b", incarnation="1"))
        assert await next_generation(valkey, "b") > 0
    assert await publish_hello(valkey, hello("b"))
    assert len(await stored(valkey)) == len(names)
