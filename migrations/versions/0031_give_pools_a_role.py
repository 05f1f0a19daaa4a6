"""Say which pools serve one phase of each request only."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.add_column("pool", sa.Column("role", sa.Text(), nullable=True))
    op.create_check_constraint(op.f("ck_pool_role"), "pool", "role IN ('prefill', 'decode')")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_column("pool", "role")
