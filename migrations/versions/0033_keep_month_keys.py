"""Keep which key signs months, and what each new one found closed before it."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

READER = "rhodeck_reader"


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "month_key",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("replaces", sa.Text(), nullable=False),
        sa.Column("closed", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("signature", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_month_key")),
    )
    for name, events, each in (
        ("append_only", "UPDATE OR DELETE", "ROW"),
        ("append_only_truncate", "TRUNCATE", "STATEMENT"),
    ):
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {events} ON month_key "
            f"FOR EACH {each} EXECUTE FUNCTION refuse_change()"
        )
    op.execute(
        f"""
        DO $$ BEGIN
            IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{READER}') THEN
                GRANT SELECT ON month_key TO {READER};
            END IF;
        END $$
        """
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_table("month_key")
