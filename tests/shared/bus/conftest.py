"""Valkey with the functions loaded, and one of a test module's own where its settings are changed."""

import socket
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from shared.bus import functions
from shared.bus.connection import connect
from shared.testing.servers import running_valkey, temporary_home
from tests.shared.bus.journal import Journal


@pytest.fixture
async def valkey(redis_url: str) -> AsyncIterator[Redis]:
    async with connect(redis_url, name="test") as redis:
        await functions.load(redis)
        yield redis


@pytest.fixture
async def reader(redis_url: str) -> AsyncIterator[Redis]:
    """A connection of its own, for blocking reads."""
    async with connect(redis_url, name="test-reader") as redis:
        yield redis


@pytest.fixture
async def journal(valkey: Redis) -> Journal:
    """The books, led by `me`."""
    return await Journal.led(valkey)


@pytest.fixture
def private_url() -> Iterator[str]:
    """A server nobody else uses: its settings may be changed."""
    with temporary_home() as root, running_valkey(root, durable=False) as url:
        yield url


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port: int = door.getsockname()[1]
        return port
