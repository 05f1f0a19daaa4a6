"""The journal of running requests over kills: one record a request, none that no engine had."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest

from admission.running_journal import FILE_NAME, RunningJournal, settle
from admission.usage_spool import UsageSpool
from fleet.clock import ManualClock
from tests.disk_limits import files_of_at_most

CLOCK = ManualClock(datetime(2026, 11, 1, tzinfo=UTC))
DRAFT = {
    "tenant": "acme",
    "key_id": "k",
    "tier": "interactive",
    "model": "m",
    "endpoint": "chat",
    "node": "n1",
    "pool": "p",
    "prompt_tokens": 3,
    "reserved_tokens": 9,
    "queued_s": 0.0,
}
REST = {
    "outcome": "completed",
    "cached_tokens": None,
    "output_tokens": 2,
    "exact": True,
    "ttft_s": None,
    "engine_s": 0.1,
    "finished_at_s": 1.7e9,
}


def record(spool: UsageSpool, request_id: str) -> None:
    seq = spool.next_seq
    assert spool.append_json(seq, orjson.dumps({**DRAFT, **REST, "seq": seq, "request_id": request_id}))


def settled(folder: Path) -> int:
    """Do what a process does that starts after a kill: what waited in memory is lost."""
    return settle(folder, UsageSpool(folder), CLOCK)


def recorded(folder: Path) -> list[tuple[str, str]]:
    records = map(orjson.loads, UsageSpool(folder).read(0, 1_000))
    return [(one["request_id"], one["outcome"]) for one in records]


def test_a_request_that_ended_with_a_record_is_not_recorded_again_though_its_end_was_not_written(
    tmp_path: Path,
) -> None:
    spool, journal = UsageSpool(tmp_path), RunningJournal(tmp_path)
    journal.begin("a", dict(DRAFT))
    record(spool, "a")
    journal.end("a", has_record=True)
    assert b"-a\n" not in (tmp_path / FILE_NAME).read_bytes()  # it waits
    assert settled(tmp_path) == 0
    assert recorded(tmp_path) == [("a", "completed")]


def test_a_request_that_ran_at_the_kill_gets_its_record(tmp_path: Path) -> None:
    spool, journal = UsageSpool(tmp_path), RunningJournal(tmp_path)
    for name in ("a", "b"):
        journal.begin(name, dict(DRAFT))
    record(spool, "a")
    journal.end("a", has_record=True)
    assert settled(tmp_path) == 1
    assert recorded(tmp_path) == [("a", "completed"), ("b", "upstream_error")]


def test_a_request_that_no_engine_had_gets_none(tmp_path: Path) -> None:
    UsageSpool(tmp_path).close()
    journal = RunningJournal(tmp_path)
    journal.begin("refused", dict(DRAFT))
    journal.end("refused", has_record=False)
    assert settled(tmp_path) == 0
    assert recorded(tmp_path) == []


def test_records_that_were_acknowledged_and_are_gone_do_not_come_back(tmp_path: Path) -> None:
    spool, journal = UsageSpool(tmp_path, segment_bytes=1), RunningJournal(tmp_path)  # a record a segment
    for name in ("a", "b"):
        journal.begin(name, dict(DRAFT))
        record(spool, name)
        journal.end(name, has_record=True)
    spool.flush()
    journal.flush()  # as the admin API does before it acknowledges
    spool.acknowledge(2)
    assert recorded(tmp_path) == [("b", "completed")]  # the newest segment stays
    assert settled(tmp_path) == 0
    assert recorded(tmp_path) == [("b", "completed")]


def test_records_acknowledged_while_the_disk_is_full_do_not_come_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The ends of their requests could not be written; the room that the records had is enough for them."""
    spool, journal = UsageSpool(tmp_path, segment_bytes=1), RunningJournal(tmp_path)  # a record a segment
    for name in ("a", "b", "runs"):
        journal.begin(name, dict(DRAFT))
    with files_of_at_most((tmp_path / FILE_NAME).stat().st_size):
        for name in ("a", "b"):
            record(spool, name)
            journal.end(name, has_record=True)
        spool.flush()
        journal.flush()
        journal.flush()
    spool.acknowledge(2)
    journal.flush()  # as the admin API does when they are gone
    assert [one.message for one in caplog.records].count(
        "journal of running requests cannot be written"
    ) == 1
    assert settled(tmp_path) == 1
    assert recorded(tmp_path) == [("b", "completed"), ("runs", "upstream_error")]  # the newest stayed


