"""Which key signs months: the one that signed the last, until another is declared with a reason.

A key lies in the key file, or beside it in `<key file>.<key id>`. A declaration names every month closed so
far with the digest of all that is kept of it, signed by the new key: months whose own key is lost are
checked against it. Prevents: a lost key that is replaced unseen at the next close, after which nobody can
tell a forged month from one whose key is gone.
"""

from __future__ import annotations

import contextlib
import hmac
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, defer

from control import audit
from control.book_locks import hold_books
from control.month_seal import VERSION, key_id, make_key, read_key, sealed, sign
from control.roles import Actor, Permission, require
from control.tables import MonthCloseRow, MonthKeyRow
from fleet.errors import InvalidInput, Unavailable
from fleet.policy import digest_of

BY_OWN = "with its own key"
_ID = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A key that took another's place."""

    key_id: str
    replaces: str  # "" if no month was signed before
    reason: str
    created_by: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Signed:
    """Whether a month's signature holds, and by what that was told."""

    holds: bool | None  # None: there is no key to check it with
    by: str


def key_changes(session: Session) -> list[KeyChange]:
    """Return every key that was declared, oldest first."""
    k = MonthKeyRow
    rows = session.scalars(select(k).order_by(k.id))
    return [KeyChange(r.key_id, r.replaces, r.reason, r.created_by, r.created_at) for r in rows]


def signing_key(session: Session, path: Path) -> bytes:
    """Return the key the next month is signed with; the first month's is made.

    Raises Unavailable if months were signed with a key that is not here.
    """
    wanted = _key_in_force(session)
    if wanted is None:
        return make_key(path)
    found = _key_named(path, wanted)
    if found is not None:
        return found
    there = f"holds key {key_id(read_key(path))}" if path.exists() else "does not exist"
    raise Unavailable(
        f"months are signed with key {wanted}, but {path} {there}",
        hint="Restore the file from its backup. If it is lost for good, declare another one with "
        "`rhodeck months new-key --reason ...`",
        retryable=False,
    )


def new_key(session: Session, path: Path, *, reason: str, actor: Actor, now: datetime) -> KeyChange:
    """Declare another key for the months to come. Joins the caller's transaction.

    An unknown key that lies in `path` is taken; else one is made, in `path` if nothing lies there, else
    beside. The key before is never touched. Raises InvalidInput without a reason, Unavailable, Forbidden.
    """
    require(actor, Permission.CLOSE_MONTHS)
    reason = reason.strip()
    if not 1 <= len(reason) <= 300 or not reason.isprintable():
        raise InvalidInput(
            "a new key needs a reason of 1 to 300 characters",
            hint="Say what became of the one before",
            field="reason",
        )
    hold_books(session, ("month_close",), "SHARE ROW EXCLUSIVE", "no key was declared")
    before = _key_in_force(session) or ""
    key = make_key(path)
    if key_id(key) in _known(session):
        key = _made_beside(path)
    closed = {row.month: _digest(row, sign_before) for row, sign_before in _rows(session)}
    change = KeyChange(key_id(key), before, reason, actor.name, now)
    session.add(
        MonthKeyRow(
            key_id=change.key_id,
            replaces=before,
            closed=closed,
            reason=reason,
            created_by=actor.name,
            created_at=now,
            signature=sign(key, _said(change, closed)),
        )
    )
    detail = {"key_id": change.key_id, "replaces": before, "months": len(closed)}
    audit.append(session, actor, "month.new_key", f"key {change.key_id}", reason, detail, now)
    return change


def check_signature(session: Session, name: str, path: Path | None) -> Signed:
    """Check the signature of closed month `name` with its own key, else by a declaration of a key here.

    Raises Unavailable if a key file is there and cannot be read.
    """
    row, before = next(found for found in _rows(session) if found[0].month == name)
    own = None if path is None else _key_named(path, row.key_id)
    if own is not None:
        return Signed(sealed(row, before).holds(own, row.signature), BY_OWN)
    keys = {} if path is None else keys_at(path)
    if not keys:
        return Signed(None, "the key is not on this machine")
    for declared in session.scalars(select(MonthKeyRow).order_by(MonthKeyRow.id.desc())):
        key = keys.get(declared.key_id)
        if key is None or name not in declared.closed:
            continue
        change = KeyChange(
            declared.key_id, declared.replaces, declared.reason, declared.created_by, declared.created_at
        )
        is_ours = hmac.compare_digest(sign(key, _said(change, declared.closed)), declared.signature)
        return Signed(
            is_ours and declared.closed[name] == _digest(row, before),
            f"as key {declared.key_id} found it on {declared.created_at:%Y-%m-%d}; its own key "
            f"{row.key_id} is not here",
        )
    return Signed(False, f"no key here signed it; it names key {row.key_id}")


def _rows(session: Session) -> Iterator[tuple[MonthCloseRow, str]]:
    """Every closed month in order, with the signature of the one before."""
    before = ""
    c = MonthCloseRow
    for row in session.scalars(select(c).options(defer(c.body)).order_by(c.number)):
        yield row, before
        before = row.signature


def _digest(row: MonthCloseRow, before: str) -> str:
    whole = sealed(row, before, VERSION)
    said = {
        "month": row.month,
        "zone": row.zone,
        "rows": row.rows,
        "total_usd": f"{row.total_usd:.2f}",
        "sha256": row.sha256,
        "basis_sha256": digest_of(row.basis),
        "seal_version": row.seal_version,
        "signature": row.signature,
        "rest": whole.rest,
    }
    return digest_of(said)


def _said(change: KeyChange, closed: dict[str, Any]) -> dict[str, Any]:
    return {
        "key_id": change.key_id,
        "replaces": change.replaces,
        "reason": change.reason,
        "created_by": change.created_by,
        "created_at": change.created_at.astimezone(UTC).isoformat(),
        "closed": closed,
    }


def _key_in_force(session: Session) -> str | None:
    """Return the name of the key declared last, else of the one that signed the last month."""
    declared = session.scalar(select(MonthKeyRow.key_id).order_by(MonthKeyRow.id.desc()).limit(1))
    if declared is not None:
        return declared
    c = MonthCloseRow
    return session.scalar(select(c.key_id).order_by(c.number.desc()).limit(1))


def _known(session: Session) -> set[str]:
    names = {*session.scalars(select(MonthCloseRow.key_id)), *session.scalars(select(MonthKeyRow.key_id))}
    return {str(name) for name in names}


def keys_at(path: Path) -> dict[str, bytes]:
    """Return the keys in `path` and beside it, by their names."""
    beside: list[Path] = []
    with contextlib.suppress(OSError):  # a folder that is not there, or may be passed but not listed
        beside = sorted(path.parent.iterdir())
    ours = [
        each for each in beside if each.name.startswith(f"{path.name}.") and _ID.fullmatch(each.suffix[1:])
    ]
    found = [read_key(each) for each in (path, *ours) if each.exists()]
    return {key_id(key): key for key in found}


def _key_named(path: Path, wanted: str) -> bytes | None:
    return keys_at(path).get(wanted)


def _made_beside(path: Path) -> bytes:
    """Make a key in a file named by it, beside `path`."""
    waiting = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    key = make_key(waiting)
    try:
        waiting.replace(path.with_name(f"{path.name}.{key_id(key)}"))
    except OSError as exc:
        raise Unavailable(
            f"no key can be made beside {path}: {exc.strerror}",
            hint="Let this account write to its folder, or put a new key into the file yourself",
        ) from exc
    return key
