"""Retries while the server restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from shared.store.database import Sessions, answers, away, connect, persistently, transaction
from treadle.testing.servers import PostgresServer, running_postgres


async def count(sessions: Sessions) -> int:
    async with transaction(sessions) as session:
        return int((await session.execute(text("SELECT 1"))).scalar_one())


async def test_a_transaction_waits_for_a_server_that_restarts(stack_home: Path) -> None:
    def start() -> tuple[PostgresServer, object]:
        running = running_postgres(stack_home)
        return running.__enter__(), running

    server, running = await asyncio.to_thread(start)
    async with connect(server.url("postgres"), name="test") as sessions:
        assert await count(sessions) == 1
        assert await answers(sessions)
        await asyncio.to_thread(running.__exit__, None, None, None)  # type: ignore[attr-defined]  # a context manager
        assert not await answers(sessions)
        waiting = asyncio.create_task(persistently(lambda: count(sessions), what="counting"))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        with running_postgres(stack_home):
            assert await asyncio.wait_for(waiting, 30) == 1


async def test_a_server_that_was_never_there_is_away_and_not_an_error(tmp_path: Path) -> None:
    async with connect(f"postgresql+asyncpg://nobody@/nothing?host={tmp_path}", name="test") as sessions:
        assert not await answers(sessions)


async def test_a_killed_session_is_away(database_url: str, postgres_server: PostgresServer) -> None:
    async with connect(database_url, name="victim") as sessions, sessions() as session:
        await session.execute(text("SELECT 1"))
        await asyncio.to_thread(
            postgres_server.execute,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'treadle-victim'",
        )
        with pytest.raises(Exception, match=r".") as lost:  # whatever the driver calls it
            await session.execute(text("SELECT 1"))
        assert away(lost.value)


async def test_an_error_of_ours_is_raised_at_once(sessions: Sessions) -> None:
    attempts = 0

    async def broken() -> None:
        nonlocal attempts
        attempts += 1
        async with transaction(sessions) as session:
            await session.execute(text("INSERT INTO batch_requests VALUES ('none', '{}', '{}', '{}', '{}', '{}')"))

    with pytest.raises(IntegrityError):
        await persistently(broken, what="breaking")
    assert attempts == 1
