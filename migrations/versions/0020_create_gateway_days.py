"""Create gateways' rollups by the day, and count in all of them for how long tokens were counted."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

KEYS = ("gateway", "tenant", "tier")
INCREMENTS = ("offered", "dispatched", "repeated", "prompt_tokens", "output_tokens")
GAUGES = ("queued_requests", "in_flight_requests", "in_flight_tokens")
HISTOGRAMS = ("queue_wait", "ttft")


def _count(name: str) -> sa.Column:
    return sa.Column(name, sa.BigInteger(), nullable=True)


def _real(name: str) -> sa.Column:
    return sa.Column(name, sa.Double(), nullable=True)


def _gauge(name: str) -> list[sa.Column]:
    return [
        _real(f"{name}_sum"),
        _count(f"{name}_n"),
        *(_real(f"{name}_{part}") for part in ("min", "max", "last")),
    ]


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for table in ("gateway_minute", "gateway_hour"):
        op.add_column(table, _real("counted_s"))
    op.create_table(
        "gateway_day",
        *(sa.Column(key, sa.Text(), nullable=False) for key in KEYS),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("variant", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("last_at", sa.DateTime(timezone=True), nullable=False),
        *(sa.Column(f"{prefix}_edges", sa.SmallInteger(), nullable=True) for prefix in HISTOGRAMS),
        _count("rounds"),
        _real("covered_s"),
        _real("counted_s"),
        *(column for name in INCREMENTS for column in (_count(name), _real(f"{name}_unseen_s"))),
        sa.Column("outcomes", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        *(column for name in GAUGES for column in _gauge(name)),
        *(
            column
            for prefix in HISTOGRAMS
            for column in (
                sa.Column(f"{prefix}_counts", postgresql.ARRAY(sa.BigInteger()), nullable=True),
                _real(f"{prefix}_sum_s"),
            )
        ),
        sa.PrimaryKeyConstraint(*KEYS, "at", "variant", name=op.f("pk_gateway_day")),
        postgresql_partition_by="RANGE (at)",
    )
    op.create_index("ix_gateway_day_at_brin", "gateway_day", ["at"], postgresql_using="brin")
    # Hours there are already become days too.
    op.execute(
        "INSERT INTO rollup_due (level, at, not_before) "
        "SELECT DISTINCT 'day', date_bin('1 day', at, 'epoch'), "
        "date_bin('1 day', at, 'epoch') + interval '25 hours 5 minutes' FROM gateway_hour"
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DELETE FROM rollup_due WHERE level = 'day'")
    op.drop_table("gateway_day")
    for table in ("gateway_hour", "gateway_minute"):
        op.drop_column(table, "counted_s")
