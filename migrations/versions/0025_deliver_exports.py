"""Create scheduled exports: destinations and what became of each file."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

READER = "rhodeck_reader"


def text(name: str, *, nullable: bool = False) -> sa.Column:
    return sa.Column(name, sa.Text(), nullable=nullable)


def at(name: str, *, nullable: bool = False) -> sa.Column:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "export_destination",
        text("name"),
        text("kind"),
        text("place"),
        text("bucket", nullable=True),
        text("prefix"),
        text("region", nullable=True),
        text("access_key", nullable=True),
        text("secret", nullable=True),
        sa.Column("files", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("is_daily", sa.Boolean(), nullable=False),
        text("from_month"),
        at("created_at"),
        text("created_by"),
        at("removed_at", nullable=True),
        sa.CheckConstraint("kind IN ('folder', 's3')", name=op.f("ck_export_destination_kind")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_export_destination")),
    )
    op.create_table(
        "export_delivery",
        text("destination"),
        text("what"),
        text("state"),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        at("next_at"),
        at("wanted_at"),
        at("delivered_at", nullable=True),
        text("file_name", nullable=True),
        text("sha256", nullable=True),
        sa.Column("rows", sa.BigInteger(), nullable=True),
        text("error", nullable=True),
        sa.CheckConstraint(
            "state IN ('pending', 'delivered', 'given_up')", name=op.f("ck_export_delivery_state")
        ),
        sa.ForeignKeyConstraint(
            ["destination"],
            ["export_destination.name"],
            name=op.f("fk_export_delivery_destination_export_destination"),
        ),
        sa.PrimaryKeyConstraint("destination", "what", name=op.f("pk_export_delivery")),
    )
    op.execute(
        f"""
        DO $$ BEGIN
            IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{READER}') THEN
                GRANT SELECT ON export_destination, export_delivery TO {READER};
            END IF;
        END $$
        """
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_table("export_delivery")
    op.drop_table("export_destination")
