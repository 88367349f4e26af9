"""The tables in the database are the tables in the code, and the way there can be gone back and forth."""

from __future__ import annotations

import asyncio
from typing import Any

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, inspect
from sqlalchemy.ext.asyncio import create_async_engine

from shared.store.migrate import downgrade, upgrade
from shared.store.tables import METADATA


def drift(connection: Connection) -> list[Any]:
    context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
    return list(compare_metadata(context, METADATA))


def shape(connection: Connection) -> dict[str, set[str]]:
    """Parts that a comparison of metadata leaves out: check constraints, and which indexes are partial."""
    found = inspect(connection)
    return {
        table: {str(check["name"]) for check in found.get_check_constraints(table)}
        | {
            f"{index['name']} {index['column_names']} {bool(index['dialect_options'].get('postgresql_where'))}"
            for index in found.get_indexes(table)
        }
        for table in found.get_table_names()
        if table != "alembic_version"
    }


def declared() -> dict[str, set[str]]:
    return {
        name: {str(c.name) for c in table.constraints if type(c).__name__ == "CheckConstraint"}
        | {
            f"{index.name} {[c.name for c in index.columns]} {index.dialect_options['postgresql']['where'] is not None}"
            for index in table.indexes
        }
        for name, table in METADATA.tables.items()
    }


async def look(url: str) -> tuple[list[Any], dict[str, set[str]]]:
    engine = create_async_engine(url)
    try:
        async with engine.connect() as connection:
            return await connection.run_sync(drift), await connection.run_sync(shape)
    finally:
        await engine.dispose()


async def test_an_empty_database_goes_up_down_and_up_again_and_then_has_our_tables(empty_database_url: str) -> None:
    await upgrade(empty_database_url)
    assert await look(empty_database_url) == ([], declared())
    await downgrade(empty_database_url, "base")
    assert (await look(empty_database_url))[1] == {}
    await upgrade(empty_database_url)
    assert await look(empty_database_url) == ([], declared())


async def test_two_processes_that_migrate_at_once_take_turns(empty_database_url: str) -> None:
    await asyncio.gather(upgrade(empty_database_url), upgrade(empty_database_url))
    assert await look(empty_database_url) == ([], declared())
