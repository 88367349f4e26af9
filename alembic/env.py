"""Runs migrations on the connection that `shared.store.migrate` hands over, inside its transaction.

The connection is an async engine's; `run_sync` makes it look synchronous here. There is no alembic.ini: addresses come
from `TREADLE_DATABASE_URL`, and new versions are written by hand and held to the tables by a test.
"""

from __future__ import annotations

from alembic import context
from shared.store.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    transactional_ddl=True,
    transaction_per_migration=False,
)
context.run_migrations()
