"""Who may write the books of a month at once: table locks, taken before what is judged is read.

Held to the end of the transaction. A command that reads "is that month closed?" or "was a price in force?"
and then writes holds the table it writes to first, so that whoever closes a month or writes the same has
either committed, and is seen, or waits. Prevents: a price or commitment of a month that closed between the
question and the write, and two first prices of the same past.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from fleet.errors import Conflict

#: "ROW EXCLUSIVE" keeps out whoever closes a month; "SHARE ROW EXCLUSIVE" all others who write, too.
Mode = Literal["ROW EXCLUSIVE", "SHARE ROW EXCLUSIVE"]
_LOCK_NOT_AVAILABLE = "55P03"


def hold_books(session: Session, tables: Sequence[str], mode: Mode, otherwise: str) -> None:
    """Let nobody write `tables` (our own names) who conflicts with `mode`, until the transaction ends.

    Take several in the order of `control.month_close.LOCKED`. Raises Conflict (retryable), saying that the
    books are being written and `otherwise`, when others hold them for longer than the connection waits.
    """
    try:
        session.execute(text(f"LOCK TABLE {', '.join(tables)} IN {mode} MODE"))
    except OperationalError as exc:
        if getattr(exc.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
            raise
        raise Conflict(
            f"the books are being written; {otherwise}", hint="Try again", retryable=True
        ) from exc
