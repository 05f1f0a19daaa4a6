"""API keys of tenants: made here, shown once, stored as a hash. Commands join the caller's transaction.

A key is `rk-tenant-` and 256 random bits. At that length a plain sha256 cannot be searched, and gateways
can compare it at the speed of a request. Prevents: a database dump or a log that opens the gateways.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from control import audit, queries_policy
from control.roles import Actor, Permission, require
from control.tables import TenantKeyRow
from fleet.errors import InvalidInput, NotFound
from fleet.policy import parse

PREFIX = "rk-tenant-"
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
MAX_LABEL_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class NewTenantKey:
    """A key that was just made. `secret` exists nowhere else and does not show in `repr`."""

    id: str
    tenant: str
    label: str
    secret: str

    def __repr__(self) -> str:
        return f"NewTenantKey(id={self.id!r}, tenant={self.tenant!r}, label={self.label!r}, secret=***)"


def create_tenant_key(
    session: Session, *, tenant: str, label: str, actor: Actor, now: datetime
) -> NewTenantKey:
    """Make a key for `tenant`; gateways learn its hash at the next tick.

    The tenant need not be in the policy yet: until it is, the policy's default tenant applies. Raises
    InvalidInput for a bad name or label.
    """
    require(actor, Permission.MANAGE_TENANT_KEYS)
    if not _NAME.fullmatch(tenant):
        raise InvalidInput(
            f"{tenant!r} is not a tenant name",
            hint="Use 1 to 63 of a-z, 0-9, '-', '_', '.', starting with a letter or digit",
            field="tenant",
        )
    text = label.strip()
    if len(text) > MAX_LABEL_CHARACTERS or not text.isprintable():
        raise InvalidInput(
            f"a label has at most {MAX_LABEL_CHARACTERS} printable characters",
            hint="Say where the key is used",
            field="label",
        )
    key = NewTenantKey(f"tk-{secrets.token_hex(6)}", tenant, text, PREFIX + secrets.token_urlsafe(32))
    session.add(
        TenantKeyRow(
            id=key.id,
            tenant=tenant,
            label=text,
            sha256=key_hash(key.secret),
            created_by=actor.name,
            created_at=now,
        )
    )
    audit.append(session, actor, "tenant_key.create", f"tenant {tenant}", "", {"key": key.id}, now)
    return key


def standing_words(session: Session, tenant: str) -> str | None:
    """Return what happens to requests of a tenant that the newest policy does not name; None if it does."""
    head = queries_policy.head(session)
    if head is None:
        return f"no policy is published: gateways admit nothing, of {tenant} neither"
    policy = parse(head.document)
    if tenant in policy.tenants:
        return None
    if policy.default_tenant is not None:
        return (
            f"revision {head.number} does not name {tenant}: it shares the quota of {policy.default_tenant}"
        )
    return (
        f"revision {head.number} does not name {tenant}: its requests are refused until "
        f"`rhodeck tenants set {tenant}` does"
    )


def revoke_tenant_key(session: Session, *, key_id: str, actor: Actor, now: datetime) -> bool:
    """Revoke a key; gateways refuse it from the next tick on. False if it was revoked before.

    Raises NotFound.
    """
    require(actor, Permission.MANAGE_TENANT_KEYS)
    row = session.get(TenantKeyRow, key_id, with_for_update=True)
    if row is None:
        raise NotFound(f"there is no key {key_id}", hint="See `rhodeck tenants key list`", field="key")
    if row.revoked_at is not None:
        return False
    row.revoked_at = now
    audit.append(session, actor, "tenant_key.revoke", f"tenant {row.tenant}", "", {"key": key_id}, now)
    return True


def key_hash(secret: str) -> str:
    """Return the sha256 of a key, hex: what is stored, and what gateways compare."""
    return hashlib.sha256(secret.encode()).hexdigest()
