"""Refuse lines that are added to a closed month."""

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    # Closing writes the month with its number of rows and then lines 1 to that number: no number is left.
    op.execute(
        """
        CREATE FUNCTION refuse_added_line() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NOT EXISTS (
                SELECT FROM month_close c
                WHERE c.month = NEW.month AND NEW.number BETWEEN 1 AND c.rows
            ) THEN
                RAISE EXCEPTION 'line % is not one of the lines month % was closed with',
                    NEW.number, NEW.month USING ERRCODE = 'restrict_violation';
            END IF;
            RETURN NEW;
        END $$
        """
    )
    op.execute(
        "CREATE TRIGGER whole_when_closed BEFORE INSERT ON month_line "
        "FOR EACH ROW EXECUTE FUNCTION refuse_added_line()"
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP TRIGGER whole_when_closed ON month_line")
    op.execute("DROP FUNCTION refuse_added_line()")
