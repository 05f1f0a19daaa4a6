"""Create the Prometheus-compatible servers samples may come from, and the progress of back-fills."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

AT = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "prom_source",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("instance_label", sa.Text(), nullable=False),
        sa.Column("matchers", sa.Text(), nullable=False),
        sa.Column("token_file", sa.Text()),
        sa.Column("basic_file", sa.Text()),
        sa.Column("ca_file", sa.Text()),
        sa.Column("tenant", sa.Text()),
        sa.Column("created_at", AT, nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_prom_source")),
    )
    op.create_table(
        "node_source",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("instance", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("node", name=op.f("pk_node_source")),
        sa.ForeignKeyConstraint(["node"], ["node.name"], name=op.f("fk_node_source_node_node")),
        sa.ForeignKeyConstraint(
            ["source"], ["prom_source.name"], name=op.f("fk_node_source_source_prom_source")
        ),
    )
    op.create_table(
        "prom_backfill",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("since", AT, nullable=False),
        sa.Column("until", AT, nullable=False),
        sa.Column("done_until", AT, nullable=False),
        sa.Column("period_s", sa.Double(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("created_at", AT, nullable=False),
        sa.Column("updated_at", AT, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_prom_backfill")),
        sa.CheckConstraint("since < until AND done_until <= until", name=op.f("ck_prom_backfill_range")),
    )


def downgrade() -> None:
    for table in ("prom_backfill", "node_source", "prom_source"):
        op.drop_table(table)
