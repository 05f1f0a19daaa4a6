"""Where months' files are dropped: folders and buckets, added and removed on the command line.

Only an admin names a folder of the controller's machine or where a secret is; the secret itself stays in an
environment variable of ours or a file. Prevents: a destination that writes anywhere for anybody, and a
bucket's key in the database.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath

from sqlalchemy import select
from sqlalchemy.orm import Session

from control import audit
from control.exports import FORMATS, LAYOUTS, Format, Layout
from control.roles import Actor, Permission, require
from control.s3_bucket import Bucket, checked_bucket, checked_endpoint
from control.s3_signature import Key
from control.tables import ExportDeliveryRow, ExportDestinationRow
from fleet.errors import Conflict, InvalidInput, NotFound, Unavailable

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
_VARIABLE = re.compile(r"RHODECK_[A-Z0-9_]{1,80}")
_PREFIX = re.compile(r"((?!\.\.?/)[A-Za-z0-9_.=-]{1,100}/){0,8}")
_REGION = re.compile(r"[a-z0-9-]{1,40}")
_ACCESS_KEY = re.compile(r"[A-Za-z0-9._@-]{3,128}")
_MONTH = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")
MAX_DESTINATIONS = 20
_MAX_SECRET_BYTES = 4_096


@dataclass(frozen=True, slots=True)
class FileKind:
    """One kind of file of a month: spend in a layout, or its usage records (layout None)."""

    layout: Layout | None
    fmt: Format

    def __str__(self) -> str:
        if self.layout is None:
            return f"usage.{self.fmt}"
        return self.fmt if self.layout == "plain" else f"{self.layout}.{self.fmt}"


#: Every kind of file, by its name in `files`.
FILE_KINDS: dict[str, FileKind] = {
    str(kind): kind
    for kind in (
        *(FileKind(layout, fmt) for layout in LAYOUTS for fmt in FORMATS),
        FileKind(None, "csv"),
        FileKind(None, "parquet"),
    )
}


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of one file."""

    destination: str
    what: str
    state: str
    attempts: int
    next_at: datetime
    delivered_at: datetime | None
    file_name: str | None
    error: str | None


def add_folder(
    session: Session,
    actor: Actor,
    *,
    name: str,
    path: str,
    files: Sequence[str],
    from_month: str,
    is_daily: bool,
    now: datetime,
) -> None:
    """Drop files into a folder of the controller's machine. Raises InvalidInput, Conflict, Forbidden."""
    pure = PurePosixPath(path)
    if not pure.is_absolute() or ".." in pure.parts or not path.isprintable() or len(path) > 300:
        raise InvalidInput(
            "the folder is not an absolute path", hint="Write it as /srv/finance", field="path"
        )
    row = _new(session, actor, name, files, from_month, is_daily, now)
    row.kind, row.place, row.prefix = "folder", str(pure), ""
    row.bucket = row.region = row.access_key = row.secret = None
    _added(session, actor, row, now)


def add_bucket(
    session: Session,
    actor: Actor,
    *,
    name: str,
    endpoint: str,
    bucket: str,
    access_key: str,
    secret: str,
    region: str,
    prefix: str,
    files: Sequence[str],
    from_month: str,
    is_daily: bool,
    now: datetime,
) -> None:
    """Put files into a bucket. `secret` is where the key is: env:RHODECK_NAME or file:/path.

    Raises InvalidInput, Conflict, Forbidden.
    """
    for value, pattern, field in (
        (access_key, _ACCESS_KEY, "access_key"),
        (region, _REGION, "region"),
        (prefix, _PREFIX, "prefix"),
    ):
        if not pattern.fullmatch(value):
            raise InvalidInput(
                f"{field} is not usable", hint=f"It must be like {pattern.pattern}", field=field
            )
    row = _new(session, actor, name, files, from_month, is_daily, now)
    row.kind, row.place, row.bucket = "s3", checked_endpoint(endpoint), checked_bucket(bucket)
    row.prefix, row.region, row.access_key, row.secret = prefix, region, access_key, _checked_secret(secret)
    _added(session, actor, row, now)


def remove(session: Session, actor: Actor, *, name: str, now: datetime) -> None:
    """Drop nothing there any more; what was dropped stays. Raises NotFound, Forbidden."""
    require(actor, Permission.NAME_CREDENTIAL_FILES)
    row = session.get(ExportDestinationRow, name)
    if row is None or row.removed_at is not None:
        raise NotFound(
            f"no destination is called {name[:80]!r}", hint="See `rhodeck exports list`", field="name"
        )
    row.removed_at = now
    audit.append(session, actor, "export_destination.remove", f"destination {name}", "", {}, now)


