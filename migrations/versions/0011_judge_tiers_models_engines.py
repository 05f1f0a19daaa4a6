"""Let verdicts be about tiers, models and single engines too."""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

BEFORE = "scope IN ('fleet', 'pool', 'node')"
AFTER = "scope IN ('fleet', 'pool', 'node', 'engine', 'model', 'tier')"


def _swap(condition: str) -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_constraint(op.f("ck_health_scope"), "health", type_="check")
    op.create_check_constraint(op.f("ck_health_scope"), "health", condition)


def upgrade() -> None:
    _swap(AFTER)


def downgrade() -> None:
    op.execute("DELETE FROM health WHERE scope NOT IN ('fleet', 'pool', 'node')")
    _swap(BEFORE)
