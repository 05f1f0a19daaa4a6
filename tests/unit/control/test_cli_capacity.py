"""`rhodeck capacity fit`: true capacities inside the bands, limits from anywhere, broken files refused."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest

from control.cli import main

DATA = Path(__file__).parents[2] / "data" / "capacity"
SCRAPES, TRUTH = DATA / "capacity_scrapes.csv.gz", DATA / "capacity_truth.csv"
LOG = DATA / "vllm_engine_log_burstgpt_replay.csv.gz"


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    try:
        main(["capacity", "fit", *map(str, arguments)])
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("extra", [[], ["--limits", TRUTH]], ids=["learned", "listed"])
def test_every_engine_s_truth_is_inside_its_band(capsys, extra):
    # without --limits the slots of idle engines are learned from siblings of the same case that queued
    code, out, _ = run(capsys, SCRAPES, "--json", *extra)
    assert code == 0
    rows = {(row["case"], row["u"]): row for row in json.loads(out)}
    with TRUTH.open(newline="") as handle:
        truths = list(csv.DictReader(handle))
    assert len(rows) == len(truths) == 20
    for truth in truths:
        row, true = rows[truth["case"], truth["u"]], float(truth["mu_true_req_s"])
        assert row["unit"] == "requests/s"
        assert row["low"] <= true <= row["high"]


def test_the_curve_is_printed_in_the_engine_s_own_numbers(capsys):
    _, out, _ = run(capsys, SCRAPES, "--json", "--limits", TRUTH)
    row = next(r for r in json.loads(out) if (r["case"], r["u"]) == ("linear", "0.8"))
    # the data were made with alpha 12 ms and m = 0.1 ms + 12 us * 500 / 300 = 0.12 ms
    assert row["alpha"] == pytest.approx(0.012, rel=0.05)
    assert row["m"] == pytest.approx(0.00012, rel=0.05)
    assert row["knee"] is None
    assert (row["binding"], row["operating_batch"], row["grade"]) == ("slots", 256, "A")


def test_a_log_without_completions_gives_tokens(capsys):
    _, out, _ = run(capsys, LOG, "--max-num-seqs", 256, "--fit-below", 128, "--json")
    (row,) = json.loads(out)
    assert row["unit"] == "output tokens/s"
    assert row["mu"] == pytest.approx(2867, rel=0.05)
    _, text, _ = run(capsys, LOG, "--max-num-seqs", 256)
    assert "output tokens/s" in text


def test_an_unknown_slot_count_is_said_to_be_assumed(capsys, tmp_path):
    quiet = tmp_path / "quiet.csv"
    with gzip.open(SCRAPES, "rt") as source, quiet.open("w") as target:
        for line in source:
            if line.startswith(("case", "linear,0.25")):
                target.write(line)
    _, out, _ = run(capsys, quiet, "--json")
    assert "max_num_seqs_assumed" in json.loads(out)[0]["flags"]
    _, out, _ = run(capsys, quiet, "--json", "--max-num-seqs", 64, "--itl-slo-ms", 14)
    row = json.loads(out)[0]
    # 12 ms + 0.12 ms b <= 14 ms: b = 16.7, below 64 slots
    assert row["binding"] == "itl"
    assert row["operating_batch"] == pytest.approx(16.7, rel=0.1)


HEADER = "engine,t,itl_sum,itl_count,completed\n"


def test_a_restart_counts_from_zero(capsys, tmp_path):
    # 40 windows of 20 sequences at 25 ms: 200 s and 8000 steps a window; the counters restart half way
    path = tmp_path / "restart.csv"
    rows = [f"0,{10 * i},{200 * (i % 20)},{8000 * (i % 20)},{27 * (i % 20)}" for i in range(40)]
    path.write_text(HEADER + "\n".join(rows) + "\n")
    _, out, _ = run(capsys, path, "--max-num-seqs", 20, "--json")
    (row,) = json.loads(out)
    assert row["restarts"] == 1
    assert row["tokens_per_s"] == pytest.approx(800, rel=0.02)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no rows"),
        (b"a,b\n1,2\n", "has columns a, b"),
        (HEADER.encode() + b"0,0,0,0,0\n0,10,1\n", "line 3"),
        (HEADER.encode() + b"0,0,0,0,0\n0,10,x,1,1\n", "itl_sum is not a number"),
        (HEADER.encode() + b"0,0,0,0,0\n0,10,,1,1\n", "row 3: itl_sum is empty"),
        (HEADER.encode() + b"0,0,0,0,0\n0,10,nan,1,1\n", "itl_sum is not a number"),
        (HEADER.encode() + b"0,0,0,0,0\n0,10,1e300,1e300,1\n", "is not a number: '1e300'"),
        (b"t,t,itl_sum,itl_count\n0,0,0,0\n", "the column t twice"),
        (HEADER.encode() + b"0,10,0,0,0\n0,5,1,1,1\n", "t goes back"),
        (HEADER.encode() + b"0,0,0,0,0\n0,10,1,1,1\n", "no engine has enough"),
        (HEADER.encode() + b"\xff\xfe\n", "not a readable CSV"),
        (b"x" * 70_000, "characters"),
    ],
    ids=[
        "empty",
        "other columns",
        "cut",
        "text",
        "absent",
        "nan",
        "huge",
        "twice",
        "unsorted",
        "short",
        "binary",
        "long line",
    ],
)
def test_a_broken_file_is_refused_with_its_place(capsys, tmp_path, content, says):
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    code, out, err = run(capsys, path, "--json")
    assert code == 1
    assert out == ""
    assert says in err


def test_a_cut_archive_and_a_missing_file_are_refused(capsys, tmp_path):
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(SCRAPES.read_bytes()[:20_000])
    code, _, err = run(capsys, cut)
    assert (code, "not a readable CSV" in err) == (1, True)
    fake = tmp_path / "fake.csv.gz"
    fake.write_text("not gzip")
    assert run(capsys, fake)[0] == 1
    code, _, err = run(capsys, tmp_path / "none.csv")
    assert (code, "cannot be read" in err) == (1, True)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "no rows"),
        ("foo\n1\n", "none of them is a limit"),
        ("case,slots\nlinear,-5\n", "is -5, not 1 or more"),
        ("case,kv_tokens\nlinear,0\n", "is 0, not 1 or more"),
        ("case,itl_slo_s\nlinear,-0.1\n", "not above 0"),
    ],
)
def test_a_file_of_limits_that_limits_nothing_is_refused(capsys, tmp_path, content, says):
    limits = tmp_path / "limits.csv"
    limits.write_text(content)
    code, out, err = run(capsys, SCRAPES, "--limits", limits, "--draws", "0")
    assert (code, out) == (1, "")
    assert says in err


@pytest.mark.parametrize("flag", ["--itl-slo-ms", "--fit-below"])
def test_a_flag_takes_no_nan(capsys, flag):
    code, out, err = run(capsys, SCRAPES, flag, "nan")
    assert (code, out) == (2, "")
    assert "not a number" in err


def test_the_mark_a_spreadsheet_puts_in_front_is_no_column(capsys, tmp_path):
    marked = tmp_path / "marked.csv"
    marked.write_bytes(b"\xef\xbb\xbf" + gzip.decompress(SCRAPES.read_bytes()))
    assert run(capsys, marked, "--draws", "0")[0] == 0
