"""Drops months' files: each wanted once, made whole, put under its one name, tried again until it is there.

A closed month is dropped when it has closed, the running one once a day if that is wanted. The file goes
first, its manifest last: a manifest says that the file beside it is whole. Found there of the same lines, a
file was delivered; a closed month's name with other lines is an error and stays. Durations are seconds.
Prevents: half a file, the same month under two names, and a month nobody noticed was missing.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import IO, cast
from zoneinfo import ZoneInfo

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from control.closed_months import closed_months
from control.database import session_scope
from control.deps import Deps
from control.export_destinations import FILE_KINDS, FileKind, bucket_of, destinations, standing
from control.export_file import whole_file, write_whole
from control.export_month import month_in
from control.lease import LeaseLost, require
from control.own_metrics import ControlMetrics
from control.s3_bucket import Bucket
from control.tables import ExportDeliveryRow, ExportDestinationRow
from fleet.errors import Conflict, FleetError, NotFound
from fleet.focus import Issuer
from fleet.months import month_at

TICK_S = 20.0
#: A claimed delivery is taken up again after this long: the process that claimed it is gone.
CLAIM_S = 2_400.0
BACKOFF_S, BACKOFF_CAP_S = 30.0, 3_600.0
FILES_A_TICK = 8
#: A daily file that could not be delivered is given up when the next day's is there to be sent.
KEEP_DAILY = timedelta(days=60)
#: Of files in a folder: its group fetches them, nobody else reads what tenants cost.
FILE_MODE = 0o640
_SHOWN = 300
_MAX_MANIFEST_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Job:
    """One file to drop."""

    destination: str
    what: str
    attempts: int

    @property
    def month(self) -> str:
        return self.what.partition("/")[0].partition("@")[0]

    @property
    def day(self) -> str:
        """The day of a running month's file, "" of a closed month's."""
        return self.what.partition("/")[0].partition("@")[2]

    @property
    def kind(self) -> FileKind:
        return FILE_KINDS[self.what.partition("/")[2]]


@dataclass(frozen=True, slots=True)
class Made:
    """A file that is whole, and its manifest."""

    name: str
    body: IO[bytes]
    size: int
    sha256: str
    mark: str  # what a closed month's file is known by: the checksum of its canonical CSV; else its own
    rows: int
    media_type: str
    manifest: bytes


@dataclass(frozen=True, slots=True)
class Dropper:
    """Everything the dropping step touches."""

    deps: Deps
    zone: ZoneInfo
    issuer: Issuer
    metrics: ControlMetrics | None = None

    async def tick(self) -> str:
        """Drop what is due and return the line to log. Needs the lease."""
        epoch = self.deps.leadership.current(self.deps.clock)
        if epoch is None:
            return ""
        try:
            jobs = await asyncio.to_thread(self._claim, epoch)
            said = [await asyncio.to_thread(self._drop, epoch, job) for job in jobs]
        except LeaseLost:
            self.deps.leadership.step_down()
            raise
        return "; ".join(said)

    def _claim(self, epoch: int) -> list[Job]:
        now = self.deps.clock.now()
        with session_scope(self.deps.engine) as session:
            self._count(session)
            if not destinations(session):
                return []
            require(session, epoch, role=self.deps.leadership.role)
            want(session, self.zone, now)
            d = ExportDeliveryRow
            rows = session.scalars(
                select(d)
                .where(d.state == "pending", d.next_at <= now)
                .order_by(d.next_at, d.destination, d.what)
                .limit(FILES_A_TICK)
                .with_for_update()
            ).all()
            for row in rows:
                row.attempts += 1
                row.next_at = now + timedelta(seconds=CLAIM_S)
            return [Job(row.destination, row.what, row.attempts) for row in rows]

    def _count(self, session: Session) -> None:
        if self.metrics is None:
            return
        waiting = standing(session)
        self.metrics.exports.labels(state="pending").set(waiting.pending)
        self.metrics.exports.labels(state="failing").set(waiting.failing)

    def _drop(self, epoch: int, job: Job) -> str:
        try:
            made = self._deliver(job)
        except (FleetError, OSError, SQLAlchemyError) as exc:
            why = _reason(exc)
            self._record(epoch, job, None, why)
            return f"{job.what} not dropped into {job.destination}: {why[:_SHOWN]}"
        self._record(epoch, job, made, "")
        return f"{made.name} dropped into {job.destination}"

    def _deliver(self, job: Job) -> Made:
        now = self.deps.clock.now()
        with session_scope(self.deps.engine) as session:
            row = session.get(ExportDestinationRow, job.destination)
            if row is None or row.removed_at is not None:
                raise NotFound(f"{job.destination} was removed")
            session.expunge(row)
        target: Folder | Objects = (
            Folder(Path(row.place)) if row.kind == "folder" else Objects(bucket_of(row), row.prefix, now)
        )
        with tempfile.TemporaryFile() as out:
            return drop(target, self._made(job, out, now), is_final=not job.day)

    def _made(self, job: Job, out: IO[bytes], now: datetime) -> Made:
        day = f"_{job.day}" if job.day else ""
        if job.kind.layout is None:
            from control.export_usage import usage_format, write_usage  # Arrow, only where it is wanted

            fmt = usage_format(job.kind.fmt)
            use = write_usage(self.deps.engine, job.month, fmt, out, zone=self.zone, now=now)
            out.seek(0)
            stem, _, ending = use.file_name.partition(".")
            name = f"{stem}{day}.{ending}"
            manifest = _manifest(use.manifest(), name)
            rows, mark = use.sums.records, use.sha256
            return Made(name, out, use.size, use.sha256, mark, rows, use.media_type, manifest)
        with session_scope(self.deps.engine) as session:
            spend = month_in(
                session,
                job.month,
                job.kind.fmt,
                job.kind.layout,
                zone=self.zone,
                now=now,
                issuer=self.issuer,
            )
        stem, _, ending = spend.file_name.partition(".")
        name, body = f"{stem}{day}.{ending}", BytesIO(spend.body)
        manifest = _manifest(spend.manifest(), name)
        mark, size = spend.canonical_sha256, len(spend.body)
        return Made(name, body, size, spend.sha256, mark, spend.rows, spend.media_type, manifest)

    def _record(self, epoch: int, job: Job, made: Made | None, error: str) -> None:
        now = self.deps.clock.now()
        with session_scope(self.deps.engine) as session:
            require(session, epoch, role=self.deps.leadership.role)
            row = session.get(ExportDeliveryRow, (job.destination, job.what), with_for_update=True)
            if row is None:
                return
            if made is None:
                row.error = error[:_SHOWN]
                wait_s = min(BACKOFF_S * 2 ** min(job.attempts - 1, 20), BACKOFF_CAP_S)
                row.next_at = now + timedelta(seconds=wait_s)
                return
            row.state, row.delivered_at, row.error = "delivered", now, None
            row.file_name, row.sha256, row.rows = made.name, made.sha256, made.rows


def want(session: Session, zone: ZoneInfo, now: datetime) -> None:
    """Put in line what is to be dropped and is not yet: closed months, and today's files of this month.

    Yesterday's files that are still pending are given up; a closed month's never are.
    """
    d, today = ExportDeliveryRow, now.astimezone(zone).date().isoformat()
    closed = [month.name for month in closed_months(session)]
    current = month_at(now, zone).name
    for place in destinations(session):
        months = [name for name in closed if name >= place.from_month]
        if place.is_daily and current >= place.from_month:
            months.append(f"{current}@{today}")
        wanted = [f"{month}/{kind}" for month in months for kind in place.files]
        if wanted:
            rows = [
                {"destination": place.name, "what": what, "state": "pending", "attempts": 0}
                | {"next_at": now, "wanted_at": now}
                for what in wanted
            ]
            session.execute(insert(d).values(rows).on_conflict_do_nothing())
    active = [place.name for place in destinations(session)]
    for row in session.scalars(select(d).where(d.state == "pending")):
        day = row.what.partition("/")[0].partition("@")[2]
        if row.destination not in active or (day and day < today):
            row.state = "given_up"
    session.execute(delete(d).where(d.what.contains("@"), d.wanted_at < now - KEEP_DAILY))
    session.flush()


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of this machine: files are written beside and renamed."""

    path: Path

    def read(self, name: str) -> bytes | None:
        """Return a small file, or None. Raises Conflict if the folder cannot be read."""
        if not self.path.is_dir():
            raise Conflict(f"there is no folder {self.path}", hint="Make it, or mount it")
        try:
            return _read_small(self.path / name)
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise Conflict(f"{name} in {self.path} cannot be read: {exc.strerror}") from exc

    def store(self, made: Made) -> None:
        """Write the file whole. Raises InvalidInput."""
        with whole_file(self.path / made.name, mode=FILE_MODE, follows_links=False) as file:
            while part := made.body.read(1024 * 1024):
                file.write(part)

    def close(self, made: Made) -> None:
        """Write the manifest."""
        name = manifest_name(made.name)
        write_whole(self.path / name, made.manifest, mode=FILE_MODE, follows_links=False)


