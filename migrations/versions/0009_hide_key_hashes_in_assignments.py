"""Hide assignments' documents from the dashboard's reading role: they carry the hashes of tenants' keys."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

READER = "rhodeck_reader"
VISIBLE = "gateway, generation, revision, digest, updated_at"


def if_reader_exists(statements: str) -> str:
    """Roles belong to the whole server, and we may not have been allowed to make this one."""
    return f"""
        DO $$ BEGIN
            IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{READER}') THEN {statements} END IF;
        END $$
        """


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        if_reader_exists(
            f"REVOKE SELECT ON assignment FROM {READER}; GRANT SELECT ({VISIBLE}) ON assignment TO {READER};"
        )
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        if_reader_exists(
            f"REVOKE SELECT ({VISIBLE}) ON assignment FROM {READER}; GRANT SELECT ON assignment TO {READER};"
        )
    )
