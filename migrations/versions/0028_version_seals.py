"""Say of each closed month what its signature is about: months sealed before are version 1."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column(
        "month_close", sa.Column("seal_version", sa.BigInteger(), server_default="1", nullable=False)
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_column("month_close", "seal_version")
