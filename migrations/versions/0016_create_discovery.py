"""Create discovery sources, further pages of nodes, and GPUs."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

READER = "rhodeck_reader"
TABLES = ("node_endpoint", "endpoint_seen", "gpu", "gpu_sample", "discovery_source", "discovered_node")


def time(name: str, *, nullable: bool = False) -> sa.Column:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def text(name: str, *, nullable: bool = False, default: str | None = None) -> sa.Column:
    return sa.Column(
        name, sa.Text(), nullable=nullable, server_default=None if default is None else sa.text(default)
    )


def number(name: str) -> sa.Column:
    return sa.Column(name, sa.Double(), nullable=True)


def create_pages() -> None:
    op.create_table(
        "node_endpoint",
        text("node"),
        text("url"),
        text("kind"),
        text("host", nullable=True),
        sa.Column("gpus", postgresql.ARRAY(sa.Text()), nullable=True),
        text("source", nullable=True),
        time("created_at"),
        sa.CheckConstraint("kind IN ('engine', 'gpu')", name=op.f("ck_node_endpoint_kind")),
        sa.ForeignKeyConstraint(["node"], ["node.name"], name=op.f("fk_node_endpoint_node_node")),
        sa.PrimaryKeyConstraint("node", "url", name=op.f("pk_node_endpoint")),
    )
    op.create_table(
        "endpoint_seen",
        text("node"),
        text("url"),
        text("kind"),
        text("dialect", nullable=True),
        time("tried_at"),
        time("seen_at", nullable=True),
        text("reason", nullable=True),
        text("detail", default="''"),
        sa.Column(
            "not_exported", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False
        ),
        sa.PrimaryKeyConstraint("node", "url", name=op.f("pk_endpoint_seen")),
    )


def create_gpus() -> None:
    op.create_table(
        "gpu",
        text("node"),
        text("uuid"),
        sa.Column("slot", sa.SmallInteger(), nullable=False),
        text("label", default="''"),
        text("model", default="''"),
        text("host", default="''"),
        time("seen_at"),
        number("used_ratio"),
        number("tensor_ratio"),
        number("power_w"),
        number("memory_used_bytes"),
        number("memory_total_bytes"),
        number("temperature_c"),
        sa.Column("row_remap_failed", sa.Boolean(), nullable=True),
        sa.Column("xid", sa.Integer(), nullable=True),
        time("xid_at", nullable=True),
        sa.PrimaryKeyConstraint("node", "uuid", name=op.f("pk_gpu")),
    )
    op.create_index("uq_gpu_node_slot", "gpu", ["node", "slot"], unique=True)
    op.create_table(
        "gpu_sample",
        time("at"),
        text("node"),
        sa.Column("used_ratio", postgresql.ARRAY(sa.REAL()), nullable=False),
        sa.Column("power_w", postgresql.ARRAY(sa.REAL()), nullable=False),
        sa.Column("memory_used_ratio", postgresql.ARRAY(sa.REAL()), nullable=False),
        sa.Column("temperature_c", postgresql.ARRAY(sa.REAL()), nullable=False),
        sa.PrimaryKeyConstraint("at", "node", name=op.f("pk_gpu_sample")),
    )
    op.create_index("ix_gpu_sample_node_at", "gpu_sample", ["node", "at"])


def create_sources() -> None:
    op.create_table(
        "discovery_source",
        text("name"),
        text("kind"),
        sa.Column("settings", postgresql.JSONB(), nullable=False),
        text("pool"),
        text("name_rule"),
        text("price_class"),
        text("scheme"),
        text("metrics_path"),
        sa.Column("gpu_port", sa.Integer(), nullable=True),
        sa.Column("interval_s", sa.Double(), nullable=False),
        sa.Column("grace_s", sa.Double(), nullable=False),
        text("state"),
        time("created_at"),
        time("tried_at", nullable=True),
        time("answered_at", nullable=True),
        sa.Column("found", sa.Integer(), nullable=True),
        text("problem", default="''"),
        sa.Column("remarks", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False),
        sa.CheckConstraint("state IN ('active', 'paused')", name=op.f("ck_discovery_source_state")),
        sa.CheckConstraint("scheme IN ('http', 'https')", name=op.f("ck_discovery_source_scheme")),
        sa.CheckConstraint(
            "price_class IN ('on_demand', 'reserved', 'spot')", name=op.f("ck_discovery_source_price_class")
        ),
        sa.CheckConstraint("interval_s > 0 AND grace_s >= 0", name=op.f("ck_discovery_source_times")),
        sa.ForeignKeyConstraint(["pool"], ["pool.name"], name=op.f("fk_discovery_source_pool_pool")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_discovery_source")),
    )
    op.create_table(
        "discovered_node",
        text("node"),
        text("source"),
        sa.Column("labels", postgresql.JSONB(), server_default=sa.text("'{}'"), nullable=False),
        time("first_seen_at"),
        time("seen_at"),
        time("missing_since", nullable=True),
        sa.ForeignKeyConstraint(
            ["source"], ["discovery_source.name"], name=op.f("fk_discovered_node_source_discovery_source")
        ),
        sa.PrimaryKeyConstraint("node", name=op.f("pk_discovered_node")),
    )


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    create_pages()
    create_gpus()
    create_sources()
    op.execute(
        f"""
        DO $$ BEGIN
            IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{READER}') THEN
                GRANT SELECT ON {", ".join(TABLES)} TO {READER};
            END IF;
        END $$
        """
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for table in reversed(TABLES):
        op.drop_table(table)
