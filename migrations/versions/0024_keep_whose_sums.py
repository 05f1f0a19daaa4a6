"""Keep whose sums a sample counts in: a node moves, and rests, and its past stays where it was."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

TABLES = ("sample", "engine_minute", "engine_hour")


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for table in TABLES:
        op.add_column(table, sa.Column("counted_in", sa.Text(), nullable=True))


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for table in TABLES:
        op.drop_column(table, "counted_in")
