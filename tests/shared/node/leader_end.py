"""The leader's end of one node's streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis

from shared.bus import functions
from shared.bus.connection import command, connect
from shared.messages.base import Message, Topic
from shared.messages.grants import Grant, grants_topic
from shared.messages.nodes import NODES
from shared.messages.outcomes import OUTCOMES
from shared.node.connection import NodeConnection
from shared.node.identity import NodeIdentity
from shared.node.outbox import Outbox
from tests.shared.bus.soon import soon


class LeaderEnd:
    """Sends messages to a node, and reads what it publishes."""

    def __init__(self, redis: Redis, identity: NodeIdentity) -> None:
        self.redis = redis
        self.topic = grants_topic(identity.node, identity.incarnation)

    async def send(self, *messages: Grant) -> None:
        for message in messages:
            await command(self.redis, "XADD", self.topic.name, "*", "m", self.topic.encode(message))

    async def published(self, topic: Topic[Any]) -> list[Any]:
        return [topic.decode(fields[1]) for _, fields in await command(self.redis, "XRANGE", topic.name, "-", "+")]

    async def outcomes(self, count: int) -> list[Any]:
        """Return its first `count` outcomes."""
        return await self._first(OUTCOMES, count)

    async def announcements(self, count: int) -> list[Any]:
        """Return its first `count` messages on the topic `nodes`."""
        return await self._first(NODES, count)

    async def _first(self, topic: Topic[Any], count: int) -> list[Any]:
        async def enough() -> bool:
            return len(await self.published(topic)) >= count

        await soon(enough)
        return (await self.published(topic))[:count]


@asynccontextmanager
async def node_connection(url: str) -> AsyncIterator[NodeConnection]:
    """Connection of the node `n` in its incarnation `1`."""
    async with connect(url, name="test") as redis, connect(url, name="test-reader") as reader:
        yield NodeConnection(NodeIdentity("n", "1"), redis, reader, Outbox(redis))


@asynccontextmanager
async def loaded_connection(url: str) -> AsyncIterator[NodeConnection]:
    """The same, with the functions loaded."""
    async with node_connection(url) as connection:
        await functions.load(connection.redis)
        yield connection


@asynccontextmanager
async def running(*loops: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(loop()) for loop in loops]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def kinds(messages: list[Message]) -> list[type[Message]]:
    return [type(message) for message in messages]
