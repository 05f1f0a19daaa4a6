"""The assignment on disk: whole, checked, and never a way to open the gate by accident."""

from __future__ import annotations

from pathlib import Path

import pytest

from admission import lastgood
from fleet.messages import Assignment
from tests.gateway_process import assignment


def parsed() -> Assignment:
    return Assignment.model_validate(assignment([]))


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    lastgood.save(tmp_path, parsed())
    loaded = lastgood.load(tmp_path, "gw-test")
    assert loaded == parsed()
    assert [path.name for path in tmp_path.iterdir()] == ["assignment.json"]
    assert (tmp_path / "assignment.json").stat().st_mode & 0o077 == 0


def test_nothing_on_disk_is_no_assignment(tmp_path: Path) -> None:
    assert lastgood.load(tmp_path, "gw-test") is None


@pytest.mark.parametrize("offset", [0, 64, 65, 300, -2])
def test_one_flipped_byte_is_noticed(tmp_path: Path, offset: int) -> None:
    lastgood.save(tmp_path, parsed())
    path = tmp_path / "assignment.json"
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x01
    path.write_bytes(bytes(content))
    with pytest.raises(lastgood.DamagedLastGood):
        lastgood.load(tmp_path, "gw-test")


@pytest.mark.parametrize("kept_bytes", [0, 10, 65, 500])
def test_a_cut_file_is_noticed(tmp_path: Path, kept_bytes: int) -> None:
    lastgood.save(tmp_path, parsed())
    path = tmp_path / "assignment.json"
    path.write_bytes(path.read_bytes()[:kept_bytes])
    with pytest.raises(lastgood.DamagedLastGood):
        lastgood.load(tmp_path, "gw-test")


def test_the_file_of_another_gateway_is_refused(tmp_path: Path) -> None:
    lastgood.save(tmp_path, parsed())
    with pytest.raises(lastgood.DamagedLastGood, match="gw-test"):
        lastgood.load(tmp_path, "gw-other")
