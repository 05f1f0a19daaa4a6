"""Commands that are carried out once however often they are sent.

Owns: keys chosen by callers, and the answer each key got. The key is written in the transaction of the
change, and calls with the same key wait for each other. Prevents: a publish repeated by a retry, a double
click or a page that reran half-way.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from control.tables import CommandKeyRow
from fleet.errors import Conflict, InvalidInput
from fleet.policy import digest_of

MAX_KEY_CHARACTERS = 200
#: First half of the advisory locks on keys. Any constant of our own.
KEY_SPACE = 726_647
_LOCK_NOT_AVAILABLE = "55P03"


def recall(
    session: Session, key: str | None, action: str, request: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the answer `key` got before, or None if it is new or not given.

    Holds the key to the end of the transaction: call it before the command looks at anything else.
    Raises Conflict if the key was used for another action or another request, InvalidInput for a key that
    is empty or longer than 200 characters.
    """
    if key is None:
        return None
    if not key.isprintable() or not 0 < len(key) <= MAX_KEY_CHARACTERS:
        raise InvalidInput(
            f"an idempotency key has 1 to {MAX_KEY_CHARACTERS} printable characters, this one {len(key)}",
            hint="Send a fresh UUID with each new change",
            field="idempotency_key",
        )
    _hold(session, key)
    row = session.execute(
        select(CommandKeyRow.action, CommandKeyRow.result).where(CommandKeyRow.key == key)
    ).first()
    if row is None:
        return None
    if row.action != action or row.result["request"] != digest_of(request):
        raise Conflict(
            "this idempotency key was used for another change",
            hint="Send a fresh key with each new change",
            field="idempotency_key",
        )
    answer: dict[str, Any] = row.result["answer"]
    return answer


def _hold(session: Session, key: str) -> None:
    try:
        session.execute(
            text("SELECT pg_advisory_xact_lock(:space, hashtext(:key))"), {"space": KEY_SPACE, "key": key}
        )
    except OperationalError as exc:
        if getattr(exc.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
            raise
        raise Conflict(
            "the same change is being made at this moment", hint="Try again", retryable=True
        ) from exc


def remember(
    session: Session,
    key: str | None,
    action: str,
    request: Mapping[str, Any],
    answer: Mapping[str, Any],
    now: datetime,
) -> None:
    """Bind `answer` to `key` in the caller's transaction. Without a key, do nothing."""
    if key is None:
        return
    result = {"request": digest_of(request), "answer": dict(answer)}
    session.add(CommandKeyRow(key=key, action=action, result=result, at=now))
    session.flush()
