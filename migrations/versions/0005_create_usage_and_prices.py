"""Create use and money: usage records, quarter-hours, cursors, node time, prices."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "usage_record",
        sa.Column("gateway", sa.Text(), nullable=False),
        sa.Column("spool", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("tier", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=True),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("exact", sa.Boolean(), nullable=False),
        sa.Column("reserved_tokens", sa.BigInteger(), nullable=False),
        sa.Column("queued_s", sa.Double(), nullable=False),
        sa.Column("ttft_s", sa.Double(), nullable=True),
        sa.Column("engine_s", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("gateway", "spool", "seq", name=op.f("pk_usage_record")),
    )
    op.create_index("ix_usage_record_finished_at", "usage_record", ["finished_at"], unique=False)
    op.create_table(
        "usage_quarter",
        sa.Column("quarter", sa.DateTime(timezone=True), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("tier", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("engine_s", sa.Numeric(precision=20, scale=6), nullable=False),
        sa.PrimaryKeyConstraint(
            "quarter", "tenant", "tier", "model", "pool", name=op.f("pk_usage_quarter")
        ),
    )
    op.create_table(
        "usage_cursor",
        sa.Column("gateway", sa.Text(), nullable=False),
        sa.Column("spool", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("acked_seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("gateway", "spool", name=op.f("pk_usage_cursor")),
    )
    op.create_table(
        "node_quarter",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("quarter", sa.DateTime(timezone=True), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("price_class", sa.Text(), nullable=False),
        sa.Column("up_s", sa.Numeric(precision=20, scale=6), nullable=False),
        sa.Column("last_seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("node", "quarter", name=op.f("pk_node_quarter")),
    )
    op.create_index("ix_node_quarter_quarter", "node_quarter", ["quarter"], unique=False)
    op.create_table(
        "price",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("price_class", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=True),
        sa.Column("usd_per_node_hour", sa.Numeric(precision=20, scale=6), nullable=False),
        sa.Column("effective_from", sa.DateTime(timezone=True), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "price_class IN ('on_demand', 'reserved', 'spot')", name=op.f("ck_price_price_class")
        ),
        sa.CheckConstraint("usd_per_node_hour >= 0", name=op.f("ck_price_not_negative")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_price")),
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_table("price")
    op.drop_table("node_quarter")
    op.drop_table("usage_cursor")
    op.drop_table("usage_quarter")
    op.drop_table("usage_record")
