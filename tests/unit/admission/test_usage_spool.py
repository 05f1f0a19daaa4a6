"""The usage spool: exactly once, in order, over every way a process or a disk can end."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from admission.usage_spool import UsageSpool
from fleet.errors import InvalidInput
from fleet.messages import UsageRecord
from fleet.outcomes import Outcome, Tier
from tests.disk_limits import files_of_at_most, no_more_files


def record(seq: int) -> UsageRecord:
    return UsageRecord(
        seq=seq,
        request_id=f"req-{seq}",
        tenant="acme",
        key_id="k",
        tier=Tier.BATCH,
        model="m",
        endpoint="chat",
        node="n",
        pool="p",
        outcome=Outcome.COMPLETED,
        prompt_tokens=seq,
        cached_tokens=None,
        output_tokens=1,
        exact=True,
        reserved_tokens=10,
        queued_s=0.0,
        ttft_s=None,
        engine_s=1.0,
        finished_at_s=1.0,
    )


def fill(spool: UsageSpool, count: int) -> None:
    for _ in range(count):
        assert spool.append(record(spool.next_seq))


def numbers(spool: UsageSpool, after: int = 0, limit: int = 10_000) -> list[int]:
    return [orjson.loads(body)["seq"] for body in spool.read(after, limit)]


def test_nothing_is_served_before_it_is_flushed(tmp_path: Path) -> None:
    spool = UsageSpool(tmp_path)
    fill(spool, 3)
    assert numbers(spool) == []
    spool.flush()
    assert numbers(spool) == [1, 2, 3]
    fill(spool, 1)
    assert numbers(spool) == [1, 2, 3]


def test_pages_follow_each_other_without_holes_over_segments(tmp_path: Path) -> None:
    spool = UsageSpool(tmp_path, segment_bytes=2_000)
    fill(spool, 100)
    spool.flush()
    assert len(list(tmp_path.glob("*.jsonl"))) > 5
    seen: list[int] = []
    while page := numbers(spool, after=seen[-1] if seen else 0, limit=7):
        seen += page
    assert seen == list(range(1, 101))


def test_acknowledged_segments_go_and_numbers_go_on(tmp_path: Path) -> None:
    spool = UsageSpool(tmp_path, segment_bytes=2_000)
    fill(spool, 100)
    spool.flush()
    spool.acknowledge(100)
    assert len(list(tmp_path.glob("*.jsonl"))) == 1
    spool.close()
    again = UsageSpool(tmp_path, segment_bytes=2_000)
    assert again.next_seq == 101
    assert again.spool_id == spool.spool_id


def test_records_written_while_an_acknowledgement_runs_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments that begin between an acknowledgement's look and its end must stay in the spool's list."""
    spool = UsageSpool(tmp_path, segment_bytes=2_000)
    fill(spool, 100)
    spool.flush()
    unlink = Path.unlink

    def unlink_while_others_write(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok)
        fill(spool, 10)  # what the event loop does meanwhile: it rolls to a new segment, too

    monkeypatch.setattr(Path, "unlink", unlink_while_others_write)
    spool.acknowledge(100)
    monkeypatch.undo()
    spool.flush()
    assert spool.last_seq > 150
    assert numbers(spool, after=100) == list(range(101, spool.last_seq + 1))
    spool.close()
    assert numbers(UsageSpool(tmp_path), after=100) == list(range(101, spool.last_seq + 1))


def test_an_acknowledgement_of_what_was_never_served_is_refused(tmp_path: Path) -> None:
    spool = UsageSpool(tmp_path)
    fill(spool, 2)
    spool.flush()
    with pytest.raises(InvalidInput, match="only 2 exist"):
        spool.acknowledge(3)
    assert numbers(spool) == [1, 2]


@pytest.mark.parametrize("cut_bytes", [1, 10, 200])
def test_a_torn_tail_is_cut_and_its_number_used_again(tmp_path: Path, cut_bytes: int) -> None:
    spool = UsageSpool(tmp_path)
    fill(spool, 5)
    spool.close()
    [segment] = tmp_path.glob("*.jsonl")
    content = segment.read_bytes()
    segment.write_bytes(content[:-cut_bytes])
    again = UsageSpool(tmp_path)
    assert numbers(again) == [1, 2, 3, 4]
    assert again.spool_id == spool.spool_id
    fill(again, 1)
    again.flush()
    assert numbers(again) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("place_ratio", [0.0, 0.3, 0.6])
def test_damage_before_sound_records_begins_a_new_spool_and_keeps_the_old_aside(
    tmp_path: Path, place_ratio: float
) -> None:
    spool = UsageSpool(tmp_path)
    fill(spool, 20)
    spool.close()
    [segment] = tmp_path.glob("*.jsonl")
    content = bytearray(segment.read_bytes())
    content[int(len(content) * place_ratio) + 15] ^= 0xFF
    segment.write_bytes(bytes(content))
    again = UsageSpool(tmp_path)
    assert again.spool_id != spool.spool_id  # the controller must not take new records for old ones
    assert again.next_seq == 1
    [kept] = tmp_path.glob("damaged-*/*.jsonl")
    assert kept.read_bytes() == bytes(content)


