"""Create what was observed: rounds, samples by day, failures, gateway series."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "histogram_edges",
        sa.Column("id", sa.SmallInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("edges", postgresql.ARRAY(sa.Double()), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_histogram_edges")),
        sa.UniqueConstraint("edges", name=op.f("uq_histogram_edges_edges")),
    )
    op.create_table(
        "round",
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("period_s", sa.Double(), nullable=False),
        sa.Column("duration_s", sa.Double(), nullable=False),
        sa.Column("lag_s", sa.Double(), nullable=False),
        sa.Column("nodes_total", sa.Integer(), nullable=False),
        sa.Column("nodes_sampled", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("at", name=op.f("pk_round")),
    )
    op.create_table(
        "scrape_failure",
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("fetch_s", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("at", "node", name=op.f("pk_scrape_failure")),
    )
    op.create_table(
        "sample",
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("engine", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("covered_s", sa.Double(), nullable=True),
        sa.Column("restarted", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("fetch_s", sa.Double(), nullable=True),
        sa.Column("arrivals", sa.BigInteger(), nullable=True),
        sa.Column("completed", sa.BigInteger(), nullable=True),
        sa.Column("errors", sa.BigInteger(), nullable=True),
        sa.Column("aborted", sa.BigInteger(), nullable=True),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=True),
        sa.Column("prompt_tokens_computed", sa.BigInteger(), nullable=True),
        sa.Column("generation_tokens", sa.BigInteger(), nullable=True),
        sa.Column("preemptions", sa.BigInteger(), nullable=True),
        sa.Column("prefix_cache_hits", sa.BigInteger(), nullable=True),
        sa.Column("prefix_cache_queries", sa.BigInteger(), nullable=True),
        sa.Column("running", sa.Integer(), nullable=True),
        sa.Column("waiting", sa.Integer(), nullable=True),
        sa.Column("waiting_capacity", sa.Integer(), nullable=True),
        sa.Column("kv_used_ratio", sa.Double(), nullable=True),
        sa.Column("kv_capacity_tokens", sa.BigInteger(), nullable=True),
        sa.Column("ttft_edges", sa.SmallInteger(), nullable=True),
        sa.Column("ttft_counts", postgresql.ARRAY(sa.BigInteger()), nullable=True),
        sa.Column("ttft_sum_s", sa.Double(), nullable=True),
        sa.Column("itl_edges", sa.SmallInteger(), nullable=True),
        sa.Column("itl_counts", postgresql.ARRAY(sa.BigInteger()), nullable=True),
        sa.Column("itl_sum_s", sa.Double(), nullable=True),
        sa.Column("queue_wait_edges", sa.SmallInteger(), nullable=True),
        sa.Column("queue_wait_counts", postgresql.ARRAY(sa.BigInteger()), nullable=True),
        sa.Column("queue_wait_sum_s", sa.Double(), nullable=True),
        sa.Column("e2e_edges", sa.SmallInteger(), nullable=True),
        sa.Column("e2e_counts", postgresql.ARRAY(sa.BigInteger()), nullable=True),
        sa.Column("e2e_sum_s", sa.Double(), nullable=True),
        sa.Column("inference_sum_s", sa.Double(), nullable=True),
        sa.Column("inference_count", sa.BigInteger(), nullable=True),
        sa.Column("flags", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.PrimaryKeyConstraint("at", "node", "engine", name=op.f("pk_sample")),
        postgresql_partition_by="RANGE (at)",
    )
    op.create_index("ix_sample_at_brin", "sample", ["at"], unique=False, postgresql_using="brin")
    op.create_index("ix_sample_node_at", "sample", ["node", "at"], unique=False)
    op.create_table(
        "gateway_sample",
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("gateway", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("tier", sa.Text(), nullable=False),
        sa.Column("covered_s", sa.Double(), nullable=True),
        sa.Column("offered", sa.BigInteger(), nullable=True),
        sa.Column("dispatched", sa.BigInteger(), nullable=True),
        sa.Column(
            "outcomes",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=True),
        sa.Column("output_tokens", sa.BigInteger(), nullable=True),
        sa.Column("queued_requests", sa.Integer(), nullable=True),
        sa.Column("in_flight_requests", sa.Integer(), nullable=True),
        sa.Column("in_flight_tokens", sa.BigInteger(), nullable=True),
        sa.Column("queue_wait_edges", sa.SmallInteger(), nullable=True),
        sa.Column("queue_wait_counts", postgresql.ARRAY(sa.BigInteger()), nullable=True),
        sa.Column("queue_wait_sum_s", sa.Double(), nullable=True),
        sa.Column("ttft_edges", sa.SmallInteger(), nullable=True),
        sa.Column("ttft_counts", postgresql.ARRAY(sa.BigInteger()), nullable=True),
        sa.Column("ttft_sum_s", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("at", "gateway", "tenant", "tier", name=op.f("pk_gateway_sample")),
        postgresql_partition_by="RANGE (at)",
    )
    op.create_index(
        "ix_gateway_sample_at_brin", "gateway_sample", ["at"], unique=False, postgresql_using="brin"
    )
    for table in ("sample", "gateway_sample"):
        # Rows land here only when no day partition was made ahead; that is alarmed, not lost.
        op.execute(f"CREATE TABLE {table}_default PARTITION OF {table} DEFAULT")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_table("gateway_sample")
    op.drop_table("sample")
    op.drop_table("scrape_failure")
    op.drop_table("round")
    op.drop_table("histogram_edges")
