"""Table of the keys months are signed with, where one took another's place.

Never the key itself. Append-only. Prevents: a key that changed without anybody's name and reason.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Identity
from sqlalchemy.orm import Mapped, mapped_column

from control.tables_base import Base


class MonthKeyRow(Base):
    """A key declared for the months to come, and the months that were closed by then."""

    __tablename__ = "month_key"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    key_id: Mapped[str]
    replaces: Mapped[str]  # "" if no month was signed before
    closed: Mapped[dict[str, Any]]  # month: SHA-256 of all that was kept of it
    reason: Mapped[str]
    created_by: Mapped[str]
    created_at: Mapped[datetime]
    signature: Mapped[str]  # HMAC-SHA256 over the rest, with the new key
