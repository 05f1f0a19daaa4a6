"""Refuse TRUNCATE of the books: no trigger on rows sees it, so nothing would keep what closed months lost."""

from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

#: Books whose rows may change, one by one and on the record.
BOOKS = ("node_quarter", "usage_quarter", "usage_cursor")


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        """
        CREATE FUNCTION refuse_to_empty() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION '% is a book that months are closed from: TRUNCATE refused', TG_TABLE_NAME
                USING ERRCODE = 'restrict_violation', HINT = 'Correct it with `rhodeck months node-time`';
        END $$
        """
    )
    for table in BOOKS:
        op.execute(
            f"CREATE TRIGGER not_emptied BEFORE TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_to_empty()"
        )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for table in BOOKS:
        op.execute(f"DROP TRIGGER not_emptied ON {table}")
    op.execute("DROP FUNCTION refuse_to_empty()")
