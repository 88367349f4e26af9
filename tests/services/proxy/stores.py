"""The proxy's store for tests that need no Postgres, or a database of the test's own."""

from __future__ import annotations

from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from services.proxy.records.store import Store
from shared.store.results import ArchiveReader

NOWHERE = "postgresql+asyncpg://nobody@127.0.0.1:1/nothing"
"""No server listens there."""


def archive_at(url: str = NOWHERE) -> ArchiveReader:
    return ArchiveReader(async_sessionmaker(create_async_engine(url)))


def store_over(redis: Redis, url: str = NOWHERE) -> Store:
    return Store(redis, archive_at(url))
