"""Create closed months with their lines and corrections, commitments and rules of allocation."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

READER = "rhodeck_reader"
APPEND_ONLY = ("month_close", "month_line", "month_correction", "commitment", "allocation_rule")
LINES = "kind IN ('usage', 'idle', 'burst', 'commitment', 'overhead', 'adjustment')"


def text(*names: str) -> list[sa.Column]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]


def count(*names: str) -> list[sa.Column]:
    return [sa.Column(name, sa.BigInteger(), nullable=False) for name in names]


def at(*names: str) -> list[sa.Column]:
    return [sa.Column(name, sa.DateTime(timezone=True), nullable=False) for name in names]


def number(*names: str) -> list[sa.Column]:
    return [sa.Column(name, sa.Numeric(precision=20, scale=6), nullable=False) for name in names]


def document(name: str) -> sa.Column:
    return sa.Column(name, postgresql.JSONB(astext_type=sa.Text()), nullable=False)


def cents() -> sa.Column:
    return sa.Column("amount_usd", sa.Numeric(precision=20, scale=2), nullable=False)


def numbered() -> sa.Column:
    return sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False)


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    create_months()
    create_rules()
    for table in APPEND_ONLY:
        op.execute(
            f"CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION refuse_change()"
        )
        op.execute(
            f"CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
    tables = ", ".join(("month_closing", *APPEND_ONLY))
    op.execute(
        f"""
        DO $$ BEGIN
            IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{READER}') THEN
                GRANT SELECT ON {tables} TO {READER};
            END IF;
        END $$
        """
    )


def create_months() -> None:
    op.create_table(
        "month_closing",
        *text("month"),
        *at("started_at"),
        *text("started_by"),
        sa.PrimaryKeyConstraint("month", name=op.f("pk_month_closing")),
    )
    op.create_table(
        "month_close",
        *text("month"),
        *count("number"),
        *text("zone"),
        *at("starts_at", "ends_at"),
        *text("method"),
        *count("rows"),
        *number("total_usd", "idle_usd", "node_hours"),
        *text("sha256", "signature", "key_id"),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        *map(document, ("basis", "watermark", "checklist")),
        *at("closed_at"),
        *text("closed_by", "note"),
        sa.PrimaryKeyConstraint("month", name=op.f("pk_month_close")),
        sa.UniqueConstraint("number", name=op.f("uq_month_close_number")),
    )
    op.create_table(
        "month_line",
        *text("month"),
        *count("number"),
        *text("kind", "tenant", "tier", "model", "pool"),
        *count("requests", "prompt_tokens", "output_tokens"),
        sa.Column("engine_s", sa.Numeric(), nullable=False),
        sa.Column("node_hours", sa.Numeric(), nullable=False),
        cents(),
        *text("adjusts", "note"),
        sa.CheckConstraint(LINES, name=op.f("ck_month_line_kind")),
        sa.ForeignKeyConstraint(
            ["month"], ["month_close.month"], name=op.f("fk_month_line_month_month_close")
        ),
        sa.PrimaryKeyConstraint("month", "number", name=op.f("pk_month_line")),
    )
    op.create_table(
        "month_correction",
        numbered(),
        *text("month", "tenant", "tier", "model", "pool"),
        cents(),
        *text("reason", "created_by"),
        *at("created_at"),
        sa.ForeignKeyConstraint(
            ["month"], ["month_close.month"], name=op.f("fk_month_correction_month_month_close")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_month_correction")),
    )


def create_rules() -> None:
    op.create_table(
        "commitment",
        numbered(),
        *text("kind"),
        sa.Column("pool", sa.Text(), nullable=True),
        *count("nodes"),
        *number("usd_per_hour", "upfront_usd"),
        *at("starts_at", "ends_at"),
        *text("source", "created_by"),
        *at("created_at"),
        sa.CheckConstraint("kind IN ('nodes', 'platform')", name=op.f("ck_commitment_kind")),
        sa.CheckConstraint("ends_at > starts_at", name=op.f("ck_commitment_order")),
        sa.CheckConstraint("(kind = 'nodes') = (pool IS NOT NULL)", name=op.f("ck_commitment_pool")),
        sa.CheckConstraint(
            "nodes > 0 AND usd_per_hour >= 0 AND upfront_usd >= 0", name=op.f("ck_commitment_amounts")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_commitment")),
    )
    op.create_table(
        "allocation_rule",
        numbered(),
        *text("from_month", "basis", "share"),
        *number("output_weight"),
        *text("reason", "created_by"),
        *at("created_at"),
        sa.CheckConstraint(
            "basis IN ('engine_seconds', 'tokens', 'kv_token_seconds')",
            name=op.f("ck_allocation_rule_basis"),
        ),
        sa.CheckConstraint(
            "share IN ('apart', 'proportional', 'even')", name=op.f("ck_allocation_rule_share")
        ),
        sa.CheckConstraint("output_weight > 0", name=op.f("ck_allocation_rule_output_weight")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_allocation_rule")),
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for table in ("month_correction", "month_line", "month_close", "month_closing"):
        op.drop_table(table)
    op.drop_table("allocation_rule")
    op.drop_table("commitment")