@dataclass(frozen=True, slots=True)
class Objects:
    """A bucket below a prefix, at one moment."""

    bucket: Bucket
    prefix: str
    now: datetime

    def read(self, name: str) -> bytes | None:
        """Return a small object, or None. Raises Unavailable."""
        return self.bucket.get(self.prefix + name, self.now)

    def store(self, made: Made) -> None:
        """Put the file. Raises Unavailable."""
        self.bucket.put(
            self.prefix + made.name, made.body, made.size, made.sha256, made.media_type, self.now
        )

    def close(self, made: Made) -> None:
        """Put the manifest."""
        digest = hashlib.sha256(made.manifest).hexdigest()
        name = self.prefix + manifest_name(made.name)
        body = BytesIO(made.manifest)
        self.bucket.put(name, body, len(made.manifest), digest, "application/json", self.now)


def manifest_name(name: str) -> str:
    """Return the name of a file's manifest."""
    return f"{name}.manifest.json"


def drop(target: Folder | Objects, made: Made, *, is_final: bool) -> Made:
    """Put the file and then its manifest, unless a manifest is there already; return what is there now.

    Raises Conflict if a final file's name is taken by other lines; what storing raises.
    """
    there = target.read(manifest_name(made.name))
    if there is None:
        target.store(made)
        target.close(made)
        return made
    said = _said_in(there)
    mark = said.get("canonical_sha256") or said.get("sha256")
    if is_final and mark != made.mark:
        raise Conflict(
            f"{made.name} is there of other lines ({str(mark)[:12]}, not {made.mark[:12]})",
            hint="Move it away with its manifest; nothing is overwritten",
        )
    sha256, rows = said.get("sha256"), said.get("rows")
    if isinstance(sha256, str) and isinstance(rows, int):
        return replace(made, sha256=sha256[:_SHOWN], rows=rows)
    return made


def _said_in(manifest: bytes) -> dict[str, object]:
    try:
        said: object = json.loads(manifest)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, object]", said) if isinstance(said, dict) else {}


def _read_small(path: Path) -> bytes:
    """Return a manifest's bytes. Raises OSError for what is no plain file: a pipe would never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a file")
        return file.read(_MAX_MANIFEST_BYTES)


def _reason(exc: FleetError | OSError | SQLAlchemyError) -> str:
    if isinstance(exc, FleetError):
        return exc.message
    if isinstance(exc, OSError):
        return f"the file cannot be kept until it is sent: {exc.strerror or type(exc).__name__}"
    return f"the database failed ({type(exc).__name__})"


def _manifest(said: Mapping[str, str | int | None], name: str) -> bytes:
    return json.dumps({**said, "file": name}, indent=2).encode() + b"\n"
