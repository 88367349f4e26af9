"""Loss of the server: every running call fails, none hangs, and the next one connects again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as Broken

from shared.bus.connection import command, connect
from shared.bus.wire import PipelinedRedis
from tests.shared.bus.mute_server import mute_server
from treadle.testing.servers import running_valkey

IN_TIME_S = 20.0
"""Time limit above the duration of every call here."""


@contextmanager
def server(home: Path) -> Iterator[str]:
    with running_valkey(home) as url:
        yield url


@asynccontextmanager
async def short_timeout(url: str, *, name: str | None = None, silent_s: float = 0.2) -> AsyncIterator[Redis]:
    redis = PipelinedRedis.from_url(
        url, protocol=2, client_name=name, socket_timeout=silent_s, socket_connect_timeout=silent_s
    )
    try:
        yield redis
    finally:
        await redis.aclose()


async def test_calls_fail_while_the_server_is_away_and_work_when_it_is_back(stack_home: Path) -> None:
    with server(stack_home) as url:
        away = connect(url, name="test")
        redis = await away.__aenter__()
        await command(redis, "SET", "key", "kept")
        blocked = asyncio.create_task(command(redis, "BLPOP", "nothing", 60))
        queued = asyncio.create_task(command(redis, "GET", "key"))
        await asyncio.sleep(0)

    async with asyncio.timeout(IN_TIME_S):
        for call in (blocked, queued):
            with pytest.raises(Broken):
                await call
        with pytest.raises(Broken, match="cannot be reached"):
            await command(redis, "GET", "key")

        with server(stack_home):
            assert await command(redis, "GET", "key") == b"kept"
            await away.__aexit__(None, None, None)


async def test_a_server_that_accepts_and_never_replies_is_taken_for_dead() -> None:
    async with mute_server() as mute, short_timeout(mute.url) as redis, asyncio.timeout(IN_TIME_S):
        with pytest.raises(Broken):
            await command(redis, "PING")


async def test_every_caller_of_a_silent_server_gets_the_error() -> None:
    async with mute_server() as mute, short_timeout(mute.url) as redis, asyncio.timeout(IN_TIME_S):
        ends = await asyncio.gather(*(command(redis, "PING") for _ in range(20)), return_exceptions=True)

        assert [type(end) for end in ends] == [Broken] * 20
        assert len(mute.connections) == 1


async def test_a_server_that_is_silent_from_the_first_word_on_cannot_be_reached() -> None:
    async with mute_server() as mute, short_timeout(mute.url, name="me") as redis, asyncio.timeout(IN_TIME_S):
        with pytest.raises(Broken, match="cannot be reached: no answer in time"):
            await command(redis, "PING")

        await mute.left.wait()


async def test_an_idle_connection_is_not_taken_for_dead(redis_url: str) -> None:
    async with short_timeout(redis_url, silent_s=0.05) as redis:
        me = await command(redis, "CLIENT", "ID")
        await asyncio.sleep(0.2)  # several checks

        assert await command(redis, "CLIENT", "ID") == me


async def test_a_connection_cut_in_the_middle_of_a_reply_fails_its_call() -> None:
    async with mute_server(b"$10\r\nhal", hang_up=True) as mute, short_timeout(mute.url, silent_s=10) as redis:
        async with asyncio.timeout(IN_TIME_S):
            with pytest.raises(Broken):
                await command(redis, "GET", "key")


async def test_replies_before_a_lost_connection_count() -> None:
    async with mute_server(b"+one\r\n+tw", hang_up=True) as mute, short_timeout(mute.url, silent_s=10) as redis:
        async with asyncio.timeout(IN_TIME_S):
            calls = (command(redis, "GET", "1"), command(redis, "GET", "2"))
            ends: list[Any] = list(await asyncio.gather(*calls, return_exceptions=True))
        assert [type(end) for end in ends] == [bytes, Broken]
        assert ends[0] == b"one"


async def test_after_a_cut_the_next_call_connects_again(redis_url: str, valkey: Redis) -> None:
    async with connect(redis_url, name="cut") as redis, asyncio.timeout(IN_TIME_S):
        me = await command(redis, "CLIENT", "ID")
        blocked = asyncio.create_task(command(redis, "BLPOP", "nothing", 60))
        await command(valkey, "CLIENT", "KILL", "ID", me)
        with pytest.raises(Broken):
            await blocked

        assert await command(redis, "CLIENT", "ID") > me


async def test_no_server_is_an_error_at_once(tmp_path: Path) -> None:
    async with short_timeout(f"unix://{tmp_path}/no.sock", silent_s=30) as redis, asyncio.timeout(IN_TIME_S):
        with pytest.raises(Broken, match="cannot be reached"):
            await command(redis, "PING")


async def test_closing_fails_what_is_under_way() -> None:
    async with mute_server() as mute, asyncio.timeout(IN_TIME_S):
        async with short_timeout(mute.url, silent_s=30) as redis:
            call = asyncio.create_task(command(redis, "PING"))
            await mute.received.wait()
        with pytest.raises(Broken):
            await call


async def test_closing_ends_a_connection_that_is_still_being_made() -> None:
    async with mute_server() as mute, asyncio.timeout(IN_TIME_S):
        async with short_timeout(mute.url, name="me", silent_s=30) as redis:
            call = asyncio.create_task(command(redis, "PING"))
            await mute.received.wait()
        with pytest.raises(Broken):
            await call
        await mute.left.wait()
