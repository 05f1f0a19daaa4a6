"""Create what there is: pools, nodes, gateways."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "pool",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("models", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("max_num_seqs", sa.BigInteger(), nullable=True),
        sa.Column("max_num_batched_tokens", sa.BigInteger(), nullable=True),
        sa.Column("scheduling_policy", sa.Text(), nullable=True),
        sa.Column("chunked_prefill", sa.Boolean(), nullable=True),
        sa.Column("configured_service_rate", sa.Double(), nullable=True),
        sa.Column("configured_source", sa.Text(), nullable=True),
        sa.Column("configured_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_pool")),
    )
    op.create_table(
        "node",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("base_url", sa.Text(), nullable=False),
        sa.Column("metrics_path", sa.Text(), server_default="/metrics", nullable=False),
        sa.Column("price_class", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("removed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "price_class IN ('on_demand', 'reserved', 'spot')", name=op.f("ck_node_price_class")
        ),
        sa.CheckConstraint(
            "state IN ('active', 'draining', 'maintenance', 'removed')", name=op.f("ck_node_state")
        ),
        sa.ForeignKeyConstraint(["pool"], ["pool.name"], name=op.f("fk_node_pool_pool")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_node")),
    )
    op.create_table(
        "gateway",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("base_url", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("removed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("state IN ('active', 'removed')", name=op.f("ck_gateway_state")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_gateway")),
        sa.UniqueConstraint("base_url", name=op.f("uq_gateway_base_url")),
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_table("gateway")
    op.drop_table("node")
    op.drop_table("pool")
