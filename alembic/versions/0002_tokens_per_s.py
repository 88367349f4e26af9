"""Speed at which the samples of a batch were generated, as its trainer reported."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")  # behind a long reader: fail and be run again, not block everyone
    op.add_column("batches", sa.Column("tokens_per_s", sa.Double))


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_column("batches", "tokens_per_s")
