"""Answers that have moved out of Valkey."""

from __future__ import annotations

import sqlalchemy as sa

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")  # behind a long reader: fail and be run again, not block everyone
    op.create_table(
        "answers",
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("batch", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("ms", sa.BigInteger, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("answer", sa.LargeBinary, nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("action", name="answers_pkey"),
    )
    in_batches = sa.text("batch <> ''")
    op.create_index("answers_batch_idx", "answers", ["batch", "ms", "seq"], postgresql_where=in_batches)
    op.create_index("answers_expires_at_idx", "answers", ["expires_at"])


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_table("answers")
