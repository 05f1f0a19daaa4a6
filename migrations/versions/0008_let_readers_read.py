"""Give the dashboard's reading role SELECT on everything but secrets' hashes."""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

READER = "rhodeck_reader"
#: Tables with hashes of secrets, and the columns a reader may see.
VISIBLE = {
    "account": "name, role, disabled, created_at",
    "api_token": "id, name, scopes, created_by, created_at, expires_at, revoked_at, last_used_at",
    "tenant_key": "id, tenant, label, created_by, created_at, revoked_at",
    "sign_in": "account, created_at, seen_at, expires_at, revoked_at",
}


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    # Roles belong to the whole server: another database may have made it, or we may not be allowed to.
    op.execute(
        f"""
        DO $$ BEGIN
            CREATE ROLE {READER} NOLOGIN;
        EXCEPTION WHEN duplicate_object OR unique_violation OR insufficient_privilege THEN NULL;
        END $$
        """
    )
    hidden = "\n".join(
        f"REVOKE SELECT ON {table} FROM {READER}; GRANT SELECT ({columns}) ON {table} TO {READER};"
        for table, columns in VISIBLE.items()
    )
    op.execute(
        f"""
        DO $$ BEGIN
            IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{READER}') THEN
                GRANT USAGE ON SCHEMA public TO {READER};
                GRANT SELECT ON ALL TABLES IN SCHEMA public TO {READER};
                ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO {READER};
                {hidden}
            END IF;
        END $$
        """
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        f"""
        DO $$ BEGIN
            IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{READER}') THEN
                ALTER DEFAULT PRIVILEGES IN SCHEMA public REVOKE SELECT ON TABLES FROM {READER};
                REVOKE SELECT ON ALL TABLES IN SCHEMA public FROM {READER};
                REVOKE USAGE ON SCHEMA public FROM {READER};
            END IF;
        END $$
        """
    )
