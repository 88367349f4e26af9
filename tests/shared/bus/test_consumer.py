"""Member of a consumer group: delivery at least once, acknowledged after the handler, dead letters with a reason."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from shared.bus.connection import command
from shared.bus.consumer import Consumer
from shared.messages.leases import LeasesGranted
from shared.messages.outcomes import ANSWERED, Answered
from tests.shared.bus.flaky import Flaky
from tests.shared.bus.soon import soon

GROUP = "g"
DEAD = f"{ANSWERED.name}.dead"

Message = Answered | LeasesGranted
Handle = Callable[[Message], Awaitable[None]]


async def publish(redis: Redis, *names: str) -> None:
    for name in names:
        message = ANSWERED.encode(Answered(actions=[name], batches=[]))
        await command(redis, "XADD", ANSWERED.name, "*", "m", message)


def member(redis: Redis, name: str = "m1", *, stale_s: float = 60.0, max_attempts: int = 3) -> Consumer[Message]:
    return Consumer(redis, ANSWERED, group=GROUP, member=name, stale_s=stale_s, block_s=0.01, max_attempts=max_attempts)


class Handler:
    """Records its messages, fails as scheduled, and stops its consumer after so many calls."""

    def __init__(
        self, consumer: Consumer[Message], calls: int, fails: Callable[[str], Exception | None] = lambda _: None
    ):
        self.seen: list[str] = []
        self._consumer = consumer
        self._calls = calls
        self._fails = fails

    async def __call__(self, message: Message) -> None:
        assert isinstance(message, Answered)
        self.seen.append(message.actions[0])
        self._consumer.stopping = len(self.seen) >= self._calls
        error = self._fails(message.actions[0])
        if error is not None:
            raise error


async def ran(consumer: Consumer[Message], handler: Handler) -> list[str]:
    async with asyncio.timeout(20):
        await consumer.run(handler)
    return handler.seen


async def pending(redis: Redis) -> int:
    return int((await command(redis, "XPENDING", ANSWERED.name, GROUP))[0])


async def dead(redis: Redis) -> list[dict[str, Any]]:
    rows = await command(redis, "XRANGE", DEAD, "-", "+")
    return [{name.decode(): value for name, value in zip(fields[::2], fields[1::2], strict=True)} for _, fields in rows]


async def test_everything_is_delivered_once_and_acknowledged(valkey: Redis) -> None:
    await publish(valkey, "a", "b", "c")
    consumer = member(valkey)

    assert await ran(consumer, Handler(consumer, 3)) == ["a", "b", "c"]
    assert await pending(valkey) == 0


async def test_two_members_share_the_deliveries(valkey: Redis, reader: Redis) -> None:
    await publish(valkey, "a")
    first = member(valkey)
    assert await ran(first, Handler(first, 1)) == ["a"]
    await publish(valkey, "b")

    second = member(reader, "m2")
    assert await ran(second, Handler(second, 1)) == ["b"]


async def test_a_restarted_member_gets_what_it_had_not_acknowledged_before_anything_new(valkey: Redis) -> None:
    await publish(valkey, "a", "b")
    consumer = member(valkey)
    crashed = asyncio.create_task(consumer.run(_never))
    await soon(lambda: _both_delivered(valkey))
    crashed.cancel()
    await asyncio.wait([crashed])
    await publish(valkey, "c")

    again = member(valkey)
    assert await ran(again, Handler(again, 3)) == ["a", "b", "c"]
    assert await pending(valkey) == 0


async def _never(_: Message) -> None:
    await asyncio.get_running_loop().create_future()


async def _both_delivered(redis: Redis) -> bool:
    groups = await command(redis, "XINFO", "GROUPS", ANSWERED.name)
    return bool(groups) and await pending(redis) == 2


async def test_stale_entries_of_a_dead_member_are_taken_over(valkey: Redis) -> None:
    await publish(valkey, "a")
    await command(valkey, "XGROUP", "CREATE", ANSWERED.name, GROUP, "0")
    await command(valkey, "XREADGROUP", "GROUP", GROUP, "dead", "STREAMS", ANSWERED.name, ">")
    consumer = member(valkey, stale_s=0.0)

    assert await ran(consumer, Handler(consumer, 1)) == ["a"]
    assert await pending(valkey) == 0


async def test_entries_of_another_live_member_are_left_to_it(valkey: Redis) -> None:
    await publish(valkey, "a")
    await command(valkey, "XGROUP", "CREATE", ANSWERED.name, GROUP, "0")
    await command(valkey, "XREADGROUP", "GROUP", GROUP, "alive", "STREAMS", ANSWERED.name, ">")
    await publish(valkey, "b")
    consumer = member(valkey, stale_s=60.0)

    assert await ran(consumer, Handler(consumer, 1)) == ["b"]
    assert await pending(valkey) == 1


async def test_a_failed_delivery_is_made_again(valkey: Redis) -> None:
    await publish(valkey, "a")
    consumer = member(valkey, stale_s=0.0)
    failures = iter([ValueError("not yet"), None])

    assert await ran(consumer, Handler(consumer, 2, lambda _: next(failures))) == ["a", "a"]
    assert await pending(valkey) == 0
    assert await dead(valkey) == []


async def test_a_failing_entry_is_a_dead_letter_with_its_reason_and_the_others_continue(valkey: Redis) -> None:
    await publish(valkey, "poison", "b")
    consumer = member(valkey, stale_s=0.0, max_attempts=2)
    handler = Handler(consumer, 3, lambda name: KeyError("what?") if name == "poison" else None)

    assert await ran(consumer, handler) == ["poison", "b", "poison"]
    (dead_letter,) = await dead(valkey)
    assert dead_letter["reason"] == b"KeyError: 'what?'"
    assert ANSWERED.decode(dead_letter["m"]) == Answered(actions=["poison"], batches=[])
    assert await pending(valkey) == 0


@pytest.mark.parametrize("raw", [b"\xc1", b"\x81\xa4kind\xa2\xff\xff", b"\x91" * 5_000])
async def test_undecodable_entries_are_dead_letters_at_once(valkey: Redis, raw: bytes) -> None:
    entry = await command(valkey, "XADD", ANSWERED.name, "*", "m", raw)
    await publish(valkey, "a")
    consumer = member(valkey)

    assert await ran(consumer, Handler(consumer, 1)) == ["a"]
    (dead_letter,) = await dead(valkey)
    assert (dead_letter["m"], dead_letter["entry"]) == (raw, entry)
    assert dead_letter["reason"].startswith(b"undecodable: ")


async def test_pending_entries_that_were_trimmed_are_dropped(valkey: Redis) -> None:
    await publish(valkey, "gone")
    await command(valkey, "XGROUP", "CREATE", ANSWERED.name, GROUP, "0")
    await command(valkey, "XREADGROUP", "GROUP", GROUP, "m1", "STREAMS", ANSWERED.name, ">")
    await command(valkey, "XTRIM", ANSWERED.name, "MAXLEN", 0)
    await publish(valkey, "a")
    consumer = member(valkey)

    assert await ran(consumer, Handler(consumer, 1)) == ["a"]
    assert await pending(valkey) == 0


async def test_deliveries_survive_a_connection_that_fails_anywhere(valkey: Redis) -> None:
    await publish(valkey, "a", "b")
    flaky = Flaky(valkey)
    flaky.failures = ["before", "after", None, "after", None, None, "after", None, "before", None, None, None, "before"]
    consumer = member(flaky)
    handler = Handler(consumer, 1_000)

    async def all_acknowledged() -> bool:
        return set(handler.seen) == {"a", "b"} and await pending(valkey) == 0

    running = asyncio.create_task(consumer.run(handler))
    await soon(all_acknowledged)
    consumer.stopping = True
    async with asyncio.timeout(20):
        await running