def test_the_journal_stays_short_over_many_requests(tmp_path: Path) -> None:
    UsageSpool(tmp_path).close()
    journal = RunningJournal(tmp_path)
    journal.begin("stays", dict(DRAFT))
    for number in range(20_000):  # of about 250 bytes each: 5 MB
        journal.begin(f"r{number}", dict(DRAFT))
        journal.end(f"r{number}", has_record=True)
    journal.close()
    assert (tmp_path / FILE_NAME).stat().st_size < 2 << 20
    assert settled(tmp_path) == 1
    assert recorded(tmp_path) == [("stays", "upstream_error")]


def test_thousands_that_run_are_written_anew_only_when_as_many_ended(tmp_path: Path) -> None:
    UsageSpool(tmp_path).close()
    journal = RunningJournal(tmp_path)
    running = [f"r{number}" for number in range(8_000)]  # of about 200 bytes each: more than 1 MB
    for name in running:
        journal.begin(name, dict(DRAFT))
    files = {(tmp_path / FILE_NAME).stat().st_ino}
    for name in running[:2_000]:
        journal.begin(f"{name}-next", dict(DRAFT))
        journal.end(name, has_record=True)
        files.add((tmp_path / FILE_NAME).stat().st_ino)
    assert len(files) <= 2
    for name in running[2_000:]:
        journal.end(name, has_record=False)
    journal.close()
    assert settled(tmp_path) == 2_000


def test_a_full_disk_costs_no_descriptor_and_what_it_refused_is_written_when_it_is_not_full(
    tmp_path: Path,
) -> None:
    spool, journal = UsageSpool(tmp_path), RunningJournal(tmp_path)
    journal.begin("a", dict(DRAFT))
    open_before = len(os.listdir("/proc/self/fd"))
    with files_of_at_most((tmp_path / FILE_NAME).stat().st_size + 20):
        journal.begin("b", dict(DRAFT))  # half a line
        journal.begin("c", dict(DRAFT))
        journal.end("c", has_record=False)  # no engine had it
        for number in range(100):
            journal.begin(f"x{number}", dict(DRAFT))
            journal.end(f"x{number}", has_record=False)
    assert journal.failures > 200
    assert len(os.listdir("/proc/self/fd")) == open_before
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".new") == []
    journal.begin("d", dict(DRAFT))
    journal.close()
    spool.close()
    assert settled(tmp_path) == 3
    assert [request_id for request_id, _ in recorded(tmp_path)] == ["a", "b", "d"]


def test_what_begins_is_held_and_no_end_stands_before_its_record(tmp_path: Path) -> None:
    spool, journal = UsageSpool(tmp_path), RunningJournal(tmp_path)
    spool.hold(lambda: None)
    journal.hold(spool.write_held)
    journal.begin("a", dict(DRAFT))
    journal.begin("b", dict(DRAFT))
    assert (tmp_path / FILE_NAME).read_bytes() == b""
    journal.write_held()
    assert (tmp_path / FILE_NAME).read_bytes().count(b"+") == 2
    record(spool, "a")
    journal.end("a", has_record=True)
    assert recorded(tmp_path) == []
    journal.begin("c", dict(DRAFT))
    journal.write_held()  # the end of "a" goes with it, and the record before that
    assert b"-a\n" in (tmp_path / FILE_NAME).read_bytes()
    assert recorded(tmp_path) == [("a", "completed")]
    assert settled(tmp_path) == 2


def test_a_journal_written_anew_forgets_nobody_whose_record_is_held(tmp_path: Path) -> None:
    spool, journal = UsageSpool(tmp_path), RunningJournal(tmp_path)
    spool.hold(lambda: None)
    journal.hold(spool.write_held)
    rounds = 0
    while not rounds or (tmp_path / FILE_NAME).stat().st_size > 1_000:  # until it was written anew
        name = f"r{rounds}"
        journal.begin(name, dict(DRAFT) | {"model": "m" * 1_000})
        journal.write_held()
        record(spool, name)
        journal.end(name, has_record=True)
        rounds += 1
        assert rounds < 5_000
    assert settled(tmp_path) == 0
    assert len(UsageSpool(tmp_path).read(0, 10_000)) == rounds
