"""A captured series of a real engine's pages gives its capacity; a hostile folder gives an error."""

from __future__ import annotations

import csv
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from control.capacity_pages import read_series
from fleet.capacity import estimate_capacity
from fleet.errors import InvalidInput
from fleet.saturation import EngineLimits

SERIES = Path(__file__).parents[2] / "data" / "metrics" / "series"


def test_a_real_engine_s_pages_give_what_its_clients_measured():
    (engine,) = read_series(SERIES)
    assert engine.restarts == 1  # it was stopped and started once
    found = estimate_capacity(engine.points, EngineLimits(max_num_seqs=4), np.random.default_rng(1))
    # with 19 or more requests inside, clients counted completions each second; a small shared machine
    # whose speed itself wanders by a third: a quarter is what 13 windows can promise
    with (SERIES / "truth.csv").open(newline="") as handle:
        full = [r for r in csv.DictReader(handle) if int(r["in_system_at_end"]) >= 19]
    measured = sum(int(r["ok_completions"]) for r in full) / len(full)
    assert found.requests_per_s == pytest.approx(measured, rel=0.25)


def listing(folder: Path, *rows: str) -> None:
    (folder / "scrapes.csv").write_text("t_start,file,status\n" + "".join(f"{row}\n" for row in rows))


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (["0,../../etc/passwd,200"], "not a plain file name"),
        (["0,/etc/passwd,200"], "not a plain file name"),
        (["soon,a,200"], "t_start and file"),
        (["0,a,200", "10,b,200"], "no two readable pages"),
        (["0,a,500"], "no two readable pages"),
    ],
)
def test_a_listing_that_reaches_out_or_holds_nothing_is_refused(tmp_path, rows, says):
    listing(tmp_path, *rows)
    with pytest.raises(InvalidInput, match=says):
        read_series(tmp_path)


def test_a_folder_without_a_listing_and_a_broken_archive_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"no scrapes\.csv"):
        read_series(tmp_path)
    listing(tmp_path, "0,a,200")
    (tmp_path / "scrapes.tar.xz").write_bytes(b"not an archive")
    with pytest.raises(InvalidInput, match="not a readable archive"):
        read_series(tmp_path)


def test_links_and_oversized_members_of_an_archive_are_not_followed(tmp_path):
    with tarfile.open(tmp_path / "scrapes.tar.xz", "w:xz") as archive:
        link = tarfile.TarInfo("a")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        big = tarfile.TarInfo("b")
        big.size = 20_000_000
        archive.addfile(big, io.BytesIO(bytes(big.size)))
    listing(tmp_path, "0,a,200", "10,b,200")
    with pytest.raises(InvalidInput, match="no two readable pages"):
        read_series(tmp_path)
