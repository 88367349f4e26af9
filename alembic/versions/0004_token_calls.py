"""Records of what the models of trajectories sampled."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")  # behind a long reader: fail and be run again, not block everyone
    op.create_table(
        "token_trajectories",
        sa.Column("trajectory", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("trajectory", name="token_trajectories_pkey"),
    )
    op.create_index("token_trajectories_expires_at_idx", "token_trajectories", ["expires_at"])
    op.create_table(
        "token_calls",
        sa.Column("trajectory", sa.Text, nullable=False),
        sa.Column("serial", sa.Integer, nullable=False),
        sa.Column("call", sa.Text, nullable=False),
        sa.Column("extends", sa.Integer),
        sa.Column("kept", sa.Integer, nullable=False),
        sa.Column("prompt", sa.ARRAY(sa.Integer, dimensions=1), nullable=False),
        sa.Column("output", sa.ARRAY(sa.Integer, dimensions=1), nullable=False),
        sa.Column("logprobs", sa.ARRAY(sa.REAL, dimensions=1)),
        sa.Column("details", JSONB, nullable=False),
        sa.Column("head_length", sa.Integer),
        sa.Column("head_digest", sa.LargeBinary),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("trajectory", "serial", name="token_calls_pkey"),
        sa.ForeignKeyConstraint(
            ["trajectory"],
            ["token_trajectories.trajectory"],
            name="token_calls_trajectory_fkey",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["trajectory", "extends"],
            ["token_calls.trajectory", "token_calls.serial"],
            name="token_calls_extends_fkey",
            ondelete="CASCADE",
        ),
        sa.CheckConstraint("extends < serial", name=op.f("token_calls_extends_check")),
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_table("token_calls")
    op.drop_table("token_trajectories")