def test_a_missing_segment_begins_a_new_spool(tmp_path: Path) -> None:
    spool = UsageSpool(tmp_path, segment_bytes=2_000)
    fill(spool, 50)
    spool.close()
    sorted(tmp_path.glob("*.jsonl"))[1].unlink()
    assert UsageSpool(tmp_path).spool_id != spool.spool_id


def test_a_full_spool_drops_loudly_and_leaves_no_hole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = UsageSpool(tmp_path, segment_bytes=2_000, max_bytes=6_000)
    while spool.append(record(spool.next_seq)):
        pass
    assert spool.dropped_records == 1
    assert any(entry.levelname == "ERROR" for entry in caplog.records)
    held = spool.last_seq
    spool.flush()
    spool.acknowledge(held)
    assert spool.append(record(spool.next_seq))  # room again: the next number, no hole
    spool.flush()
    assert numbers(spool, after=held) == [held + 1]


def test_a_full_disk_under_load_does_not_fill_the_log_as_well(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = UsageSpool(tmp_path, max_bytes=6_000)
    fill(spool, 5)
    with files_of_at_most(1):
        for _ in range(5_000):
            assert not spool.append(record(spool.next_seq))
    told = [vars(entry)["dropped"] for entry in caplog.records if entry.levelname == "ERROR"]
    assert told == [2**power for power in range(13)]  # 4096 is the last below 5000
    assert spool.dropped_records == 5_000


def test_a_number_out_of_turn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="does not follow"):
        UsageSpool(tmp_path).append(record(7))


def test_records_survive_without_a_flush_when_only_the_process_dies(tmp_path: Path) -> None:
    spool = UsageSpool(tmp_path)
    fill(spool, 4)  # neither flushed nor closed: the object is left behind as by kill -9
    assert numbers(UsageSpool(tmp_path)) == [1, 2, 3, 4]


def test_held_records_have_their_numbers_and_are_written_together(tmp_path: Path) -> None:
    spool = UsageSpool(tmp_path, segment_bytes=2_000)
    asked: list[None] = []
    spool.hold(lambda: asked.append(None))
    fill(spool, 30)
    assert (spool.next_seq, spool.last_seq) == (31, 0)
    spool.flush()  # on its own thread it may come at any time: it tells of nothing that is not written
    assert (spool.synced_seq, numbers(spool)) == (0, [])
    spool.write_held()
    assert len(asked) == 1
    assert numbers(UsageSpool(tmp_path)) == list(range(1, 31))  # as after a kill
    fill(spool, 30)
    spool.close()
    assert numbers(UsageSpool(tmp_path)) == list(range(1, 61))


def test_a_spool_with_little_room_takes_the_oldest_of_what_is_held_and_leaves_no_hole(
    tmp_path: Path,
) -> None:
    spool = UsageSpool(tmp_path, max_bytes=6_000)
    spool.hold(lambda: None)
    fill(spool, 50)
    spool.write_held()
    kept = spool.last_seq
    assert 10 <= kept < 50
    assert spool.dropped_records == 50 - kept
    assert spool.next_seq == kept + 1
    again = UsageSpool(tmp_path)
    assert numbers(again) == list(range(1, kept + 1))


def test_a_disk_that_fills_up_costs_the_newest_of_what_is_held_only(tmp_path: Path) -> None:
    spool = UsageSpool(tmp_path)
    fill(spool, 5)
    spool.hold(lambda: None)
    line_bytes = spool.size_bytes // 5
    fill(spool, 20)
    with files_of_at_most(spool.size_bytes + 7 * line_bytes):
        spool.write_held()
    assert spool.dropped_records == 20 - (spool.last_seq - 5)
    assert 5 + 5 <= spool.last_seq <= 5 + 7
    fill(spool, 2)
    spool.write_held()
    assert numbers(UsageSpool(tmp_path)) == list(range(1, spool.last_seq + 1))


def test_a_segment_that_cannot_be_begun_costs_its_records_and_no_more(tmp_path: Path) -> None:
    spool = UsageSpool(tmp_path, segment_bytes=2_000)
    while spool.size_bytes < 1_700:
        fill(spool, 1)
    before = spool.last_seq
    with no_more_files():
        while spool.append(record(spool.next_seq)):
            pass
    assert spool.dropped_records == 1
    fill(spool, 10)
    spool.close()
    assert spool.last_seq >= before + 10
    assert numbers(UsageSpool(tmp_path)) == list(range(1, spool.last_seq + 1))
