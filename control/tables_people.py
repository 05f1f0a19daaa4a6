"""Tables of people and keys: accounts, sign-ins, API tokens, tenant keys.

Only hashes of secrets are stored. Prevents: a database dump that opens doors.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Identity, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from control.tables_base import Base


class AccountRow(Base):
    """A person who may sign in with a password."""

    __tablename__ = "account"
    name: Mapped[str] = mapped_column(primary_key=True)
    password_hash: Mapped[str]  # scrypt, salted
    role: Mapped[str]
    disabled: Mapped[bool] = mapped_column(server_default=text("false"))
    created_at: Mapped[datetime]
    __table_args__ = (CheckConstraint("role IN ('viewer', 'operator', 'finance', 'admin')", name="role"),)


class SignInRow(Base):
    """A signed-in browser: only the hash of its token is kept."""

    __tablename__ = "sign_in"
    token_sha256: Mapped[str] = mapped_column(primary_key=True)
    account: Mapped[str] = mapped_column(ForeignKey("account.name"))
    created_at: Mapped[datetime]
    seen_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]


class SignInFailureRow(Base):
    """Failed sign-ins, to slow guessing down."""

    __tablename__ = "sign_in_failure"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    account: Mapped[str]
    at: Mapped[datetime]
    __table_args__ = (Index("ix_sign_in_failure_account_at", "account", "at"),)


class ApiTokenRow(Base):
    """A scoped token for scripts: only its hash is kept."""

    __tablename__ = "api_token"
    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    sha256: Mapped[str] = mapped_column(unique=True)
    scopes: Mapped[list[str]]
    created_by: Mapped[str]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]


class TenantKeyRow(Base):
    """A tenant's API key for the gateways: only its hash is kept."""

    __tablename__ = "tenant_key"
    id: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str]
    label: Mapped[str]
    sha256: Mapped[str] = mapped_column(unique=True)
    created_by: Mapped[str]
    created_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]
    __table_args__ = (Index("ix_tenant_key_tenant", "tenant"),)
