"""Channels: messages arrive at those who listen, also after their connection has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from shared.bus import channels
from shared.bus.connection import command, connect
from tests.shared.bus.soon import soon

CHANNEL = "some"


@asynccontextmanager
async def following(redis_url: str, received: list[bytes]) -> AsyncIterator[None]:
    async with connect(redis_url, name="follower") as redis:
        task = asyncio.create_task(channels.follow(redis, CHANNEL, received.append))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


async def followed(valkey: Redis) -> bool:
    """Return whether the follower has subscribed."""
    return bool(await command(valkey, "PUBSUB", "NUMSUB", CHANNEL) == [CHANNEL.encode(), 1])


async def test_messages_arrive_in_order(valkey: Redis, redis_url: str) -> None:
    assert await channels.publish(valkey, CHANNEL, b"lost") == 0
    received: list[bytes] = []
    async with following(redis_url, received):
        await soon(lambda: followed(valkey))
        for number in range(100):
            assert await channels.publish(valkey, CHANNEL, b"%d" % number) == 1
        channels.post(valkey, CHANNEL, b"last")

        async def all_came() -> bool:
            return len(received) == 101

        await soon(all_came)
    assert received == [*(b"%d" % number for number in range(100)), b"last"]
    assert await command(valkey, "PING") == b"PONG"


async def test_a_follower_whose_connection_has_ended_follows_again(
    valkey: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "AGAIN_S", 0.01)
    received: list[bytes] = []
    async with following(redis_url, received):
        await soon(lambda: followed(valkey))
        await command(valkey, "CLIENT", "KILL", "TYPE", "pubsub")
        await soon(lambda: followed(valkey))
        await channels.publish(valkey, CHANNEL, b"x")

        async def came() -> bool:
            return received == [b"x"]

        await soon(came)


async def test_a_follower_that_goes_is_no_receiver(valkey: Redis, redis_url: str) -> None:
    """Its client stays open: a replica that leads no more."""
    async with connect(redis_url, name="follower") as redis:
        for _ in range(2):
            task = asyncio.create_task(channels.follow(redis, CHANNEL, lambda _: None))
            await soon(lambda: followed(valkey))
            task.cancel()
            await asyncio.wait([task])

            async def gone() -> bool:
                return await channels.publish(valkey, CHANNEL, b"x") == 0

            await soon(gone)


async def test_a_message_beside_the_reply_to_a_check_is_no_reply(
    valkey: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "CHECK_S", 0.0005)
    received: list[bytes] = []
    async with following(redis_url, received):
        await soon(lambda: followed(valkey))
        for number in range(500):
            await channels.publish(valkey, CHANNEL, b"%d" % number)

        async def all_came() -> bool:
            return received == [b"%d" % number for number in range(500)]

        await soon(all_came)
        listed = (await command(valkey, "CLIENT", "LIST", "TYPE", "pubsub")).decode()
        assert listed.count("name=treadle-follower") == 1


async def test_a_posted_message_without_a_connection_is_lost(redis_url: str) -> None:
    async with connect(redis_url, name="test") as redis:
        channels.post(redis, CHANNEL, b"x")
        assert await command(redis, "PING") == b"PONG"
        channels.post(redis, CHANNEL, b"y")
    channels.post(redis, CHANNEL, b"z")
