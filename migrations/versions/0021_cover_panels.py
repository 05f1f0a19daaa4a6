"""Let panels of many nodes be read from an index: a wide row has 1.6 KB, a panel wants 90 bytes of it."""

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

COVERED = [
    "engine",
    "covered_s",
    "running",
    "waiting",
    "kv_used_ratio",
    "arrivals",
    "completed",
    "prompt_tokens",
    "generation_tokens",
    "preemptions",
]


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_index("ix_sample_node_at", table_name="sample")
    op.create_index("ix_sample_node_at", "sample", ["node", "at"], postgresql_include=COVERED)


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_index("ix_sample_node_at", table_name="sample")
    op.create_index("ix_sample_node_at", "sample", ["node", "at"])
