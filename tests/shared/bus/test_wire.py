"""One connection for all callers: each gets its own reply, whatever happens to the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvloop
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as Broken
from redis.exceptions import OutOfMemoryError, ResponseError

from shared.bus.connection import client, command, connect, together
from shared.bus.wire import PipelinedRedis
from tests.shared.bus.soon import soon


async def echoes(redis: Redis, count: int) -> list[bytes]:
    return list(await asyncio.gather(*(command(redis, "ECHO", number) for number in range(count))))


async def test_every_caller_gets_its_own_reply(valkey: Redis) -> None:
    assert await echoes(valkey, 1000) == [b"%d" % number for number in range(1000)]


async def test_replies_larger_than_a_read_come_back_whole_and_in_order(valkey: Redis) -> None:
    texts = [bytes([65 + number]) * 1_000_000 for number in range(4)]

    assert await asyncio.gather(*(command(valkey, "ECHO", text) for text in texts)) == texts


async def test_a_caller_that_went_away_does_not_shift_the_replies(valkey: Redis) -> None:
    await command(valkey, "PING")
    calls = [asyncio.create_task(command(valkey, "ECHO", number)) for number in range(100)]
    await asyncio.sleep(0)  # all are sent, none is answered
    for call in calls[::2]:
        call.cancel()

    assert await asyncio.gather(*calls[1::2]) == [b"%d" % number for number in range(1, 100, 2)]
    assert all(call.cancelled() for call in calls[::2])
    assert await command(valkey, "ECHO", "next") == b"next"


async def test_a_caller_cancelled_while_connecting_leaves_the_others_their_connection(redis_url: str) -> None:
    async with connect(redis_url, name="test") as redis:
        first, second = [asyncio.create_task(command(redis, "ECHO", number)) for number in range(2)]
        await asyncio.sleep(0)
        first.cancel()

        assert await second == b"1"


async def test_callers_that_come_together_share_one_connection(redis_url: str, valkey: Redis) -> None:
    async with connect(redis_url, name="together") as redis:
        await echoes(redis, 50)

        listed = await command(valkey, "CLIENT", "LIST")
        assert listed.count(b"name=treadle-together ") == 1


async def test_an_error_reply_goes_to_its_caller_alone(valkey: Redis) -> None:
    await command(valkey, "SET", "text", "x")

    calls = (command(valkey, "GET", "text"), command(valkey, "INCR", "text"), command(valkey, "GET", "text"))
    ends: list[Any] = list(await asyncio.gather(*calls, return_exceptions=True))

    assert [type(end) for end in ends] == [bytes, ResponseError, bytes]


async def test_a_full_memory_has_an_error_of_its_own(private_url: str) -> None:
    async with connect(private_url, name="test") as redis:
        await command(redis, "CONFIG", "SET", "maxmemory", "1")

        with pytest.raises(OutOfMemoryError):
            await command(redis, "SET", "key", "value")
        assert await command(redis, "GET", "key") is None


async def test_a_blocking_read_on_its_own_connection_delays_no_call(valkey: Redis, reader: Redis) -> None:
    await command(reader, "PING")
    blocked = asyncio.create_task(command(reader, "XREAD", "BLOCK", 30_000, "STREAMS", "s", "$"))

    async def is_blocked() -> bool:
        return b"cmd=xread" in await command(valkey, "CLIENT", "LIST")

    await soon(is_blocked)
    assert not blocked.done()
    entry = await command(valkey, "XADD", "s", "*", "m", "x")

    assert await blocked == [[b"s", [[entry, [b"m", b"x"]]]]]


async def test_pipelines_of_redis_py_still_work_beside_the_wire(valkey: Redis) -> None:
    async with valkey.pipeline(transaction=True) as pipe:
        pipe.hset("hash", "field", "value")
        pipe.hmget("hash", ["field", "none"])

        assert await pipe.execute() == [1, [b"value", None]]


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_it_works_on_every_event_loop(redis_url: str, loop_factory: type[asyncio.AbstractEventLoop]) -> None:
    async def scenario() -> list[bytes]:
        async with connect(redis_url, name="test") as redis:
            gone = asyncio.create_task(command(redis, "ECHO", "gone"))
            await asyncio.sleep(0)
            gone.cancel()
            return await echoes(redis, 100)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(scenario()) == [b"%d" % number for number in range(100)]


# ---- parts of the URL --------------------------------------------------------------------------------------------


async def test_the_database_of_the_url_is_selected(redis_url: str, valkey: Redis) -> None:
    async with connect(f"{redis_url}?db=3", name="test") as third:
        await command(third, "SET", "key", "in three")

        assert b" db=3 " in await command(third, "CLIENT", "INFO")
        assert await command(valkey, "GET", "key") is None


async def test_the_password_of_the_url_authenticates(private_url: str) -> None:
    async with connect(private_url, name="test") as redis:
        await command(redis, "CONFIG", "SET", "requirepass", "secret")

    async with connect(f"{private_url}?password=secret", name="test") as redis:
        assert await command(redis, "PING") == b"PONG"


async def test_the_user_of_the_url_is_authenticated(private_url: str, unused_port: int) -> None:
    async with connect(private_url, name="test") as redis:
        await command(redis, "CONFIG", "SET", "bind", "127.0.0.1", "port", unused_port)
        await command(redis, "ACL", "SETUSER", "ada", "on", ">secret", "~*", "+@all")

    async with connect(f"redis://ada:secret@127.0.0.1:{unused_port}/2", name="test") as redis:
        assert await command(redis, "ACL", "WHOAMI") == b"ada"
        assert b" db=2 " in await command(redis, "CLIENT", "INFO")


async def test_a_wrong_password_is_reported_and_leaves_no_connection_open(private_url: str) -> None:
    async with connect(private_url, name="test") as redis:
        await command(redis, "CONFIG", "SET", "requirepass", "secret")
        stranger = client(f"{private_url}?password=guess", name="stranger")

        with pytest.raises(ResponseError, match="WRONGPASS"):
            await command(stranger, "PING")

        async def alone() -> bool:
            return bool((await command(redis, "CLIENT", "LIST")).count(b"\n") == 1)

        await soon(alone)
        await stranger.aclose()


async def test_commands_that_are_sent_together_leave_in_one_write(redis_url: str, monkeypatch: Any) -> None:
    async with connect(redis_url, name="together") as redis:
        assert isinstance(redis, PipelinedRedis)
        await command(redis, "PING")
        assert redis._wire is not None
        transport, writes = redis._wire._transport, list[bytes]()

        class Counting:
            def write(self, data: bytes) -> None:
                writes.append(data)
                assert transport is not None
                transport.write(data)

            def is_closing(self) -> bool:
                return False

        with monkeypatch.context() as patched:
            patched.setattr(redis._wire, "_transport", Counting())
            for _ in range(2):
                replies = await together(redis, *(command(redis, "ECHO", number) for number in range(50)))
                assert replies == [b"%d" % number for number in range(50)]
            assert len(writes) == 2
            assert await command(redis, "ECHO", "later") == b"later"
            assert len(writes) == 3, "a command alone leaves at once"


async def test_an_error_of_commands_that_are_sent_together_is_raised(redis_url: str) -> None:
    async with connect(redis_url, name="together") as redis:
        with pytest.raises(ResponseError):
            await together(redis, command(redis, "ECHO", "1"), command(redis, "NONSENSE"))
        assert await command(redis, "ECHO", "2") == b"2"


async def test_commands_that_are_sent_together_fail_with_their_connection(redis_url: str, valkey: Redis) -> None:
    async with connect(redis_url, name="together-broken") as redis:
        await command(redis, "PING")
        calls = asyncio.create_task(together(redis, command(redis, "ECHO", "1"), command(redis, "BLPOP", "none", 0)))
        await soon(lambda: _blocked(valkey))
        await command(valkey, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        with pytest.raises(Broken):
            await calls
        assert await command(redis, "ECHO", "again") == b"again"


async def _blocked(valkey: Redis) -> bool:
    return b"blocked_clients:0" not in await command(valkey, "INFO", "clients")
