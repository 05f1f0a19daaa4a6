"""Find restarts of engines without reading every sample: charts mark them."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_index("ix_sample_restarted", "sample", ["at"], postgresql_where=sa.text("restarted"))


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_index("ix_sample_restarted", table_name="sample")
