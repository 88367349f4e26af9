"""Access to Postgres: sessions, transactions, and retries while the server is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import asyncpg
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from shared.runtime import log
from shared.runtime.units import Seconds

T = TypeVar("T")

Sessions = async_sessionmaker[AsyncSession]

_log = log.get(__name__)

CONNECT_TIMEOUT_S = 5.0
COMMAND_TIMEOUT_S = 30.0
"""Far longer than any of our statements. The largest writes one batch of 16,000 requests in about 40 ms."""

_ABSENT = (
    OSError,
    TimeoutError,
    OperationalError,
    InterfaceError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.InternalClientError,  # a statement on a connection that the server has ended at the same time
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
)


@asynccontextmanager
async def connect(url: str, *, name: str, connections: int = 4) -> AsyncIterator[Sessions]:
    """Yield sessions on a pool of connections, which is closed at the end. Connects on first use.

    Args:
        url: in SQLAlchemy's format, `postgresql+asyncpg://...`.
        name: of the service; shown in pg_stat_activity.
        connections: most at once; a caller that needs one more waits 5 s.
    """
    engine = create_async_engine(
        url,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=5.0,
        pool_pre_ping=True,
        hide_parameters=True,  # in errors: answers must not get into logs
        connect_args={
            "timeout": CONNECT_TIMEOUT_S,
            "command_timeout": COMMAND_TIMEOUT_S,
            "server_settings": {"application_name": f"treadle-{name}"},
        },
    )
    try:
        yield async_sessionmaker(engine, expire_on_commit=False)
    finally:
        await engine.dispose()


@asynccontextmanager
async def transaction(sessions: Sessions) -> AsyncIterator[AsyncSession]:
    """Yield a session in one transaction. It is committed if the block succeeds, else rolled back."""
    async with sessions.begin() as session:
        yield session


@asynccontextmanager
async def driver_connection(sessions: Sessions) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """Yield a connection of the driver itself, for statements on a hot path. Each of its calls is a transaction.

    Errors are those of asyncpg.
    """
    engine: AsyncEngine = sessions.kw["bind"]
    async with engine.connect() as connection:
        raw = await connection.get_raw_connection()
        driver = raw.driver_connection
        assert driver is not None, "it is connected"
        try:
            yield driver
        finally:
            await connection.invalidate()  # after an error its state is unknown, and the pool must not lend it again


async def answers(sessions: Sessions) -> bool:
    """Return whether the server executes a statement now. For readiness."""
    try:
        async with sessions() as session:
            await session.execute(text("SELECT 1"))
    except Exception as error:
        if away(error):
            return False
        raise
    return True


def away(error: BaseException) -> bool:
    """Return whether an error means that the server is away or restarting. Then a retry may succeed later."""
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    return isinstance(error, _ABSENT) or (error.__cause__ is not None and away(error.__cause__))


async def persistently(attempt: Callable[[], Awaitable[T]], *, what: str, pause_s: Seconds = 0.05) -> T:
    """Repeat a transaction while Postgres is away, until it succeeds or the caller is cancelled.

    Args:
        attempt: runs one whole transaction; must be safe to repeat.
        what: for the log, e.g. "storing a batch".
        pause_s: first pause; doubles up to 2 s.

    Raises:
        Exception: any other error of the attempt.
    """
    while True:
        try:
            return await attempt()
        except Exception as error:
            if not away(error):
                raise
            _log.warning("postgres_unavailable", what=what, error=str(error) or type(error).__name__)
            await asyncio.sleep(pause_s)
            pause_s = min(2.0, pause_s * 2)
