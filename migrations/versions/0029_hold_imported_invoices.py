"""Refuse lines that are added to an invoice after it was imported."""

from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    # Lines come in the transaction that writes their invoice, at once with it: later ones have no place.
    op.execute(
        """
        CREATE FUNCTION refuse_added_invoice_line() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF EXISTS (
                SELECT FROM invoice i
                WHERE i.id = NEW.invoice AND i.xmin <> pg_current_xact_id()::xid
            ) THEN
                RAISE EXCEPTION 'invoice % has all the lines it was imported with', NEW.invoice
                    USING ERRCODE = 'restrict_violation', HINT = 'Import the corrected file';
            END IF;
            RETURN NEW;
        END $$
        """
    )
    op.execute(
        "CREATE TRIGGER whole_when_imported BEFORE INSERT ON invoice_line "
        "FOR EACH ROW EXECUTE FUNCTION refuse_added_invoice_line()"
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP TRIGGER whole_when_imported ON invoice_line")
    op.execute("DROP FUNCTION refuse_added_invoice_line()")
