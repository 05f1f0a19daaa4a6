"""Create intent and its arrival: revisions, audit, rollout, assignments, acks, lease."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "policy_revision",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("parent", sa.BigInteger(), nullable=True),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("document", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("restores", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "(number = 1 AND parent IS NULL) OR (number = parent + 1)",
            name=op.f("ck_policy_revision_chain"),
        ),
        sa.ForeignKeyConstraint(
            ["parent"], ["policy_revision.number"], name=op.f("fk_policy_revision_parent_policy_revision")
        ),
        sa.ForeignKeyConstraint(
            ["restores"],
            ["policy_revision.number"],
            name=op.f("fk_policy_revision_restores_policy_revision"),
        ),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_policy_revision")),
        sa.UniqueConstraint("parent", name=op.f("uq_policy_revision_parent")),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("via", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column(
            "detail",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.Column("previous_hash", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
        sa.UniqueConstraint("hash", name=op.f("uq_audit_hash")),
    )
    op.create_table(
        "rollout",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("base_revision", sa.BigInteger(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("strategy", sa.Text(), nullable=False),
        sa.Column("first_gateway", sa.Text(), nullable=True),
        sa.Column("bake_s", sa.Double(), nullable=False),
        sa.Column("bake_started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "state IN ('first', 'baking', 'paused', 'all', 'live', 'superseded', 'aborted')",
            name=op.f("ck_rollout_state"),
        ),
        sa.ForeignKeyConstraint(
            ["revision"], ["policy_revision.number"], name=op.f("fk_rollout_revision_policy_revision")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollout")),
        sa.UniqueConstraint("revision", name=op.f("uq_rollout_revision")),
    )
    op.create_table(
        "assignment",
        sa.Column("gateway", sa.Text(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("document", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["gateway"], ["gateway.name"], name=op.f("fk_assignment_gateway_gateway")),
        sa.PrimaryKeyConstraint("gateway", name=op.f("pk_assignment")),
    )
    op.create_table(
        "gateway_observed",
        sa.Column("gateway", sa.Text(), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("tried_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("contact_lost_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("retry_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("boot_id", sa.Text(), nullable=True),
        sa.Column("epoch", sa.BigInteger(), nullable=True),
        sa.Column("generation", sa.BigInteger(), nullable=True),
        sa.Column("revision", sa.BigInteger(), nullable=True),
        sa.Column("digest", sa.Text(), nullable=True),
        sa.Column("acked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("condition", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), server_default="", nullable=False),
        sa.Column("rejected_generation", sa.BigInteger(), nullable=True),
        sa.Column("rejected_pointer", sa.Text(), nullable=True),
        sa.Column("rejected_message", sa.Text(), nullable=True),
        sa.Column("status", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.CheckConstraint(
            "condition IN ('unknown', 'converged', 'behind', 'drifting', 'unreachable', 'rejected')",
            name=op.f("ck_gateway_observed_condition"),
        ),
        sa.ForeignKeyConstraint(
            ["gateway"], ["gateway.name"], name=op.f("fk_gateway_observed_gateway_gateway")
        ),
        sa.PrimaryKeyConstraint("gateway", name=op.f("pk_gateway_observed")),
    )
    op.create_table(
        "ack",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("gateway", sa.Text(), nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("accepted", sa.Boolean(), nullable=False),
        sa.Column("message", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ack")),
    )
    op.create_index("ix_ack_gateway_at", "ack", ["gateway", "at"], unique=False)
    op.create_table(
        "lease",
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("role", name=op.f("pk_lease")),
    )
    op.create_table(
        "command_key",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("result", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_command_key")),
    )
    for table in ("gateway_observed", "lease"):
        op.execute(f"ALTER TABLE {table} SET (fillfactor = 50)")  # updated in place every few seconds


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_table("command_key")
    op.drop_table("lease")
    op.drop_table("ack")
    op.drop_table("gateway_observed")
    op.drop_table("assignment")
    op.drop_table("rollout")
    op.drop_table("audit")
    op.drop_table("policy_revision")
