"""Who did what, when and why: an append-only chain of rows, each hashed over the one before.

A row is written in the transaction of the change it records, so both exist or neither. Rows are numbered
without holes; an advisory lock held to the end of the transaction keeps two writers in line. The chain
shows an edit and a hole; a removed tail shows because every revision must have its row.
Prevents: a change without a record, and a record that was edited afterwards unseen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Context, Decimal
from typing import Any, cast

from sqlalchemy import select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from control.roles import Actor
from control.tables import AuditRow, PolicyRevisionRow
from fleet.errors import Conflict
from fleet.policy import canonical_json, digest_of

#: Key of the advisory lock that puts writers in line. Any constant of our own.
CHAIN_LOCK = 7_266_473_002
FIRST_HASH = "0" * 64
BATCH_ROWS = 1_000
#: Action of the row every policy revision must have; its subject is `revision N`.
PUBLISHED = "policy.publish"
_LOCK_NOT_AVAILABLE = "55P03"
_EXACT = Context(prec=1_000)


@dataclass(frozen=True, slots=True)
class BrokenRow:
    """The first place where the record cannot be trusted, and why."""

    id: int
    reason: str


def append(
    session: Session,
    actor: Actor,
    action: str,
    subject: str,
    note: str,
    detail: Mapping[str, Any],
    now: datetime,
) -> int:
    """Add one row to the chain in the caller's transaction and return its number.

    `detail` is JSON. Raises Conflict (retryable) when other writers hold the chain longer than the
    connection's lock timeout.
    """
    try:
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": CHAIN_LOCK})
    except OperationalError as exc:
        if getattr(exc.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
            raise
        raise Conflict(
            "other changes are being recorded; this one was not made", hint="Try again", retryable=True
        ) from exc
    last_id, last_hash = tail(session)
    row = AuditRow(
        id=last_id + 1,
        at=now,
        actor=actor.name,
        role=actor.role.value,
        via=actor.via,
        action=action,
        subject=subject,
        note=note,
        detail=dict(detail),
        previous_hash=last_hash,
    )
    row.hash = row_hash(row)
    session.add(row)
    session.flush()
    return row.id


def row_hash(row: AuditRow) -> str:
    """Return the sha256 over everything a row says and the hash before it, hex."""
    said = {
        "id": row.id,
        "at": row.at.astimezone(UTC).isoformat(timespec="microseconds"),
        "actor": row.actor,
        "role": row.role,
        "via": row.via,
        "action": row.action,
        "subject": row.subject,
        "note": row.note,
        "detail": _stable(row.detail),
        "previous_hash": row.previous_hash,
    }
    return hashlib.sha256(canonical_json(said)).hexdigest()


def tail(session: Session) -> tuple[int, str]:
    """Return number and hash of the last row; (0, zeros) of an empty record.

    Kept outside the database, the pair also shows a record that was rewritten as a whole.
    """
    last = session.execute(select(AuditRow.id, AuditRow.hash).order_by(AuditRow.id.desc()).limit(1)).first()
    return (last.id, last.hash) if last else (0, FIRST_HASH)


def verify(session: Session) -> BrokenRow | None:
    """Return the first row that was changed, is missing or is out of place; None if the chain holds.

    Reads the whole chain in batches. Compares each revision's document with its recorded digest.
    """
    expected_id, expected_hash = 1, FIRST_HASH
    recorded: dict[str, str] = {}
    while batch := _after(session, expected_id - 1):
        for row in batch:
            reason = _broken(row, expected_id, expected_hash)
            if reason is not None:
                return BrokenRow(min(row.id, expected_id), reason)
            if row.action == PUBLISHED:
                recorded[row.subject] = str(row.detail.get("digest"))
            expected_id, expected_hash = row.id + 1, row.hash
    return _unrecorded_revision(session, recorded, expected_id)


def _after(session: Session, number: int) -> Sequence[AuditRow]:
    batch = select(AuditRow).where(AuditRow.id > number).order_by(AuditRow.id).limit(BATCH_ROWS)
    return session.scalars(batch.execution_options(populate_existing=True)).all()


def _broken(row: AuditRow, expected_id: int, expected_hash: str) -> str | None:
    if row.id != expected_id:
        return f"row {expected_id} is missing; the next one is {row.id}"
    if row.hash != row_hash(row):
        return f"row {row.id} was changed after it was written"
    if row.previous_hash != expected_hash:
        return f"row {row.id} does not follow the row before it"
    return None


def _unrecorded_revision(session: Session, recorded: dict[str, str], next_id: int) -> BrokenRow | None:
    revisions = session.execute(
        select(PolicyRevisionRow.number, PolicyRevisionRow.document).order_by(PolicyRevisionRow.number)
    )
    for number, document in revisions:
        found = recorded.get(f"revision {number}")
        if found is None:
            return BrokenRow(next_id, f"revision {number} has no row in the record: its end was removed")
        if found != digest_of(document):
            return BrokenRow(next_id, f"revision {number} is not the document that was recorded")
    return None


def _stable(value: Any) -> Any:
    """Return JSON whose numbers read the same before and after Postgres stored them (1e22, 30.0)."""
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {key: _stable(part) for key, part in items}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_stable(part) for part in cast("Sequence[Any]", value)]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"number {Decimal(str(value)).normalize(_EXACT)}"
    return value
