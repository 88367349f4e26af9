"""Appending recorded calls to a real Postgres: all calls of one append or none, on a connection that may have ended."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text

from shared.store import database
from shared.store.database import Sessions
from shared.store.token_calls import CallAppender, StoredCall, Taken, TokenCalls
from shared.tokens.calls import CallRecord

NEVER = 4e9
"""Unix seconds long after this test."""


@pytest.fixture
async def sessions(database_url: str) -> AsyncIterator[Sessions]:
    async with database.connect(database_url, name="test") as opened:
        yield opened


@pytest.fixture
async def appender(sessions: Sessions) -> AsyncIterator[CallAppender]:
    appender = CallAppender(sessions)
    yield appender
    await appender.close()


def call(trajectory: str, serial: int, name: str = "", extends: int | None = None) -> StoredCall:
    record = CallRecord(
        serial=serial,
        call=name or f"{trajectory}-{serial}",
        prompt=(1, 2),
        output=(3,),
        logprobs=(-0.5,),
        extends=extends,
        created_s=1.0,
    )
    return StoredCall(trajectory, "ada", record, None)


async def stored(sessions: Sessions, trajectory: str) -> list[str]:
    async with sessions() as session:
        return [one.call async for one in TokenCalls(session).of(trajectory)]


async def failure(appender: CallAppender, one: StoredCall) -> Exception | None:
    """Why this call was not appended: its writer repeats it. None: it was."""
    try:
        await appender.append([one], NEVER)
    except Exception as error:  # noqa: BLE001  # the test examines it
        return error
    return None


async def test_one_taken_serial_leaves_nothing_of_the_append(sessions: Sessions, appender: CallAppender) -> None:
    await appender.append([call("t2", 0)], NEVER)
    with pytest.raises(Taken):
        await appender.append([call("t1", 0), call("t2", 0, "another"), call("t3", 0)], NEVER)
    assert [await stored(sessions, name) for name in ("t1", "t2", "t3")] == [[], ["t2-0"], []]
    await appender.append([call("t1", 0), call("t2", 1)], NEVER)
    assert [await stored(sessions, name) for name in ("t1", "t2")] == [["t1-0"], ["t2-0", "t2-1"]]


async def test_a_call_that_is_extended_must_exist(sessions: Sessions, appender: CallAppender) -> None:
    with pytest.raises(Taken):
        await appender.append([call("t1", 5, extends=4)], NEVER)
    await appender.append([call("t1", 5, extends=4), call("t1", 4)], NEVER)
    assert await stored(sessions, "t1") == ["t1-4", "t1-5"]


async def test_a_connection_that_the_server_has_ended_is_replaced(sessions: Sessions, appender: CallAppender) -> None:
    await appender.append([call("t1", 0)], NEVER)
    async with sessions() as session:
        await session.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%INSERT INTO token_calls%'"
                " AND pid <> pg_backend_pid()"
            )
        )
    failures = [error for error in [await failure(appender, call("t1", serial)) for serial in (1, 1, 2)] if error]
    assert all(database.away(error) or isinstance(error, Taken) for error in failures), failures
    assert await stored(sessions, "t1") == ["t1-0", "t1-1", "t1-2"]


async def test_the_expiry_of_a_record_moves_only_forward(sessions: Sessions, appender: CallAppender) -> None:
    for serial, expires_at in enumerate((2e9, 3e9, 1e9)):
        await appender.append([call("t1", serial)], expires_at)
    async with sessions() as session:
        found = await session.execute(text("SELECT extract(epoch FROM expires_at) FROM token_trajectories"))
        assert [float(row[0]) for row in found] == [3e9]