def destinations(session: Session) -> Sequence[ExportDestinationRow]:
    """Return the destinations in use, by name."""
    d = ExportDestinationRow
    return session.scalars(select(d).where(d.removed_at.is_(None)).order_by(d.name)).all()


def deliveries(session: Session, *, limit: int = 50) -> list[Delivery]:
    """Return what became of files: those still pending first, then the newest."""
    d = ExportDeliveryRow
    rows = session.scalars(
        select(d).order_by(d.state == "delivered", d.wanted_at.desc(), d.destination, d.what).limit(limit)
    )
    return [
        Delivery(
            r.destination, r.what, r.state, r.attempts, r.next_at, r.delivered_at, r.file_name, r.error
        )
        for r in rows
    ]


def bucket_of(row: ExportDestinationRow) -> Bucket:
    """Return the bucket, its secret read now. Raises Unavailable naming where it is, never its content."""
    key = Key(row.access_key or "", _read_secret(row.secret or ""), row.region or "us-east-1")
    return Bucket(row.place, row.bucket or "", key)


def _new(
    session: Session,
    actor: Actor,
    name: str,
    files: Sequence[str],
    from_month: str,
    is_daily: bool,
    now: datetime,
) -> ExportDestinationRow:
    require(actor, Permission.NAME_CREDENTIAL_FILES)
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:80]!r} is not a name", hint="Use 1 to 63 of a-z, 0-9, '-', '_', '.'", field="name"
        )
    unknown = [each for each in files if each not in FILE_KINDS]
    if unknown or not files:
        raise InvalidInput(
            f"{(unknown or ['nothing'])[0][:40]!r} is no kind of file",
            hint=f"Use {', '.join(FILE_KINDS)}",
            field="files",
        )
    if not _MONTH.fullmatch(from_month):
        raise InvalidInput(f"{from_month[:20]!r} is not a month", hint="Write it as 2026-11", field="from")
    if session.get(ExportDestinationRow, name) is not None:  # a name says where files went, for good
        raise Conflict(f"a destination was called {name} already", hint="Choose another name", field="name")
    if len(destinations(session)) >= MAX_DESTINATIONS:
        raise Conflict(f"there are {MAX_DESTINATIONS} destinations", hint="Remove one first", field="name")
    return ExportDestinationRow(
        name=name,
        files=list(dict.fromkeys(files)),
        from_month=from_month,
        is_daily=is_daily,
        created_at=now,
        created_by=actor.name,
    )


def _added(session: Session, actor: Actor, row: ExportDestinationRow, now: datetime) -> None:
    session.add(row)
    session.flush()
    detail = {"kind": row.kind, "place": row.place, "bucket": row.bucket, "files": row.files}
    audit.append(session, actor, "export_destination.add", f"destination {row.name}", "", detail, now)


def _checked_secret(where: str) -> str:
    kind, _, rest = where.partition(":")
    is_file = kind == "file" and Path(rest).is_absolute() and rest.isprintable() and len(rest) <= 300
    if is_file or (kind == "env" and _VARIABLE.fullmatch(rest)):
        return where
    raise InvalidInput(
        "where the secret is must be a file or a variable of ours",
        hint="Write file:/absolute/path or env:RHODECK_NAME; the secret itself is never stored",
        field="secret",
    )


def _read_secret(where: str) -> str:
    kind, _, rest = where.partition(":")
    if kind == "env":
        found = os.environ.get(rest, "")
    else:
        try:
            with Path(rest).open("rb") as file:
                found = file.read(_MAX_SECRET_BYTES).decode("utf-8", "replace")
        except OSError as exc:
            raise Unavailable(
                f"the secret file {rest} cannot be read: {exc.strerror}",
                hint="Put the key there, readable by the controller's account alone",
            ) from exc
    if not found.strip() or not found.strip().isprintable():
        raise Unavailable(f"there is no secret in {where}", hint="Set it for the controller's process")
    return found.strip()


@dataclass(frozen=True, slots=True)
class Standing:
    """What places that are not removed have not taken."""

    pending: int
    failing: int  # of them, failed at least once
    tries: int  # of the one tried most often in vain
    worst: str  # its place, what it is, and why; "" if none fails


def standing(session: Session) -> Standing:
    """Return how scheduled files stand."""
    d, p = ExportDeliveryRow, ExportDestinationRow
    rows = session.execute(
        select(d.destination, d.what, d.attempts, d.error)
        .join(p, p.name == d.destination)
        .where(d.state == "pending", p.removed_at.is_(None))
        .order_by(d.attempts.desc(), d.destination, d.what)
    ).all()
    failing = [row for row in rows if row.error is not None]
    if not failing:
        return Standing(len(rows), 0, 0, "")
    place, what, tries, error = failing[0]
    return Standing(len(rows), len(failing), tries, f"{what} to {place}: {error}")
