"""What all tables share: naming convention, column types, and which tables are partitioned or append-only.

Times are timezone-aware UTC, durations seconds (`_s`), ratios 0..1, money `Numeric`. NULL means "the
source did not say". Prevents: two tables that spell the same kind of column differently.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import BigInteger, Boolean, DateTime, Double, MetaData, Numeric, Text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import DeclarativeBase

NAMING = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

#: Tables partitioned by day on `at`; partitions are made ahead and dropped by retention.
PARTITIONED = ("sample", "gateway_sample", "health")
#: Tables that a trigger keeps append-only.
APPEND_ONLY = (
    "policy_revision",
    "audit",
    "ack",
    "usage_record",
    "price",
    "month_close",
    "late_node_time",
    "month_line",
    "month_key",
    "month_correction",
    "commitment",
    "allocation_rule",
    "invoice",
    "invoice_line",
)


class Base(DeclarativeBase):
    """Declarative base: naming convention and column types."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012 # SQLAlchemy reads a plain class attribute
        datetime: DateTime(timezone=True),
        str: Text(),
        int: BigInteger(),
        float: Double[float](),
        Decimal: Numeric(20, 6),
        bool: Boolean(),
        dict[str, Any]: JSONB(),
        list[str]: ARRAY(Text()),
        list[int]: ARRAY(BigInteger()),
        list[float]: ARRAY(Double[float]()),
    }
