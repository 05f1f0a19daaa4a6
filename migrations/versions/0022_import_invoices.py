"""Create providers' invoices: how files are read, imports and their lines."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

READER = "rhodeck_reader"
APPEND_ONLY = ("invoice", "invoice_line")


def text(*names: str) -> list[sa.Column]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]


def document(name: str) -> sa.Column:
    return sa.Column(name, postgresql.JSONB(astext_type=sa.Text()), nullable=False)


def at(name: str) -> sa.Column:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=False)


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "invoice_mapping",
        *text("provider"),
        document("mapping"),
        at("updated_at"),
        *text("updated_by"),
        sa.PrimaryKeyConstraint("provider", name=op.f("pk_invoice_mapping")),
    )
    op.create_table(
        "invoice",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        *text("provider", "month", "sha256"),
        document("mapping"),
        *text("file_name"),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        *text("currency"),
        sa.Column("amount", sa.Numeric(), nullable=False),
        sa.Column("usd_per_unit", sa.Numeric(precision=20, scale=10), nullable=False),
        *text("rate_source"),
        sa.Column("replaces", sa.BigInteger(), nullable=True),
        *text("note"),
        at("imported_at"),
        *text("imported_by"),
        sa.CheckConstraint("usd_per_unit > 0", name=op.f("ck_invoice_rate")),
        sa.ForeignKeyConstraint(["replaces"], ["invoice.id"], name=op.f("fk_invoice_replaces_invoice")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_invoice")),
    )
    op.create_index("ix_invoice_month_provider", "invoice", ["month", "provider", "id"])
    op.create_table(
        "invoice_line",
        sa.Column("invoice", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("day", sa.Date(), nullable=True),
        *text("label", "description"),
        sa.Column("hours", sa.Numeric(), nullable=True),
        sa.Column("price", sa.Numeric(), nullable=True),
        sa.Column("amount", sa.Numeric(), nullable=False),
        sa.ForeignKeyConstraint(["invoice"], ["invoice.id"], name=op.f("fk_invoice_line_invoice_invoice")),
        sa.PrimaryKeyConstraint("invoice", "number", name=op.f("pk_invoice_line")),
    )
    for table in APPEND_ONLY:
        op.execute(
            f"CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION refuse_change()"
        )
        op.execute(
            f"CREATE TRIGGER append_only_truncate BEFORE TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
    op.execute(
        f"""
        DO $$ BEGIN
            IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{READER}') THEN
                GRANT SELECT ON invoice_mapping, invoice, invoice_line TO {READER};
            END IF;
        END $$
        """
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for table in ("invoice_line", "invoice", "invoice_mapping"):
        op.drop_table(table)
