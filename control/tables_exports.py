"""Tables of scheduled exports: where files go, and what became of each.

A destination names where its secret is (an environment variable or a file), never the secret. Prevents: a
key to a bucket in a backup of the database, and a file that was sent twice under two names.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from control.tables_base import Base


class ExportDestinationRow(Base):
    """A folder or a bucket that months' files are dropped into."""

    __tablename__ = "export_destination"
    name: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    place: Mapped[str]  # absolute path of the folder, or the address of the S3 endpoint
    bucket: Mapped[str | None]
    prefix: Mapped[str]  # of the names in a bucket: "" or ends in "/"
    region: Mapped[str | None]
    access_key: Mapped[str | None]
    secret: Mapped[str | None]  # where it is: env:RHODECK_NAME or file:/path
    files: Mapped[list[str]]  # layout and format of each, as "focus.csv"
    is_daily: Mapped[bool]  # the running month too, once a day
    from_month: Mapped[str]  # no month before it
    created_at: Mapped[datetime]
    created_by: Mapped[str]
    removed_at: Mapped[datetime | None]
    __table_args__ = (CheckConstraint("kind IN ('folder', 's3')", name="kind"),)


class ExportDeliveryRow(Base):
    """One file on its way to a destination. Its name is its identity."""

    __tablename__ = "export_delivery"
    destination: Mapped[str] = mapped_column(ForeignKey("export_destination.name"), primary_key=True)
    what: Mapped[str] = mapped_column(
        primary_key=True
    )  # "2026-11/focus.csv", of a running month with "@day"
    state: Mapped[str]
    attempts: Mapped[int]
    next_at: Mapped[datetime]
    wanted_at: Mapped[datetime]
    delivered_at: Mapped[datetime | None]
    file_name: Mapped[str | None]
    sha256: Mapped[str | None]
    rows: Mapped[int | None]
    error: Mapped[str | None]
    __table_args__ = (CheckConstraint("state IN ('pending', 'delivered', 'given_up')", name="state"),)
