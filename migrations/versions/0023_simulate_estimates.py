"""Create traffic of estimates, simulations of every request, their snapshots."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

READER = "rhodeck_reader"
TABLES = ("estimate_trace", "estimate_run", "estimate_snapshot")


def text(*names: str) -> list[sa.Column]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]


def count(name: str, default: str | None = None, *, nullable: bool = False) -> sa.Column:
    server = None if default is None else sa.text(default)
    return sa.Column(name, sa.BigInteger(), server_default=server, nullable=nullable)


def at(name: str, *, nullable: bool = False) -> sa.Column:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def real(name: str, *, nullable: bool = False) -> sa.Column:
    return sa.Column(name, sa.Double(), nullable=nullable)


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "estimate_trace",
        *text("sha256", "name", "source"),
        count("bins"),
        sa.Column("rates", sa.LargeBinary(), nullable=False),
        real("tokens_in", nullable=True),
        real("tokens_out", nullable=True),
        count("requests", nullable=True),
        real("filled_share"),
        at("created_at"),
        *text("created_by"),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_estimate_trace")),
    )
    op.create_table(
        "estimate_run",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        *text("sha256", "strategy"),
        sa.Column("spec", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        *text("state"),
        count("days_done", "0"),
        count("days"),
        sa.Column(
            "months",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.Column("error", sa.Text(), server_default=sa.text("''"), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        count("attempts", "0"),
        sa.Column("worker", sa.Text(), nullable=True),
        at("beat_at", nullable=True),
        at("created_at"),
        *text("created_by"),
        at("started_at", nullable=True),
        at("finished_at", nullable=True),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'done', 'cancelled', 'failed')",
            name=op.f("ck_estimate_run_state"),
        ),
        sa.CheckConstraint(
            "(state = 'running') = (worker IS NOT NULL)", name=op.f("ck_estimate_run_worker")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_estimate_run")),
    )
    op.create_index(
        "uq_estimate_run_sha256_live",
        "estimate_run",
        ["sha256"],
        unique=True,
        postgresql_where=sa.text("state IN ('queued', 'running', 'done')"),
    )
    op.create_table(
        "estimate_snapshot",
        count("run"),
        count("seed"),
        count("days_done"),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        at("saved_at"),
        sa.ForeignKeyConstraint(
            ["run"],
            ["estimate_run.id"],
            name=op.f("fk_estimate_snapshot_run_estimate_run"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("run", name=op.f("pk_estimate_snapshot")),
    )
    op.execute(
        f"""
        DO $$ BEGIN
            IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{READER}') THEN
                GRANT SELECT ON {", ".join(TABLES)} TO {READER};
            END IF;
        END $$
        """
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for table in reversed(TABLES):
        op.drop_table(table)
