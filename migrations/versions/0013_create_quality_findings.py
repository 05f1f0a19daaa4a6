"""Create the record of data quality: what was wrong with which source of metrics, from when until when."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

READER = "rhodeck_reader"


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "quality_finding",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("engine", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("metric", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("affects", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.CheckConstraint(
            "scope IN ('node', 'gateway', 'controller')", name=op.f("ck_quality_finding_scope")
        ),
        sa.CheckConstraint(
            "severity IN ('fault', 'warning', 'note')", name=op.f("ck_quality_finding_severity")
        ),
        sa.CheckConstraint("until IS NULL OR until >= since", name=op.f("ck_quality_finding_order")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_quality_finding")),
    )
    op.create_index(
        "uq_quality_finding_open",
        "quality_finding",
        ["scope", "source", "engine", "metric", "kind"],
        unique=True,
        postgresql_where=sa.text("until IS NULL"),
    )
    op.create_index("ix_quality_finding_source_since", "quality_finding", ["scope", "source", "since"])
    op.create_index("ix_quality_finding_until", "quality_finding", ["until"])
    op.execute(
        f"""
        DO $$ BEGIN
            IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{READER}') THEN
                GRANT SELECT ON quality_finding TO {READER};
            END IF;
        END $$
        """
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_table("quality_finding")
