"""Valkey with the functions loaded, a second connection, and the journal: for every folder that uses the bus."""

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from shared.bus.connection import command, connect
from tests.shared.bus.checked_library import checked_source
from tests.shared.bus.journal import Journal


@pytest.fixture
async def valkey(redis_url: str) -> AsyncIterator[Redis]:
    async with connect(redis_url, name="test") as redis:
        await command(redis, "FUNCTION", "LOAD", "REPLACE", checked_source())
        yield redis


@pytest.fixture
async def reader(redis_url: str) -> AsyncIterator[Redis]:
    """A connection of its own, for blocking reads."""
    async with connect(redis_url, name="test-reader") as redis:
        yield redis


@pytest.fixture
async def journal(valkey: Redis) -> Journal:
    """The journal, led by `me`."""
    return await Journal.led(valkey)
