"""The fixtures of tests/conftest.py give each test a clean, real server."""

import pytest
import redis
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine


@pytest.mark.parametrize("turn", [1, 2])
def test_valkey_is_empty_at_each_turn(redis_url: str, turn: int) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("left behind", turn)


@pytest.mark.parametrize("turn", [1, 2])
async def test_the_database_is_empty_at_each_turn(empty_database_url: str, turn: int) -> None:
    engine = create_async_engine(empty_database_url)
    async with engine.begin() as connection:
        await connection.execute(sqlalchemy.text("CREATE TABLE left_behind (turn int)"))
    await engine.dispose()


@pytest.mark.parametrize("turn", [1, 2])
async def test_the_migrated_database_has_the_tables_and_no_rows(database_url: str, turn: int) -> None:
    engine = create_async_engine(database_url)
    async with engine.begin() as connection:
        version = await connection.execute(sqlalchemy.text("SELECT version_num FROM alembic_version"))
        assert version.scalar_one()
    await engine.dispose()
