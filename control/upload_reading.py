"""Uploaded traffic read by a process of its own: bounded in time and memory, with progress, a few at once.

Times are seconds, sizes bytes. A child reads the file from standard input, says how far it is on standard
error, and answers one line of JSON and the rates as they are in memory. Prevents: a minute of parsing in
the process that answers every browser, and an upload that takes its memory with it.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from control.progress_lines import read_progress
from control.study_process import end_process, refused, start_process
from fleet.errors import InvalidInput, Unavailable
from fleet.rate_profiles import RateProfile

TIMEOUT_S = 300.0
MEMORY_BYTES = 1_500_000_000  # of the child's own data; five million requests take a tenth
AT_ONCE = 2
_LAST_WORDS = 100
Told = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before the rates in the child's answer."""

    name: str
    source: str
    tokens_in: float | None
    tokens_out: float | None
    requests: int | None


class UploadReader:
    """Reads uploads, a few at once. Safe from every thread; one for the process."""

    def __init__(
        self,
        timeout_s: float = TIMEOUT_S,
        command: tuple[str, ...] = (sys.executable, "-P", "-m", "control", "estimate", "read-traffic"),
    ) -> None:
        self._timeout_s, self._command = timeout_s, command
        self._places = threading.BoundedSemaphore(AT_ONCE)

    def read(self, name: str, body: bytes, source: str, told: Told) -> RateProfile:
        """Return the traffic in an uploaded file; `told` hears bytes read and bytes in all.

        Whatever `told` raises ends the child. Raises InvalidInput for what is no traffic or needs too much
        memory, Unavailable when it takes too long or too many are being read.
        """
        if not self._places.acquire(blocking=False):
            raise Unavailable(f"{AT_ONCE} files are being read already", hint="Try again in a minute")
        try:
            return self._read(name, body, source, told)
        finally:
            self._places.release()

    def _read(self, name: str, body: bytes, source: str, told: Told) -> RateProfile:
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out:
            given.write(body)
            given.seek(0)
            command = [
                *self._command,
                "--name",
                _as_argument(name, 200),
                "--source",
                _as_argument(source, 300),
            ]
            process = start_process(command, given, out)
            said, is_late = self._watch(process, told)
            if is_late:
                raise Unavailable(
                    f"reading {name[:60]} took over {self._timeout_s:.0f} s and was ended",
                    hint="Give a shorter trace, or rates by bin",
                )
            if process.returncode != 0:
                raise refused(said, f"{name[:60]} could not be read", "Give CSV, CSV.gz or Parquet")
            return _profile(out)

    def _watch(self, process: subprocess.Popen[bytes], told: Told) -> tuple[list[str], bool]:
        late = threading.Event()
        timer = threading.Timer(self._timeout_s, end_process, (process, late.set))
        timer.daemon = True
        said: deque[str] = deque(maxlen=_LAST_WORDS)
        with process:
            timer.start()
            try:
                for line in process.stderr or ():
                    text = line[:2_000].decode("utf-8", "replace").strip()
                    step = read_progress(text)
                    if step is None:
                        said.append(text)
                    else:
                        told(step[1], step[2])
                process.wait()
            finally:
                process.kill()  # nothing but an error or a page that was left ends it early
                timer.cancel()
                timer.join()
        return list(said), late.is_set()


def _as_argument(text: str, most: int) -> str:
    """Return what a browser called a file so that any process can be told: no NUL, no half character."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text[:most])


def bound_memory(most: int = MEMORY_BYTES) -> None:
    """Let this process have at most `most` bytes of data of its own. Source: setrlimit(2), RLIMIT_DATA."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def as_answer(profile: RateProfile) -> bytes:
    """Return a profile as the child answers it."""
    head = {
        "name": profile.name,
        "source": profile.source,
        "tokens_in": profile.tokens_in,
        "tokens_out": profile.tokens_out,
        "requests": profile.requests,
    }
    return json.dumps(head).encode() + b"\n" + profile.rates_rps.astype("<f8").tobytes()


def _profile(out: IO[bytes]) -> RateProfile:
    out.seek(0)
    try:
        said: dict[str, Any] = json.loads(out.readline())
        head = Head(**said)
        rates = np.frombuffer(out.read(), dtype="<f8").astype(np.float64)
    except (ValueError, TypeError) as exc:
        raise Unavailable("what was read of the file came back broken", hint="Try again") from exc
    if not rates.size:
        raise InvalidInput(f"{head.name[:60]} has no traffic", field="/profile")
    return RateProfile(head.name, rates, head.source, head.tokens_in, head.tokens_out, head.requests)
