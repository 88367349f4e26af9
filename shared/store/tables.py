"""The tables. Times are `timestamptz` in the database and Unix seconds in our records. Durations are seconds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    ARRAY,
    REAL,
    BigInteger,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    TypeDecorator,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import Dialect

METADATA = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
    }
)


def moment(unix: float) -> datetime:
    """Return Unix seconds as the database's type."""
    return datetime.fromtimestamp(unix, UTC)


class UnixSeconds(TypeDecorator[float]):
    """Unix seconds in Python, `timestamptz` in the database; exact to the microsecond."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:  # noqa: ARG002  # the type's interface
        return None if value is None else moment(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:  # noqa: ARG002  # the type's interface
        return None if value is None else value.timestamp()


BATCHES = Table(
    "batches",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("size", Integer),
    Column("stages", JSONB, nullable=False),
    Column("max_extra_delay_s", Double, nullable=False),
    Column("resources", Double, nullable=False),
    Column("opened_at", UnixSeconds, nullable=False),
    Column("first_arrival_at", UnixSeconds),
    Column("expected_completion_at", UnixSeconds),
    Column("ended_at", UnixSeconds),
    Column("answered", Integer),
    Column("counts", JSONB),
    Column("extra_delay_s", Double),
    Column("tokens_per_s", Double),
    CheckConstraint("state IN ('open', 'complete', 'cancelled', 'abandoned')", name="state"),
    CheckConstraint("(state = 'open') = (ended_at IS NULL)", name="ended"),
    Index("batches_complete_idx", "tenant", "task", "ended_at", postgresql_where=text("state = 'complete'")),
    Index("batches_open_idx", "opened_at", postgresql_where=text("state = 'open'")),
    Index("batches_ended_at_idx", "ended_at"),
)

BATCH_REQUESTS = Table(
    "batch_requests",
    METADATA,
    Column("batch_id", Text, ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
    Column("arrival_s", ARRAY(Double, dimensions=1), nullable=False),
    Column("queue_s", ARRAY(Double, dimensions=2), nullable=False),
    Column("execution_s", ARRAY(Double, dimensions=2), nullable=False),
    Column("units", ARRAY(SmallInteger, dimensions=2), nullable=False),
    Column("overhead_s", ARRAY(Double, dimensions=1), nullable=False),
)

PLANS = Table(
    "plans",
    METADATA,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("decided_at", UnixSeconds, nullable=False),
    Column("pool", Text, nullable=False),
    Column("previous", Integer),
    Column("target", Integer, nullable=False),
    Column("reason", JSONB, nullable=False),
    Index("plans_decided_at_idx", "decided_at"),
    Index("plans_pool_idx", "pool", "id"),
)

ANSWERS = Table(
    "answers",
    METADATA,
    Column("action", Text, primary_key=True),
    Column("batch", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("ms", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("answer", LargeBinary, nullable=False),
    Column("expires_at", UnixSeconds, nullable=False),
    Index("answers_batch_idx", "batch", "ms", "seq", postgresql_where=text("batch <> ''")),
    Index("answers_expires_at_idx", "expires_at"),
)

TOKEN_TRAJECTORIES = Table(
    "token_trajectories",
    METADATA,
    Column("trajectory", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("expires_at", UnixSeconds, nullable=False),
    Index("token_trajectories_expires_at_idx", "expires_at"),
)

TOKEN_CALLS = Table(
    "token_calls",
    METADATA,
    Column("trajectory", Text, ForeignKey("token_trajectories.trajectory", ondelete="CASCADE"), primary_key=True),
    Column("serial", Integer, primary_key=True),
    Column("call", Text, nullable=False),
    Column("extends", Integer),
    Column("kept", Integer, nullable=False),
    Column("prompt", ARRAY(Integer, dimensions=1), nullable=False),
    Column("output", ARRAY(Integer, dimensions=1), nullable=False),
    Column("logprobs", ARRAY(REAL, dimensions=1)),
    Column("details", JSONB, nullable=False),
    Column("head_length", Integer),
    Column("head_digest", LargeBinary),
    Column("created_at", UnixSeconds, nullable=False),
    ForeignKeyConstraint(
        ["trajectory", "extends"],
        ["token_calls.trajectory", "token_calls.serial"],
        name="token_calls_extends_fkey",
        ondelete="CASCADE",
    ),
    CheckConstraint("extends < serial", name="extends"),
)
