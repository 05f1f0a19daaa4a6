"""People who sign in with a password: accounts, sign-ins, lock-out. Commands join the caller's transaction.

Passwords are kept as scrypt hashes with a salt each, sign-in tokens as sha256 of 256 random bits. Times
are the caller's `now`. Prevents: a copied cookie that works for a month, a role that outlives its
withdrawal, and passwords guessed at the speed of the network.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, func, select, update
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session

from control import audit
from control.roles import Actor, Permission, Role, require
from control.tables import AccountRow, SignInFailureRow, SignInRow
from fleet.errors import Conflict, Forbidden, InvalidInput, NotFound, Unauthenticated, Unavailable

_NAME = re.compile(r"[a-z0-9][a-z0-9_.@-]{0,62}")
MIN_PASSWORD_CHARACTERS = 10
MAX_PASSWORD_CHARACTERS = 200
MAX_FAILURES = 5
LOCK = timedelta(minutes=5)
IDLE_LIMIT = timedelta(hours=8)
LIFETIME = timedelta(hours=24)
_TOUCH = timedelta(minutes=1)  # how often a used sign-in is written
_SCRYPT_MEMORY = 64 * 2**20
_LOCK_NOT_AVAILABLE = "55P03"


@dataclass(frozen=True, slots=True)
class Account:
    """Somebody who may sign in, without secrets."""

    name: str
    role: Role
    disabled: bool
    created_at: datetime


def accounts(session: Session) -> list[Account]:
    """Every account, by name."""
    a = AccountRow
    rows = session.execute(select(a.name, a.role, a.disabled, a.created_at).order_by(a.name))
    return [Account(name, Role(role), disabled, at) for name, role, disabled, at in rows]


def create_account(
    session: Session, *, name: str, password: str, role: Role, actor: Actor, now: datetime
) -> None:
    """Create an account. Raises InvalidInput, Conflict if the name is taken, Forbidden."""
    require(actor, Permission.MANAGE_ACCOUNTS)
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:80]!r} is not an account name",
            hint="Use 1 to 63 of a-z, 0-9, '-', '_', '.', '@', starting with a letter or digit",
            field="name",
        )
    row = AccountRow(name=name, password_hash=_hashed(_checked(password)), role=role.value, created_at=now)
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError as exc:
        raise Conflict(f"account {name} exists", hint="Choose another name", field="name") from exc
    audit.append(session, actor, "account.create", f"account {name}", "", {"role": role.value}, now)


def set_password(session: Session, *, name: str, password: str, actor: Actor, now: datetime) -> None:
    """Replace an account's password and end its sign-ins. Raises NotFound, InvalidInput, Forbidden."""
    require(actor, Permission.MANAGE_ACCOUNTS)
    _account(session, name).password_hash = _hashed(_checked(password))
    _end_sign_ins(session, name, now)
    audit.append(session, actor, "account.password", f"account {name}", "", {}, now)


def set_role(session: Session, *, name: str, role: Role, actor: Actor, now: datetime) -> None:
    """Change an account's role; it holds from the next click on. Raises NotFound, Forbidden."""
    require(actor, Permission.MANAGE_ACCOUNTS)
    row = _account(session, name)
    before, row.role = row.role, role.value
    audit.append(
        session, actor, "account.role", f"account {name}", "", {"from": before, "to": role.value}, now
    )


def disable_account(session: Session, *, name: str, actor: Actor, now: datetime) -> None:
    """Bar an account and end its sign-ins. Raises NotFound, Forbidden."""
    require(actor, Permission.MANAGE_ACCOUNTS)
    _account(session, name).disabled = True
    _end_sign_ins(session, name, now)
    audit.append(session, actor, "account.disable", f"account {name}", "", {}, now)


