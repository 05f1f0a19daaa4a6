"""Tables of alerting: changed rules, silences, groups, notices, webhooks and deliveries.

A notice is what people are told; it is written in the transaction of the round that caused it, and
delivered later, at least once, under an id that never changes. Secrets are never here: a webhook names a
file. Prevents: a notice lost between two controllers, and one told twice under two names.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Identity, Index, Integer, text
from sqlalchemy.orm import Mapped, mapped_column

from control.tables_base import Base


class AlertRuleRow(Base):
    """What an operator changed of a rule; rules without a row stand as delivered."""

    __tablename__ = "alert_rule"
    name: Mapped[str] = mapped_column(primary_key=True)
    changes: Mapped[dict[str, Any]]  # field -> value; see fleet/alert_rules.py
    updated_at: Mapped[datetime]
    updated_by: Mapped[str]


class AlertSilenceRow(Base):
    """Nobody is told about matching alerts until it ends. A matcher that is NULL matches everything."""

    __tablename__ = "alert_silence"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    rule: Mapped[str | None]
    scope: Mapped[str | None]
    subject: Mapped[str | None]
    pool: Mapped[str | None]
    reason: Mapped[str]
    created_at: Mapped[datetime]
    created_by: Mapped[str]
    expires_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]  # ended by hand before it expired
    ended_by: Mapped[str | None]
    __table_args__ = (
        CheckConstraint("expires_at > created_at", name="expiry"),
        Index("ix_alert_silence_open", "expires_at", postgresql_where=text("ended_at IS NULL")),
    )


class AlertGroupRow(Base):
    """Alerts told together: one rule, scope and pool ("" where there is none)."""

    __tablename__ = "alert_group"
    rule: Mapped[str] = mapped_column(primary_key=True)
    scope: Mapped[str] = mapped_column(primary_key=True)
    pool: Mapped[str] = mapped_column(primary_key=True)
    due_at: Mapped[datetime | None]  # when what changed is told
    notified_at: Mapped[datetime | None]


class AlertNoticeRow(Base):
    """One message about a group, frozen when it was made. The id is its idempotency key everywhere."""

    __tablename__ = "alert_notice"
    id: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    rule: Mapped[str]
    scope: Mapped[str]
    pool: Mapped[str]
    kind: Mapped[str]
    body: Mapped[dict[str, Any]]
    __table_args__ = (
        CheckConstraint("kind IN ('open', 'resolved', 'repeat', 'test')", name="kind"),
        Index("ix_alert_notice_at", "at"),
    )


class WebhookRow(Base):
    """Where notices go. `secret_name` names a file of the controller's; the secret is not here."""

    __tablename__ = "webhook"
    name: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    url: Mapped[str]
    secret_name: Mapped[str | None]
    created_at: Mapped[datetime]
    created_by: Mapped[str]
    removed_at: Mapped[datetime | None]
    refreshed_at: Mapped[datetime | None]  # an Alertmanager is told what is open again and again
    last_ok_at: Mapped[datetime | None]
    last_error: Mapped[str | None]
    last_error_at: Mapped[datetime | None]
    __table_args__ = (CheckConstraint("kind IN ('generic', 'alertmanager')", name="kind"),)


class AlertDeliveryRow(Base):
    """One notice on its way to one webhook."""

    __tablename__ = "alert_delivery"
    notice: Mapped[str] = mapped_column(ForeignKey("alert_notice.id", ondelete="CASCADE"), primary_key=True)
    webhook: Mapped[str] = mapped_column(ForeignKey("webhook.name"), primary_key=True)
    state: Mapped[str]
    attempts: Mapped[int] = mapped_column(Integer, server_default="0")
    next_at: Mapped[datetime]
    done_at: Mapped[datetime | None]
    error: Mapped[str | None]
    __table_args__ = (
        CheckConstraint("state IN ('pending', 'delivered', 'dead')", name="state"),
        Index("ix_alert_delivery_due", "webhook", "next_at", postgresql_where=text("state = 'pending'")),
    )
