"""Create the minutes and the present state of flow; count prefill, decode and repeated requests in samples."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

READER = "rhodeck_reader"
SCOPES = "scope IN ('fleet', 'pool', 'tier')"
STAGES = ("prefill", "decode")


def real(name: str, *, nullable: bool = True) -> sa.Column:
    return sa.Column(name, sa.Double(), nullable=nullable)


def count(name: str) -> sa.Column:
    return sa.Column(name, sa.BigInteger(), nullable=True)


def subject() -> list[sa.Column]:
    return [
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
    ]


def state() -> list[sa.Column]:
    return [
        sa.Column("balance", sa.Text(), nullable=True),
        sa.Column("is_left", sa.Boolean(), nullable=True),
        real("p99_doubling_min"),
    ]


def document(name: str) -> sa.Column:
    return sa.Column(
        name, postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'{}'"), nullable=False
    )


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "flow_minute",
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        *subject(),
        real("length_s", nullable=False),
        real("covered_s", nullable=False),
        count("arrivals"),
        count("departures"),
        *map(real, ("mean_in_system", "time_mean_s", "p50_s", "p99_s", "ttft_p50_s", "ttft_p99_s")),
        *map(count, ("slo_offered", "slo_good_low", "slo_good_high")),
        *state(),
        document("stages"),
        sa.CheckConstraint(SCOPES, name=op.f("ck_flow_minute_scope")),
        sa.PrimaryKeyConstraint("at", "scope", "name", name=op.f("pk_flow_minute")),
    )
    op.create_index("ix_flow_minute_scope_name_at", "flow_minute", ["scope", "name", "at"])
    op.create_table(
        "flow_now",
        *subject(),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        *state(),
        sa.Column("minutes", sa.Integer(), nullable=False),
        document("detail"),
        sa.CheckConstraint(SCOPES, name=op.f("ck_flow_now_scope")),
        sa.PrimaryKeyConstraint("scope", "name", name=op.f("pk_flow_now")),
    )
    for stage in STAGES:
        op.add_column("sample", real(f"{stage}_sum_s"))
        op.add_column("sample", count(f"{stage}_count"))
    op.add_column("gateway_sample", count("repeated"))
    op.execute(
        f"""
        DO $$ BEGIN
            IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{READER}') THEN
                GRANT SELECT ON flow_minute, flow_now TO {READER};
            END IF;
        END $$
        """
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_column("gateway_sample", "repeated")
    for stage in STAGES:
        op.drop_column("sample", f"{stage}_count")
        op.drop_column("sample", f"{stage}_sum_s")
    op.drop_table("flow_now")
    op.drop_table("flow_minute")
