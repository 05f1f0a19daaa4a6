"""Tables of intent and its arrival: revisions, audit, rollout, assignments, acknowledgements, leader lease.

History (revisions, audit, acks) is append-only by trigger. Prevents: "applied" without an acknowledgement,
and a past that can be edited.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Identity, Index, Integer, text
from sqlalchemy.orm import Mapped, mapped_column

from control.tables_base import Base


class PolicyRevisionRow(Base):
    """An immutable policy document. Append-only; rollback is a new row with old content."""

    __tablename__ = "policy_revision"
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    parent: Mapped[int | None] = mapped_column(ForeignKey("policy_revision.number"), unique=True)
    digest: Mapped[str]
    document: Mapped[dict[str, Any]]
    author: Mapped[str]
    note: Mapped[str]
    restores: Mapped[int | None] = mapped_column(ForeignKey("policy_revision.number"))  # a rollback to this
    created_at: Mapped[datetime]
    __table_args__ = (
        CheckConstraint("(number = 1 AND parent IS NULL) OR (number = parent + 1)", name="chain"),
    )


class AuditRow(Base):
    """Who did what, when, why. Append-only; each row's hash covers the one before it."""

    __tablename__ = "audit"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at: Mapped[datetime]
    actor: Mapped[str]
    role: Mapped[str]
    via: Mapped[str]  # "page" | "cli" | "api" | "controller"
    action: Mapped[str]
    subject: Mapped[str]
    note: Mapped[str]
    detail: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))
    previous_hash: Mapped[str]
    hash: Mapped[str] = mapped_column(unique=True)


class RolloutRow(Base):
    """How one revision reaches the gateways: first, bake, all, live; or stopped."""

    __tablename__ = "rollout"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    revision: Mapped[int] = mapped_column(ForeignKey("policy_revision.number"), unique=True)
    base_revision: Mapped[int | None]
    state: Mapped[str]
    strategy: Mapped[str]  # "staged" | "all_at_once"
    first_gateway: Mapped[str | None]
    bake_s: Mapped[float]
    bake_started_at: Mapped[datetime | None]
    reason: Mapped[str] = mapped_column(server_default="")
    started_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    __table_args__ = (
        CheckConstraint(
            "state IN ('first', 'baking', 'paused', 'all', 'live', 'superseded', 'aborted')", name="state"
        ),
    )


class AssignmentRow(Base):
    """What one gateway is desired to run. The digest covers the content without epoch and generation."""

    __tablename__ = "assignment"
    gateway: Mapped[str] = mapped_column(ForeignKey("gateway.name"), primary_key=True)
    generation: Mapped[int]
    revision: Mapped[int]
    digest: Mapped[str]
    document: Mapped[dict[str, Any]]
    updated_at: Mapped[datetime]


class GatewayObservedRow(Base):
    """What one gateway was last seen to run, and how contact with it stands."""

    __tablename__ = "gateway_observed"
    gateway: Mapped[str] = mapped_column(ForeignKey("gateway.name"), primary_key=True)
    seen_at: Mapped[datetime | None]  # last answer to a status or push
    tried_at: Mapped[datetime | None]
    contact_lost_at: Mapped[datetime | None]  # first failure since the last answer
    failures: Mapped[int] = mapped_column(Integer, server_default="0")
    retry_at: Mapped[datetime | None]
    boot_id: Mapped[str | None]
    epoch: Mapped[int | None]
    generation: Mapped[int | None]
    revision: Mapped[int | None]
    digest: Mapped[str | None]
    acked_at: Mapped[datetime | None]  # when the digest in force was first confirmed on this boot
    condition: Mapped[str]
    message: Mapped[str] = mapped_column(server_default="")
    rejected_generation: Mapped[int | None]  # last generation it refused as invalid
    rejected_pointer: Mapped[str | None]
    rejected_message: Mapped[str | None]
    status: Mapped[dict[str, Any] | None]  # the last GatewayStatus, whole
    __table_args__ = (
        CheckConstraint(
            "condition IN ('unknown', 'converged', 'behind', 'drifting', 'unreachable', 'rejected')",
            name="condition",
        ),
    )


class AckRow(Base):
    """A gateway confirmed a digest. Append-only history of `gateway_observed`."""

    __tablename__ = "ack"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    at: Mapped[datetime]
    gateway: Mapped[str]
    boot_id: Mapped[str]
    epoch: Mapped[int]
    generation: Mapped[int]
    revision: Mapped[int]
    digest: Mapped[str]
    accepted: Mapped[bool]
    message: Mapped[str] = mapped_column(server_default="")
    __table_args__ = (Index("ix_ack_gateway_at", "gateway", "at"),)


class LeaseRow(Base):
    """Who leads. The epoch is the fencing token; it rises when the owner changes."""

    __tablename__ = "lease"
    role: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str]
    epoch: Mapped[int]
    expires_at: Mapped[datetime]


class CommandKeyRow(Base):
    """A command already carried out under an idempotency key, and what it answered."""

    __tablename__ = "command_key"
    key: Mapped[str] = mapped_column(primary_key=True)
    action: Mapped[str]
    result: Mapped[dict[str, Any]]
    at: Mapped[datetime]
