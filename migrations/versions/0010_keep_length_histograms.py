"""Keep how long prompts, answers and steps were: long contexts among short requests are told by lengths."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

PREFIXES = ("prompt_len", "output_len", "step")


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for prefix in PREFIXES:
        op.add_column("sample", sa.Column(f"{prefix}_edges", sa.SmallInteger(), nullable=True))
        op.add_column("sample", sa.Column(f"{prefix}_counts", sa.ARRAY(sa.BigInteger()), nullable=True))
        op.add_column("sample", sa.Column(f"{prefix}_sum_tokens", sa.Double(), nullable=True))


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for prefix in PREFIXES:
        for suffix in ("edges", "counts", "sum_tokens"):
            op.drop_column("sample", f"{prefix}_{suffix}")
