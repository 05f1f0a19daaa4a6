"""The durable spool of usage records: numbered, append-only, in segment files.

Owns `usage/` of the state folder: `spool.id` and segments `<first seq>.jsonl`, one `crc32 json` line a
record. A record is written through at once, or with the others of its turn before anything of it is told
(`hold`), so it survives a kill of the process; it is flushed to the disk in batches, and nothing is served
before that. Sequence numbers rise by one without holes. Counts are bytes and records. Prevents: usage
billed twice, lost by a crash, or seen once and gone after it.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import zlib
from binascii import hexlify
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from admission.durable import sync_folder, write_whole
from fleet.errors import InvalidInput
from fleet.messages import UsageRecord

log = logging.getLogger(__name__)

ID_FILE = "spool.id"
_SUFFIX = ".jsonl"
#: A loss is logged when it has doubled, or so many records were written since: a full disk refuses many.
_WRITTEN_BETWEEN = 1_000


@dataclass(slots=True)
class _Segment:
    """One file of consecutive records."""

    path: Path
    first_seq: int
    last_seq: int  # first_seq - 1 while empty
    size_bytes: int


class UsageSpool:
    """Append, flush, serve, drop. One thread appends; `flush`, `read`, `acknowledge` may run on others."""

    def __init__(self, folder: Path, *, segment_bytes: int = 1 << 20, max_bytes: int = 512 << 20) -> None:
        """Open or create the spool in `folder`. Raises OSError when the folder cannot be used.

        A torn last line (the process or the power died while writing) is cut off. A spool damaged
        elsewhere is kept aside and a new one with a new id begins.
        """
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._max_bytes = max_bytes
        self._unsynced: list[int] = []  # descriptors of finished segments that await their flush
        self._created = 0  # segments made since the start, and those whose names are on disk
        self._created_synced = 0
        self._flushing = threading.Lock()
        self._acknowledging = threading.Lock()
        self._put_bytes = self._gone_bytes = 0  # the first is the appending thread's alone
        self._descriptor = -1
        self._soon: Callable[[], None] | None = None  # None: records are written through
        self._held: list[bytes] = []  # lines that wait for `write_held`
        self._why_not = "", ""
        self._told_drops = self._told_seq = 0  # what was lost and written when a loss was logged last
        self.dropped_records = 0  # lost to a full or failing disk since the start: alarm on it
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._segments = self._recover() or [self._begin_segment(1)]
        if self._descriptor < 0:
            self._descriptor = os.open(self._segments[-1].path, os.O_WRONLY | os.O_APPEND)
        self._put_bytes = sum(segment.size_bytes for segment in self._segments)
        self.last_seq = self._segments[-1].last_seq
        self.synced_seq = 0
        self.flush()

    # -- writing ------------------------------------------------------------------------------------

    @property
    def next_seq(self) -> int:
        """The number the next record must carry."""
        return self.last_seq + len(self._held) + 1

    @property
    def size_bytes(self) -> int:
        """Bytes of records on disk."""
        return self._put_bytes - self._gone_bytes

    @property
    def needs_flush(self) -> bool:
        """Say whether records are written but not yet flushed to the disk."""
        return self.synced_seq < self.last_seq

    def hold(self, soon: Callable[[], None]) -> None:
        """Write records together from now on, in `write_held`, which `soon` promises to call."""
        self._soon = soon

    def append(self, record: UsageRecord) -> bool:
        """Write one record, `record.seq` being `next_seq`. False: dropped, the disk is full or failing.

        Raises InvalidInput for another seq. A dropped record uses no number, so no hole appears.
        """
        return self.append_json(record.seq, record.model_dump_json().encode())

    def append_json(self, seq: int, body: bytes) -> bool:
        """Write a record that is JSON already, as `append` does: a tenth of the time of a model's."""
        if seq != self.next_seq:
            raise InvalidInput(f"usage record {seq} does not follow {self.next_seq - 1}")
        check = hexlify(zlib.crc32(body).to_bytes(4, "big"))  # as `%08x`, which takes longer
        line = b"%s %s\n" % (check, body)
        if self._soon is None:
            return self._put(line, 1) or self._drop(1)
        if not self._held:
            self._soon()
        self._held.append(line)
        return True

    def write_held(self) -> None:
        """Write what is held. Where the disk takes a part only, the newest records are dropped."""
        held, self._held = self._held, []
        if not held or self._put(b"".join(held), len(held)):
            return
        for done, line in enumerate(held):
            if not self._put(line, 1):
                self._drop(len(held) - done)
                return

    def flush(self) -> None:
        """Bring what was appended before this call to the disk. Raises OSError; nothing is marked then."""
        with self._flushing:
            target = self.last_seq
            created = self._created
            descriptor = self._descriptor  # before the list: a roll in between puts it there too
            finished = [old for old in self._unsynced if old != descriptor]
            for old in finished:
                os.fdatasync(old)
            os.fdatasync(descriptor)
            if created != self._created_synced:
                sync_folder(self._folder)
                self._created_synced = created
            self.synced_seq = target
            for old in finished:
                self._unsynced.remove(old)
                os.close(old)

    def close(self) -> None:
        """Write, flush and close. The spool cannot be used afterwards."""
        self.write_held()
        self.flush()
        os.close(self._descriptor)
        self._descriptor = -1

    # -- serving ------------------------------------------------------------------------------------

    def read(self, after: int, limit: int) -> list[bytes]:
        """Return the JSON of at most `limit` flushed records with seq > `after`, in order. Any thread."""
        found: list[bytes] = []
        newest = self.synced_seq
        for segment in list(self._segments):
            if segment.last_seq <= after or len(found) >= limit:
                continue
            for seq, (body, _) in enumerate(_lines(segment.path), start=segment.first_seq):
                if seq > newest or len(found) >= limit:
                    return found
                if seq > after:
                    found.append(body)
        return found

    def acknowledge(self, seq: int) -> None:
        """Forget records up to `seq`: whole segments are removed; the newest stays, it carries the number.

        Raises InvalidInput when `seq` was never served.
        """
        if seq > self.synced_seq:
            raise InvalidInput(
                f"records up to {seq} are acknowledged but only {self.synced_seq} exist",
                field="seq",
                hint="Ask GET /admin/status for the spool's id and last number",
            )
        with self._acknowledging:
            gone = [segment for segment in self._segments[:-1] if segment.last_seq <= seq]
            del self._segments[: len(gone)]  # in place: a segment appended meanwhile stays in the list
            for segment in gone:
                segment.path.unlink(missing_ok=True)
                self._gone_bytes += segment.size_bytes

    # -- files --------------------------------------------------------------------------------------

    def _put(self, lines: bytes, records: int) -> bool:
        """Write the lines of so many records, all or none. False: they find no room (`_why_not`)."""
        if self.size_bytes + len(lines) > self._max_bytes:
            self._why_not = "usage spool is full", "size"
            return False
        try:
            self._roll_if_full(len(lines))
            self._write(lines)
        except OSError as exc:
            self._why_not = "usage spool cannot be written", str(exc)
            return False
        segment = self._segments[-1]
        segment.size_bytes += len(lines)
        self._put_bytes += len(lines)
        self.last_seq += records
        segment.last_seq = self.last_seq
        return True

    def _write(self, lines: bytes) -> None:
        written = os.write(self._descriptor, lines)
        if written != len(lines):  # a short write means a full disk: take the torn lines back
            os.ftruncate(self._descriptor, self._segments[-1].size_bytes)
            raise OSError(f"{written} of {len(lines)} bytes written")

    def _drop(self, records: int) -> bool:
        message, reason = self._why_not
        self.dropped_records += records
        is_news = self.last_seq >= self._told_seq + _WRITTEN_BETWEEN  # the disk had room meanwhile
        if is_news or self.dropped_records >= 2 * self._told_drops:
            self._told_drops, self._told_seq = self.dropped_records, self.last_seq
            log.error(message, extra={"dropped": self.dropped_records, "reason": reason})
        return False

    def _roll_if_full(self, coming_bytes: int) -> None:
        segment = self._segments[-1]
        if segment.size_bytes == 0 or segment.size_bytes + coming_bytes <= self._segment_bytes:
            return
        self._segments.append(self._begin_segment(self.last_seq + 1))

    def _begin_segment(self, first_seq: int) -> _Segment:
        """Create the file of the next records and write there from now on. Raises OSError."""
        path = self._folder / f"{first_seq:020d}{_SUFFIX}"
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._created += 1  # the next flush brings its name to the disk: here it would hold up requests
        if self._descriptor >= 0:
            self._unsynced.append(self._descriptor)  # before the new one: a flush meanwhile sees both
        self._descriptor = descriptor
        return _Segment(path, first_seq, first_seq - 1, 0)

    # -- opening ------------------------------------------------------------------------------------

    def _recover(self) -> list[_Segment]:
        id_path = self._folder / ID_FILE
        self.spool_id = id_path.read_text().strip() if id_path.exists() else ""
        paths = sorted(self._folder.glob(f"*{_SUFFIX}"))
        if self.spool_id and paths:
            segments = [_scan(path, cut=path == paths[-1]) for path in paths]
            if _is_whole(segments):
                return [segment for segment in segments if segment is not None]
            log.error("usage spool is damaged and was kept aside", extra={"spool": self.spool_id})
        self._keep_aside(paths)
        self.spool_id = secrets.token_hex(8)
        write_whole(id_path, self.spool_id.encode() + b"\n")
        return []

    def _keep_aside(self, paths: list[Path]) -> None:
        if not paths:
            return
        aside = self._folder / f"damaged-{self.spool_id or 'unnamed'}-{secrets.token_hex(4)}"
        aside.mkdir(mode=0o700)
        for path in paths:
            path.rename(aside / path.name)


