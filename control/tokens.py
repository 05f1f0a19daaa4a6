"""Scoped API tokens for scripts: made here, shown once, stored as a hash.

A token is `rk-api-` and 256 random bits; scopes are few and named. Prevents: a finance script's token
that could publish policy, and a leaked token nobody can take back.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import select
from sqlalchemy.orm import Session

from control import audit
from control.roles import Actor, Permission, require
from control.tables import ApiTokenRow
from fleet.errors import Forbidden, InvalidInput, NotFound, Unauthenticated

PREFIX = "rk-api-"
MAX_DAYS = 366
_TOUCH = timedelta(minutes=1)
_ID = re.compile(r"at-[0-9a-f]{12}")


class Scope(StrEnum):
    """What a token may be used for."""

    STATUS_READ = "status:read"
    POLICY_READ = "policy:read"
    POLICY_WRITE = "policy:write"
    SPEND_READ = "spend:read"
    ALERTS_READ = "alerts:read"
    ALERTS_WRITE = "alerts:write"
    FLEET_READ = "fleet:read"
    FLEET_WRITE = "fleet:write"
    MONTHS_WRITE = "months:write"  # close and correct months


@dataclass(frozen=True, slots=True)
class NewApiToken:
    """A token that was just made. `secret` exists nowhere else and does not show in `repr`."""

    id: str
    secret: str
    expires_at: datetime

    def __repr__(self) -> str:
        return f"NewApiToken(id={self.id!r}, expires_at={self.expires_at!r}, secret=***)"


@dataclass(frozen=True, slots=True)
class ApiToken:
    """A token without its secret."""

    id: str
    name: str
    scopes: tuple[Scope, ...]
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


def create_api_token(
    session: Session, *, name: str, scopes: Sequence[str], days: int, actor: Actor, now: datetime
) -> NewApiToken:
    """Make a token good for `days`. Joins the caller's transaction. Raises InvalidInput, Forbidden."""
    require(actor, Permission.MANAGE_ACCOUNTS)
    text = name.strip()
    if not text or len(text) > 100 or not text.isprintable():
        raise InvalidInput(
            "a token needs a name of 1 to 100 characters", hint="Say what uses it", field="name"
        )
    known = [scope.value for scope in Scope]
    unknown = sorted(set(scopes) - set(known))
    if unknown or not scopes:
        raise InvalidInput(
            f"unknown scopes: {', '.join(unknown)}" if unknown else "a token needs at least one scope",
            hint=f"Use some of {', '.join(known)}",
            field="scopes",
        )
    if not 1 <= days <= MAX_DAYS:
        raise InvalidInput(
            f"{days} days: 1 to {MAX_DAYS} are taken", hint="Make a new one later", field="days"
        )
    token = NewApiToken(
        f"at-{secrets.token_hex(6)}", PREFIX + secrets.token_urlsafe(32), now + timedelta(days=days)
    )
    session.add(
        ApiTokenRow(
            id=token.id,
            name=text,
            sha256=_hash(token.secret),
            scopes=sorted(set(scopes)),
            created_by=actor.name,
            created_at=now,
            expires_at=token.expires_at,
        )
    )
    detail = {"scopes": sorted(set(scopes)), "expires_at": token.expires_at.isoformat()}
    audit.append(session, actor, "api_token.create", f"token {token.id}", text, detail, now)
    return token


def revoke_api_token(session: Session, *, token_id: str, actor: Actor, now: datetime) -> bool:
    """Revoke a token at once; False if it was revoked before. Raises NotFound, Forbidden."""
    require(actor, Permission.MANAGE_ACCOUNTS)
    row = session.get(ApiTokenRow, token_id) if _ID.fullmatch(token_id) else None
    if row is None:
        raise NotFound(f"there is no token {token_id[:60]!r}", hint="See `rhodeck tokens list`", field="id")
    if row.revoked_at is not None:
        return False
    row.revoked_at = now
    audit.append(session, actor, "api_token.revoke", f"token {token_id}", row.name, {}, now)
    return True


def api_tokens(session: Session) -> list[ApiToken]:
    """Every token, newest first."""
    t = ApiTokenRow
    rows = session.execute(
        select(
            t.id, t.name, t.scopes, t.created_by, t.created_at, t.expires_at, t.revoked_at, t.last_used_at
        ).order_by(t.created_at.desc(), t.id)
    )
    return [ApiToken(r.id, r.name, tuple(Scope(s) for s in r.scopes), *r[3:]) for r in rows]


def authenticate(session: Session, secret: str, scope: Scope, now: datetime) -> ApiToken:
    """Return the token `secret` stands for. Raises Unauthenticated, or Forbidden for another scope."""
    row = session.scalar(select(ApiTokenRow).where(ApiTokenRow.sha256 == _hash(secret)))
    if row is None or row.revoked_at is not None or (row.expires_at is not None and now >= row.expires_at):
        raise Unauthenticated(
            "the token is unknown, expired or revoked", hint="Make one with `rhodeck tokens create`"
        )
    if scope.value not in row.scopes:
        raise Forbidden(
            f"token {row.id} has the scopes {', '.join(row.scopes)}; {scope} is needed",
            hint=f"Make one with `rhodeck tokens create --scope {scope}`",
        )
    if row.last_used_at is None or now - row.last_used_at >= _TOUCH:
        row.last_used_at = now
    return ApiToken(
        row.id,
        row.name,
        tuple(Scope(s) for s in row.scopes),
        row.created_by,
        row.created_at,
        row.expires_at,
        row.revoked_at,
        row.last_used_at,
    )


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
