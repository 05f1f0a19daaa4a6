"""Refuse dates of prices and commitments that no report could show: years 2000 to 2199."""

from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

COLUMNS = {"price": ("effective_from",), "commitment": ("starts_at", "ends_at")}


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for table, columns in COLUMNS.items():
        within = " AND ".join(
            f"{column} >= '2000-01-01T00:00Z' AND {column} < '2200-01-01T00:00Z'" for column in columns
        )
        # Both tables are append-only: where an older release let such a row in, it stays, and no check comes.
        op.execute(
            f"""
            DO $$ BEGIN
                IF NOT EXISTS (SELECT FROM {table} WHERE NOT ({within})) THEN
                    ALTER TABLE {table} ADD CONSTRAINT ck_{table}_dates CHECK ({within});
                END IF;
            END $$
            """
        )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for table in COLUMNS:
        op.execute(f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS ck_{table}_dates")
