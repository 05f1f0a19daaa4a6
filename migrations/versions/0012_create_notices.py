"""Create what alerting keeps: changed rules, silences, groups, notices, webhooks, deliveries."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def _at(name: str, *, nullable: bool = True) -> sa.Column:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _text(name: str, *, nullable: bool = True) -> sa.Column:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _json(name: str) -> sa.Column:
    return sa.Column(name, postgresql.JSONB(astext_type=sa.Text()), nullable=False)


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for column in (_text("pool"), _at("notified_at"), _at("resolved_notified_at")):
        op.add_column("alert", column)
    op.create_index(
        "ix_alert_to_tell",
        "alert",
        ["rule"],
        postgresql_where=sa.text("notified_at IS NOT NULL AND resolved_notified_at IS NULL"),
    )
    op.create_index("ix_alert_opened_at", "alert", ["opened_at"])
    op.create_table(
        "alert_rule",
        _text("name", nullable=False),
        _json("changes"),
        _at("updated_at", nullable=False),
        _text("updated_by", nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_alert_rule")),
    )
    op.create_table(
        "alert_silence",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        _text("rule"),
        _text("scope"),
        _text("subject"),
        _text("pool"),
        _text("reason", nullable=False),
        _at("created_at", nullable=False),
        _text("created_by", nullable=False),
        _at("expires_at", nullable=False),
        _at("ended_at"),
        _text("ended_by"),
        sa.CheckConstraint("expires_at > created_at", name=op.f("ck_alert_silence_expiry")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alert_silence")),
    )
    op.create_index(
        "ix_alert_silence_open",
        "alert_silence",
        ["expires_at"],
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_table(
        "alert_group",
        _text("rule", nullable=False),
        _text("scope", nullable=False),
        _text("pool", nullable=False),
        _at("due_at"),
        _at("notified_at"),
        sa.PrimaryKeyConstraint("rule", "scope", "pool", name=op.f("pk_alert_group")),
    )
    op.create_table(
        "alert_notice",
        _text("id", nullable=False),
        _at("at", nullable=False),
        _text("rule", nullable=False),
        _text("scope", nullable=False),
        _text("pool", nullable=False),
        _text("kind", nullable=False),
        _json("body"),
        sa.CheckConstraint(
            "kind IN ('open', 'resolved', 'repeat', 'test')", name=op.f("ck_alert_notice_kind")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alert_notice")),
    )
    op.create_index("ix_alert_notice_at", "alert_notice", ["at"])
    op.create_table(
        "webhook",
        _text("name", nullable=False),
        _text("kind", nullable=False),
        _text("url", nullable=False),
        _text("secret_name"),
        _at("created_at", nullable=False),
        _text("created_by", nullable=False),
        _at("removed_at"),
        _at("refreshed_at"),
        _at("last_ok_at"),
        _text("last_error"),
        _at("last_error_at"),
        sa.CheckConstraint("kind IN ('generic', 'alertmanager')", name=op.f("ck_webhook_kind")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_webhook")),
    )
    op.create_table(
        "alert_delivery",
        _text("notice", nullable=False),
        _text("webhook", nullable=False),
        _text("state", nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        _at("next_at", nullable=False),
        _at("done_at"),
        _text("error"),
        sa.CheckConstraint(
            "state IN ('pending', 'delivered', 'dead')", name=op.f("ck_alert_delivery_state")
        ),
        sa.ForeignKeyConstraint(
            ["notice"],
            ["alert_notice.id"],
            name=op.f("fk_alert_delivery_notice_alert_notice"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["webhook"], ["webhook.name"], name=op.f("fk_alert_delivery_webhook_webhook")
        ),
        sa.PrimaryKeyConstraint("notice", "webhook", name=op.f("pk_alert_delivery")),
    )
    op.create_index(
        "ix_alert_delivery_due",
        "alert_delivery",
        ["webhook", "next_at"],
        postgresql_where=sa.text("state = 'pending'"),
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for table in (
        "alert_delivery",
        "webhook",
        "alert_notice",
        "alert_group",
        "alert_silence",
        "alert_rule",
    ):
        op.drop_table(table)
    op.drop_index("ix_alert_opened_at", table_name="alert")
    op.drop_index("ix_alert_to_tell", table_name="alert")
    for column in ("resolved_notified_at", "notified_at", "pool"):
        op.drop_column("alert", column)