def sign_in(session: Session, *, name: str, password: str, now: datetime) -> str | None:
    """Check a password and return a new sign-in token, or None for a wrong name or password.

    The failure is noted in the caller's transaction: commit in both cases. Raises Forbidden while an
    account is locked after MAX_FAILURES failures within LOCK, Unavailable while others try the same name.
    """
    if not _NAME.fullmatch(name):  # no account can have it; it may not even fit into the database
        _matches(password, _NOBODY)
        return None
    _wait_for_turn(session, name)
    failures = session.scalar(
        select(func.count()).where(SignInFailureRow.account == name, SignInFailureRow.at > now - LOCK)
    )
    if (failures or 0) >= MAX_FAILURES:
        raise Forbidden(
            f"too many failed sign-ins for {name}",
            hint=f"Wait {LOCK.seconds // 60} minutes, or ask an admin",
        )
    row = session.get(AccountRow, name)
    stored = row.password_hash if row is not None else _NOBODY
    if not _matches(password, stored) or row is None or row.disabled:
        session.add(SignInFailureRow(account=name, at=now))
        return None
    session.execute(delete(SignInFailureRow).where(SignInFailureRow.account == name))
    token = secrets.token_urlsafe(32)
    session.add(
        SignInRow(
            token_sha256=_token_hash(token),
            account=name,
            created_at=now,
            seen_at=now,
            expires_at=now + LIFETIME,
        )
    )
    return token


def _wait_for_turn(session: Session, name: str) -> None:
    """One at a time an account: parallel guesses must not pass the count of failures together."""
    try:
        session.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"sign-in:{name}", 0))))
    except OperationalError as exc:
        if getattr(exc.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
            raise
        raise Unavailable(f"others are signing in as {name} at this moment", hint="Try again") from exc


def signed_in(session: Session, token: str, now: datetime) -> Account:
    """Return whose sign-in `token` is, with the role the account has now.

    Raises Unauthenticated when it is unknown, revoked, over LIFETIME old, or unused for IDLE_LIMIT.
    """
    row = session.get(SignInRow, _token_hash(token))
    if (
        row is None
        or row.revoked_at is not None
        or now >= row.expires_at
        or now - row.seen_at >= IDLE_LIMIT
    ):
        raise Unauthenticated("the sign-in has ended", hint="Sign in again")
    account = _account(session, row.account)
    if account.disabled:
        raise Unauthenticated("the account is disabled", hint="Ask an admin")
    if now - row.seen_at >= _TOUCH:
        row.seen_at = now
    return Account(account.name, Role(account.role), account.disabled, account.created_at)


def sign_out(session: Session, token: str, now: datetime) -> None:
    """End one sign-in. Silent when there is none."""
    s = SignInRow
    session.execute(
        update(s).where(s.token_sha256 == _token_hash(token), s.revoked_at.is_(None)).values(revoked_at=now)
    )


def _end_sign_ins(session: Session, name: str, now: datetime) -> None:
    s = SignInRow
    session.execute(update(s).where(s.account == name, s.revoked_at.is_(None)).values(revoked_at=now))


def _account(session: Session, name: str) -> AccountRow:
    row = session.get(AccountRow, name) if _NAME.fullmatch(name) else None
    if row is None:
        raise NotFound(f"there is no account {name[:80]!r}", hint="See `rhodeck users list`", field="name")
    return row


def _checked(password: str) -> str:
    if not MIN_PASSWORD_CHARACTERS <= len(password) <= MAX_PASSWORD_CHARACTERS:
        raise InvalidInput(
            f"the password has {len(password)} characters; {MIN_PASSWORD_CHARACTERS} to "
            f"{MAX_PASSWORD_CHARACTERS} are taken",
            hint="A few unrelated words make a good one",
            field="password",
        )
    return password


def _token_hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _hashed(password: str) -> str:
    salt = secrets.token_bytes(16)
    digest = _scrypt(password, salt)
    return f"scrypt${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def _matches(password: str, stored: str) -> bool:
    _, salt, digest = stored.split("$")
    is_equal = hmac.compare_digest(_scrypt(password, base64.b64decode(salt)), base64.b64decode(digest))
    return is_equal and len(password) <= MAX_PASSWORD_CHARACTERS


def _scrypt(password: str, salt: bytes) -> bytes:
    """Source: RFC 7914; n, r, p from the OWASP password storage cheat sheet (32 MiB a check)."""
    text = password[:MAX_PASSWORD_CHARACTERS].encode(errors="surrogatepass")
    return hashlib.scrypt(text, salt=salt, n=2**15, r=8, p=3, maxmem=_SCRYPT_MEMORY, dklen=32)


#: What an unknown name is checked against, so that it takes as long as a known one.
_NOBODY = "scrypt$" + base64.b64encode(bytes(16)).decode() + "$" + base64.b64encode(bytes(32)).decode()
