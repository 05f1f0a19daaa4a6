"""Which requests are at engines now, on disk: what a killed gateway still owes a usage record for.

Owns `usage/running.log`: a `+` line with a draft of the record before a request goes to an engine, a `-`
line after its real record is in the spool. The latter may wait for the next `+`: until it is acknowledged,
the record itself says as much. A `+` waits for the others of its turn where somebody promises to write it
before the request leaves (`hold`). Read once at the start. Sizes are bytes. Prevents: engine time that
nobody pays for because the gateway was killed while it was used.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Set
from pathlib import Path
from typing import Any, cast

import orjson
from pydantic import ValidationError

from admission.usage_spool import UsageSpool
from fleet.clock import Clock
from fleet.messages import UsageRecord
from fleet.outcomes import Outcome

log = logging.getLogger(__name__)

FILE_NAME = "running.log"
_COMPACT_BYTES = 1 << 20
_PAGE_RECORDS = 5_000
_MOST_WAITING = 256


class RunningJournal:
    """Written through at once: it survives a kill of the process, not a power cut."""

    def __init__(self, folder: Path) -> None:
        """Begin an empty journal; call `settle` for the old one first. Raises OSError."""
        self._path = folder / FILE_NAME
        self._running: dict[str, bytes] = {}
        self._size_bytes = 0
        self._most_bytes = _COMPACT_BYTES  # beyond that it is written anew
        self._waiting: list[bytes] = []  # lines that wait for company
        self._has_begun = False  # one of them is a `+`
        self._records_first: Callable[[], None] | None = None  # None: a `+` is written through
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        self._lacks = False  # the disk refused a line: the file is written anew when it takes one again
        self.failures = 0  # writes the disk refused

    def hold(self, records_first: Callable[[], None]) -> None:
        """Write what begins in `write_held` from now on, which must be called before the request leaves.

        `records_first` writes the records that ended requests have by then: before their ends stand here.
        """
        self._records_first = records_first

    def begin(self, request_id: str, draft: dict[str, Any]) -> None:
        """Note that a request goes to an engine, with what its record will say of it."""
        self.begin_json(request_id, orjson.dumps(draft | {"request_id": request_id}))

    def begin_json(self, request_id: str, draft: bytes) -> None:
        """Note it as `begin` does, of a draft that is JSON already and names the request."""
        line = self._running[request_id] = b"+" + draft + b"\n"
        self._waiting.append(line)
        if self._records_first is None:
            self.flush()
        else:
            self._has_begun = True

    def write_held(self) -> None:
        """Write what began, and what ended with it."""
        if self._has_begun:
            self.flush()

    def end(self, request_id: str, *, has_record: bool) -> None:
        """Note that the request ended, with its record in the spool or without one."""
        if self._running.pop(request_id, None) is None:
            return
        self._waiting.append(b"-%s\n" % request_id.encode())
        if not has_record or len(self._waiting) >= _MOST_WAITING:
            self.flush()
        if self._size_bytes > self._most_bytes:
            self._compact()

    def flush(self) -> None:
        """Write what waits: due before records are acknowledged, and so forgotten by the spool.

        And once more after that: what a full disk refused has the room that they gave.
        """
        if self._waiting or self._lacks:
            lines, self._waiting, self._has_begun = self._waiting, [], False
            self._write(b"".join(lines))

    def close(self) -> None:
        """Close the file."""
        self.flush()
        os.close(self._descriptor)

    def _write(self, data: bytes) -> None:
        if self._records_first is not None:
            self._records_first()
        if self._lacks:  # behind half a line nothing could be read
            self._compact()
            return
        try:
            self._size_bytes += _whole(self._descriptor, data)
        except OSError as exc:
            self._refused(exc)

    def _refused(self, exc: OSError) -> None:
        self.failures += 1
        if not self._lacks:  # once, not at each request while the disk is full
            log.error("journal of running requests cannot be written", extra={"reason": exc.strerror})
        self._lacks = True

    def _compact(self) -> None:
        """Write the running ones into a new file and put it in place of the old."""
        if self._records_first is not None:
            self._records_first()
        self._waiting.clear()
        self._has_begun = False
        beside = self._path.with_suffix(".new")
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        except OSError as exc:
            self._refused(exc)
            return
        try:
            size_bytes = _whole(descriptor, b"".join(self._running.values()))
            beside.replace(self._path)
        except OSError as exc:
            os.close(descriptor)
            beside.unlink(missing_ok=True)
            self._refused(exc)
            return
        os.close(self._descriptor)
        self._descriptor, self._size_bytes, self._lacks = descriptor, size_bytes, False
        self._most_bytes = max(_COMPACT_BYTES, 2 * size_bytes)  # thousands may run: not at each end


def _whole(descriptor: int, data: bytes) -> int:
    """Write all of `data`; return its length. Raises OSError, also when the disk took a part only."""
    if data and os.write(descriptor, data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return len(data)


def settle(folder: Path, spool: UsageSpool, clock: Clock) -> int:
    """Give each request that a killed process left running its record; return how many there were.

    Its prompt is booked as estimated and no output: nobody counted it. Raises OSError.
    """
    drafts = _left_running(folder / FILE_NAME)
    if not drafts:
        return 0
    recorded = _recorded(spool, drafts.keys())
    owed = [draft for request_id, draft in drafts.items() if request_id not in recorded]
    for draft in owed:
        try:
            record = UsageRecord(
                **draft,
                seq=spool.next_seq,
                outcome=Outcome.UPSTREAM_ERROR,
                cached_tokens=None,
                output_tokens=0,
                exact=False,
                ttft_s=None,
                engine_s=0.0,
                finished_at_s=clock.now().timestamp(),
            )
        except (ValidationError, TypeError):
            log.error("a line of the journal of running requests is not a draft")
            continue
        spool.append(record)
    spool.flush()
    log.warning("requests were cut off by the end of the last process", extra={"requests": len(owed)})
    return len(owed)


def _recorded(spool: UsageSpool, wanted: Set[str]) -> set[str]:
    """Return which of the `wanted` requests have their record. Reads the spool a page at a time."""
    found: set[str] = set()
    after = 0
    while page := spool.read(after, _PAGE_RECORDS):
        records = [orjson.loads(body) for body in page]
        found |= wanted & {str(record["request_id"]) for record in records}
        after = int(records[-1]["seq"])
    return found


def _left_running(path: Path) -> dict[str, dict[str, Any]]:
    """Return the drafts without an end, by request. A torn last line is not one."""
    running: dict[str, dict[str, Any]] = {}
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return running
    for line in lines:
        if line.startswith(b"-"):
            running.pop(line[1:].strip().decode("ascii", "replace"), None)
        elif line.startswith(b"+") and line.endswith(b"\n"):
            try:
                draft = orjson.loads(line[1:])
            except orjson.JSONDecodeError:
                continue
            if isinstance(draft, dict) and "request_id" in draft:
                running[str(cast("dict[str, Any]", draft)["request_id"])] = cast("dict[str, Any]", draft)
    return running
