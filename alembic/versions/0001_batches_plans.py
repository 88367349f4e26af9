"""Batches with what was measured of their requests, plans."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")  # behind a long reader: fail and be run again, not block everyone
    op.create_table(
        "batches",
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("task", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("size", sa.Integer),
        sa.Column("stages", JSONB, nullable=False),
        sa.Column("max_extra_delay_s", sa.Double, nullable=False),
        sa.Column("resources", sa.Double, nullable=False),
        sa.Column("opened_at", MOMENT, nullable=False),
        sa.Column("first_arrival_at", MOMENT),
        sa.Column("expected_completion_at", MOMENT),
        sa.Column("ended_at", MOMENT),
        sa.Column("answered", sa.Integer),
        sa.Column("counts", JSONB),
        sa.Column("extra_delay_s", sa.Double),
        sa.PrimaryKeyConstraint("id", name="batches_pkey"),
        sa.CheckConstraint("state IN ('open', 'complete', 'cancelled', 'abandoned')", name=op.f("batches_state_check")),
        sa.CheckConstraint("(state = 'open') = (ended_at IS NULL)", name=op.f("batches_ended_check")),
    )
    complete, still_open = sa.text("state = 'complete'"), sa.text("state = 'open'")
    op.create_index("batches_complete_idx", "batches", ["tenant", "task", "ended_at"], postgresql_where=complete)
    op.create_index("batches_open_idx", "batches", ["opened_at"], postgresql_where=still_open)
    op.create_index("batches_ended_at_idx", "batches", ["ended_at"])
    op.create_table(
        "batch_requests",
        sa.Column("batch_id", sa.Text, nullable=False),
        sa.Column("arrival_s", sa.ARRAY(sa.Double), nullable=False),
        sa.Column("queue_s", sa.ARRAY(sa.Double), nullable=False),
        sa.Column("execution_s", sa.ARRAY(sa.Double), nullable=False),
        sa.Column("units", sa.ARRAY(sa.SmallInteger), nullable=False),
        sa.Column("overhead_s", sa.ARRAY(sa.Double), nullable=False),
        sa.PrimaryKeyConstraint("batch_id", name="batch_requests_pkey"),
        sa.ForeignKeyConstraint(["batch_id"], ["batches.id"], "batch_requests_batch_id_fkey", ondelete="CASCADE"),
    )
    op.create_table(
        "plans",
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), nullable=False),
        sa.Column("decided_at", MOMENT, nullable=False),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("previous", sa.Integer),
        sa.Column("target", sa.Integer, nullable=False),
        sa.Column("reason", JSONB, nullable=False),
        sa.PrimaryKeyConstraint("id", name="plans_pkey"),
    )
    op.create_index("plans_decided_at_idx", "plans", ["decided_at"])
    op.create_index("plans_pool_idx", "plans", ["pool", "id"])


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for table in ("plans", "batch_requests", "batches"):
        op.drop_table(table)
