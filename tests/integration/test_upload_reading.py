"""Uploads are read by a process of their own: the same traffic, bounded, and ended when left."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from control.rate_profile_uploads import uploaded_profile
from control.upload_reading import AT_ONCE, UploadReader
from fleet.errors import InvalidInput, Unavailable

ROWS = 60_000
TRACE = (
    "t_s,input_tokens,output_tokens\n" + "".join(f"{n * 0.01:.2f},100,10\n" for n in range(ROWS))
).encode()


def sleeper(seconds: float, note: Path | None = None) -> tuple[str, ...]:
    """A child that says how far it is for ever, and its process number in `note`."""
    write = "" if note is None else f"import os; open({str(note)!r}, 'w').write(str(os.getpid())); "
    program = (
        f"import sys, time; {write}end = time.monotonic() + {seconds}\n"
        "while time.monotonic() < end:\n"
        "    print('progress: reading 1/2', file=sys.stderr, flush=True); time.sleep(0.05)"
    )
    return (sys.executable, "-c", program)


@pytest.mark.parametrize("body", [TRACE, gzip.compress(TRACE)], ids=["csv", "gzip"])
def test_the_child_reads_what_the_process_itself_would_and_says_how_far_it_is(body: bytes) -> None:
    heard: list[tuple[int, int]] = []
    found = UploadReader().read("a.csv", body, "a test", lambda done, of: heard.append((done, of)))
    own = uploaded_profile("a.csv", body, "a test")
    assert found.rates_rps.tolist() == own.rates_rps.tolist()
    assert (found.requests, found.tokens_in, found.tokens_out) == (ROWS, 100.0, 10.0)
    assert (found.name, found.source) == ("a.csv", "a test")
    assert {of for _, of in heard} == {len(body)}
    assert [done for done, _ in heard] == sorted(done for done, _ in heard)
    assert len(heard) > 1


def test_what_is_wrong_with_a_file_arrives_as_its_own_words() -> None:
    with pytest.raises(InvalidInput, match="line 3: t_s is 'x'"):
        UploadReader().read("a.csv", b"t_s\n1\nx\n", "a test", lambda *_: None)


@pytest.mark.parametrize("name", ["a\x00b.csv", "\ud800.csv", "--help", "a\nerror: b"])
def test_whatever_a_browser_calls_a_file_it_is_read(name: str) -> None:
    found = UploadReader().read(name, b"t_s\n1\n2\n", f"file {name}", lambda *_: None)
    assert found.requests == 2
    assert found.source.isprintable()


def test_a_child_that_takes_too_long_is_ended() -> None:
    with pytest.raises(Unavailable, match="took over 1 s"):
        UploadReader(1.0, sleeper(120)).read("a.csv", b"", "a test", lambda *_: None)


def test_a_page_that_is_left_ends_its_child_and_gives_its_place_back(tmp_path: Path) -> None:
    class Left(Exception):
        pass

    def leave(_done: int, _of: int) -> None:
        raise Left

    note = tmp_path / "pid"
    reader = UploadReader(100.0, sleeper(120, note))
    for _ in range(AT_ONCE + 1):  # places are given back
        with pytest.raises(Left):
            reader.read("a.csv", b"", "a test", leave)
        with pytest.raises(ProcessLookupError):
            os.kill(int(note.read_text()), 0)


def test_more_files_than_places_are_refused_for_now() -> None:
    reader, is_reading, may_end = (
        UploadReader(100.0, sleeper(120)),
        threading.Barrier(AT_ONCE + 1),
        threading.Event(),
    )

    class Done(Exception):
        pass

    def hold(_done: int, _of: int) -> None:
        is_reading.wait(60)
        may_end.wait(60)
        raise Done

    def read() -> None:
        with pytest.raises(Done):
            reader.read("a.csv", b"", "a test", hold)

    threads = [threading.Thread(target=read) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    is_reading.wait(60)
    with pytest.raises(Unavailable, match="being read already"):
        reader.read("b.csv", b"", "a test", hold)
    may_end.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_the_childs_memory_is_bounded() -> None:
    program = (
        "from control.upload_reading import bound_memory\n"
        "bound_memory(300_000_000)\n"
        "try:\n    kept = bytearray(400_000_000)\nexcept MemoryError:\n    print('bounded')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout.strip() == "bounded"


def test_the_process_that_asks_stays_idle_while_the_child_reads() -> None:
    """The point of it: parsing takes the child's processor time, next to none of the dashboard's."""
    before_own, before_child = time.process_time(), os.times().children_user
    UploadReader().read("a.csv", TRACE, "a test", lambda *_: None)
    own, child = time.process_time() - before_own, os.times().children_user - before_child
    assert own < 0.2 * child
