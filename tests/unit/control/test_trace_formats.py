"""Traces as publishers and people write them: instants and offsets, marks, other names, Parquet."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import parquet

from control.cli_estimate import estimate
from control.rate_profile_files import BUNDLED, bundled_profile, file_profile
from control.rate_profile_uploads import uploaded_profile
from fleet.errors import InvalidInput
from fleet.rate_profiles import RateProfile

#: Four requests, 0, 4, 12 and 25 s from the first: bins of 2, 1 (and the broken end with the last).
RATES = [0.2, 0.1]
BEGIN = datetime(2026, 10, 25, 0, 59, 55, tzinfo=UTC)  # 5 s before clocks in Berlin go back
AFTER = (0, 4, 12, 25)


def read(text: str, *, mark: bytes = b"", end: str = "\n") -> RateProfile:
    return uploaded_profile("t.csv", mark + text.replace("\n", end).encode(), "test")


def in_parquet(**columns: Any) -> bytes:
    out = io.BytesIO()
    parquet.write_table(pa.table(columns), out)
    return out.getvalue()


def test_the_published_headers_are_read_as_they_are() -> None:
    azure = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
        "2023-11-16 18:15:58.0000000,800,55\n2023-11-16 18:16:12.0000000,30,12\n"
    )
    burstgpt = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "0,ChatGPT,374,44,418,Conversation log\n4,GPT-4,396,109,505,API log\n"
        "12,ChatGPT,800,55,855,API log\n25,ChatGPT,30,12,42,API log\n"
    )
    mooncake = "timestamp,input_length,output_length\n0,374,44\n4000,396,109\n12000,800,55\n25000,30,12\n"
    for text in (azure, burstgpt, mooncake):
        found = read(text)
        assert found.rates_rps.tolist() == RATES
        # (374 + 396 + 800 + 30) / 4 and (44 + 109 + 55 + 12) / 4
        assert (found.tokens_in, found.tokens_out, found.requests) == (400, 55, 4)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_instants_of_any_offset_are_one_clock(mark: bytes, end: str) -> None:
    offsets = [timezone(timedelta(hours=h)) for h in (2, 2, 1, 1)]  # Berlin's clock goes back in between
    rows = [(BEGIN + timedelta(seconds=s)).astimezone(z) for s, z in zip(AFTER, offsets, strict=True)]
    text = "timestamp\n" + "\n".join(row.isoformat() for row in rows) + "\n"
    assert read(text, mark=mark, end=end).rates_rps.tolist() == RATES
    naive = "timestamp\n" + "\n".join(row.astimezone(UTC).isoformat(" ")[:19] for row in rows)
    assert read(naive, mark=mark, end=end).rates_rps.tolist() == RATES


@pytest.mark.parametrize(
    ("unit", "zone"), [("s", None), ("ms", "UTC"), ("us", "Europe/Berlin"), ("ns", "Asia/Kolkata")]
)
def test_parquet_holds_instants_in_every_unit(unit: str, zone: str | None, tmp_path: Path) -> None:
    times = [BEGIN.replace(tzinfo=None) + timedelta(seconds=s) for s in AFTER]  # UTC within Arrow
    column = pa.array(times, pa.timestamp(unit)).cast(pa.timestamp(unit, tz=zone))
    body = in_parquet(
        TIMESTAMP=column, ContextTokens=[374, 396, 800, 30], GeneratedTokens=[44, 109, 55, 12]
    )
    found = uploaded_profile("t.parquet", body, "test")
    assert (found.rates_rps.tolist(), found.tokens_in, found.tokens_out) == (RATES, 400, 55)
    path = tmp_path / "mine.parquet"
    path.write_bytes(body)
    assert file_profile(path).rates_rps.tolist() == RATES  # named in a scenario too


def test_requests_at_one_moment_all_count() -> None:
    assert read("t_s\n" + "0\n" * 7 + "10\n20\n").rates_rps.tolist() == [0.7, 0.1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("timestamp\n2026-11-30 12:00:00\n5\n", "line 3: timestamp is '5'"),
        ("timestamp\n5\n2026-11-30 12:00:00\n", "line 3: timestamp is '2026-11-30 12:00:00'"),
        ("timestamp\n2026-11-30 12:00:00\n2026-11-30 11:59:59\n", "line 3: timestamp is -1 after 0"),
        ("timestamp\n2026-10-25T02:30:00+02:00\n2026-10-25T02:30:00+03:00\n", "is -3600 after 0"),
        ("timestamp\n0001-01-01T00:00+14:00\n", "line 2: timestamp is '0001-01-01T00:00+14:00'"),
        ("timestamp\nNaN\n", "line 2: timestamp is 'NaN'"),
        ("timestamp\nsoon\n", "is 'soon'"),
        ("t_s,input_tokens,output_tokens\n0,1,1\nnan,2,2\n", "line 3: t_s is 'nan'"),
        ("t_s\n2026-10-25T02:30:00+02:00\n", "line 2: t_s is '2026-10-25T02:30:00+02:00'"),
        ("timestamp,input_length,output_length\n0,nan,1\n10,2,2\n", "input_length is 'nan'"),
        ("timestamp,input_length\n0,1,2,3\n10,2\n", "line 2: not 2 columns"),
        ("timestamp,input_length\n0,1\n10\n", "line 3: not 2 columns"),
        ("bin,rate_rps\n0,1\n1,2,3\n", "line 3: not 2 columns"),
    ],
)
def test_times_that_are_none_are_refused_at_their_line(text: str, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(text)
    assert words in caught.value.message


def test_parquet_with_nothing_in_a_time_is_refused() -> None:
    for column in (pa.array([BEGIN, None], pa.timestamp("us", tz="UTC")), pa.array([0.0, float("nan")])):
        with pytest.raises(InvalidInput, match="line 3: timestamp is"):
            uploaded_profile("t.parquet", in_parquet(timestamp=column), "test")
    with pytest.raises(InvalidInput, match="holds string"):
        uploaded_profile("t.parquet", in_parquet(timestamp=["2026-11-30"]), "test")


#: Requests and mean tokens as their publishers count them: rows of the file and sums over its columns.
PUBLIC = {
    "azure-conv": (19_366, 1_155, 211),
    "azure-code": (8_819, 2_048, 28),
    "mooncake": (3_993, 15_325, 149),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_the_public_traces_are_bundled_as_published_with_their_licence(name: str) -> None:
    found = bundled_profile(name)
    requests, prompt, output = PUBLIC[name]
    assert found.requests == requests
    assert (found.tokens_in, found.tokens_out) == (
        pytest.approx(prompt, rel=0.003),
        pytest.approx(output, rel=0.02),
    )
    assert "CC-BY-4.0" in BUNDLED[name] or "Apache-2.0" in BUNDLED[name]


def test_a_scenario_names_a_public_trace(tmp_path: Path) -> None:
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps({"profile": "azure-conv", "params": {"n": 3, "D": 1.5}}))
    done = CliRunner().invoke(estimate, ["run", str(path)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "Azure 2023, conversation" in done.output
