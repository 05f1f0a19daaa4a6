"""Create verdicts: health, capacity estimates, alerts and their timers."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "health",
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("rho", sa.Double(), nullable=True),
        sa.Column("rho_low", sa.Double(), nullable=True),
        sa.Column("rho_high", sa.Double(), nullable=True),
        sa.Column("grade", sa.Text(), nullable=True),
        sa.Column("method", sa.Text(), nullable=True),
        sa.Column("binding", sa.Text(), nullable=True),
        sa.Column("service_rate", sa.Double(), nullable=True),
        sa.Column("service_rate_low", sa.Double(), nullable=True),
        sa.Column("service_rate_high", sa.Double(), nullable=True),
        sa.Column("output_tokens_rate", sa.Double(), nullable=True),
        sa.Column("arrival_rate", sa.Double(), nullable=True),
        sa.Column("throughput", sa.Double(), nullable=True),
        sa.Column("flow_balance", sa.Double(), nullable=True),
        sa.Column("flow_balance_z", sa.Double(), nullable=True),
        sa.Column("saturated", sa.Boolean(), nullable=True),
        sa.Column("headroom_rps", sa.Double(), nullable=True),
        sa.Column("running", sa.Integer(), nullable=True),
        sa.Column("waiting", sa.Integer(), nullable=True),
        sa.Column("kv_used_ratio", sa.Double(), nullable=True),
        sa.Column("partial", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column(
            "detail",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.CheckConstraint("scope IN ('fleet', 'pool', 'node')", name=op.f("ck_health_scope")),
        sa.PrimaryKeyConstraint("at", "scope", "name", name=op.f("pk_health")),
    )
    op.create_index("ix_health_scope_name_at", "health", ["scope", "name", "at"], unique=False)
    op.create_table(
        "capacity_estimate",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("engine", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("service_rate", sa.Double(), nullable=True),
        sa.Column("service_rate_low", sa.Double(), nullable=True),
        sa.Column("service_rate_high", sa.Double(), nullable=True),
        sa.Column("grade", sa.Text(), nullable=False),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("binding", sa.Text(), nullable=True),
        sa.Column("reach_ratio", sa.Double(), nullable=True),
        sa.Column(
            "detail",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("node", "engine", name=op.f("pk_capacity_estimate")),
    )
    op.create_table(
        "alert",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("acknowledged_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("acknowledged_by", sa.Text(), nullable=True),
        sa.Column("resolved_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("threshold", sa.Double(), nullable=True),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column(
            "detail",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "state IN ('open', 'stale', 'acknowledged', 'resolved')", name=op.f("ck_alert_state")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alert")),
    )
    op.create_index(
        "uq_alert_unresolved",
        "alert",
        ["rule", "scope", "subject"],
        unique=True,
        postgresql_where=sa.text("state <> 'resolved'"),
    )
    op.create_table(
        "alert_timer",
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("machine", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("rule", "scope", "subject", name=op.f("pk_alert_timer")),
    )
    for table in ("capacity_estimate", "alert_timer"):
        op.execute(f"ALTER TABLE {table} SET (fillfactor = 50)")  # updated in place every round


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_table("alert_timer")
    op.drop_table("alert")
    op.drop_table("capacity_estimate")
    op.drop_table("health")