def _is_whole(segments: list[_Segment | None]) -> bool:
    """Say whether every segment is sound and follows the one before."""
    previous: _Segment | None = None
    for segment in segments:
        if segment is None or (previous and segment.first_seq != previous.last_seq + 1):
            return False
        previous = segment
    return True


def _scan(path: Path, *, cut: bool) -> _Segment | None:
    """Return what a segment file holds; None if it is damaged. `cut`: remove a torn tail first."""
    if not path.stem.isdigit():
        return None
    first_seq = int(path.stem)
    last_seq, good_bytes = first_seq - 1, 0
    for body, end in _lines(path):
        if _seq_of(body) != last_seq + 1:
            return None
        last_seq, good_bytes = last_seq + 1, end
    if good_bytes == path.stat().st_size:
        return _Segment(path, first_seq, last_seq, good_bytes)
    if not cut or _has_records_behind(path, good_bytes):
        return None
    log.warning("torn tail of the usage spool cut off", extra={"after_seq": last_seq})
    os.truncate(path, good_bytes)
    return _Segment(path, first_seq, last_seq, good_bytes)


def _lines(path: Path) -> Iterator[tuple[bytes, int]]:
    """Yield (json, offset behind it) of each line whose checksum holds; stop at the first that does not."""
    end = 0
    for line in path.read_bytes().splitlines(keepends=True):  # whole: a segment is a megabyte or so
        end += len(line)
        if not _is_sound(line):
            return
        yield line[9:-1], end


def _is_sound(line: bytes) -> bool:
    return line.endswith(b"\n") and line[:9] == b"%08x " % zlib.crc32(line[9:-1])


def _has_records_behind(path: Path, offset: int) -> bool:
    """Say whether a sound record follows the first bad one: then it is damage, not a torn tail."""
    with path.open("rb") as file:
        file.seek(offset)
        return any(_is_sound(line) for line in file)


def _seq_of(body: bytes) -> int | None:
    try:
        record = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return record.get("seq") if isinstance(record, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
