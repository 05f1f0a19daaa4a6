"""Compiled kernels follow their sources, also those in another file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fleet import kernels

CALLER = """
from fleet.kernels import compiled
from fleet.price_kernel import price


@compiled
def bill(hours):
    return hours * price()
"""
CALLEE = """
from fleet.kernels import compiled


@compiled
def price():
    return {price}
"""


#: Python knows a source again by its second and its size: here it is written twice in one, at one size.
AFRESH = ["-B"]


def bill_of(root: Path, **environment: str) -> float:
    line = [sys.executable, *AFRESH, "-c", "from fleet.bill_kernel import bill; print(bill(10.0))"]
    told = os.environ | environment
    done = subprocess.run(line, cwd=root, check=True, capture_output=True, timeout=300, env=told)
    return float(done.stdout)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a package of two kernels, in which a bill of ten hours is 25."""
    package = tmp_path / "fleet"
    package.mkdir()
    (package / "__init__.py").touch()
    shutil.copy(Path(kernels.__file__), package / "kernels.py")
    (package / "bill_kernel.py").write_text(CALLER)
    (package / "price_kernel.py").write_text(CALLEE.format(price=2.5))
    return package


def test_kernels_run_where_nothing_may_be_written(package: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    for barred in (home, package / "__pycache__"):
        barred.touch()  # a file: nobody makes a folder in it, root neither
    assert bill_of(tmp_path, HOME=str(home)) == 25.0
    assert list(tmp_path.rglob("*.nbc")) == []


def test_a_cached_kernel_follows_a_callee_in_another_file(package: Path, tmp_path: Path) -> None:
    assert bill_of(tmp_path) == 25.0
    code = list(package.rglob("bill_kernel.*.nbc"))
    assert len(code) == 1  # it is kept, and taken the next time:
    kept = code[0].stat().st_mtime_ns
    assert bill_of(tmp_path) == 25.0
    assert list(package.rglob("bill_kernel.*.nbc")) == code
    assert code[0].stat().st_mtime_ns == kept
    (package / "price_kernel.py").write_text(CALLEE.format(price=3.5))
    assert bill_of(tmp_path) == 35.0


def folders(package: Path) -> list[str]:
    return sorted(one.name for one in package.rglob("kernels-*"))


def version(package: Path, tmp_path: Path, price: float) -> str:
    """Run the kernels at another price; return the folder that holds that version's code."""
    (package / "price_kernel.py").write_text(CALLEE.format(price=price))
    assert bill_of(tmp_path) == 10 * price
    return f"kernels-{kernels.digest_of(package)}"


def test_of_old_versions_only_the_one_used_last_is_kept(package: Path, tmp_path: Path) -> None:
    first, second = version(package, tmp_path, 1.5), version(package, tmp_path, 2.5)
    assert folders(package) == sorted([first, second])
    assert version(package, tmp_path, 1.5) == first  # taken back: the first is the newest now
    third = version(package, tmp_path, 3.5)
    assert folders(package) == sorted([first, third])


def test_what_a_process_holds_stays_until_it_ends(package: Path, tmp_path: Path) -> None:
    (package / "price_kernel.py").write_text(CALLEE.format(price=1.5))
    line = [
        sys.executable,
        *AFRESH,
        "-c",
        "from fleet.bill_kernel import bill; print(); input(); print(bill(10.0))",
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(line, cwd=tmp_path, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "\n"  # it has its folder, and has compiled nothing yet
        held = f"kernels-{kernels.digest_of(package)}"
        second, third = version(package, tmp_path, 2.5), version(package, tmp_path, 3.5)
        assert folders(package) == sorted([held, second, third])
        out, _ = holder.communicate("\n", timeout=300)
        assert float(out) == 15.0
    fourth = version(package, tmp_path, 4.5)
    assert folders(package) == sorted([third, fourth])


def test_what_releases_without_locks_left_stays_a_week_and_what_is_not_ours_for_good(
    package: Path, tmp_path: Path
) -> None:
    present = version(package, tmp_path, 1.5)
    parent = next(package.rglob(present)).parent
    used_s = (parent / present).stat().st_mtime
    ages_s = {"0" * 16: 60.0, "1" * 16: 6 * 86_400.0, "2" * 16: 8 * 86_400.0, "3" * 16: 9 * 86_400.0}
    for name, age_s in ages_s.items():
        (parent / f"kernels-{name}" / "code").mkdir(parents=True)
        os.utime(parent / f"kernels-{name}", (used_s - age_s, used_s - age_s))
    (parent / "kernels-mine").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (parent / ("kernels-" + "4" * 16)).symlink_to(elsewhere)
    assert version(package, tmp_path, 1.5) == present
    left = {present, "kernels-mine", *(f"kernels-{digit * 16}" for digit in "014")}
    assert set(folders(package)) == left
    assert elsewhere.is_dir()


def test_processes_of_many_versions_that_start_together_all_get_their_figures(
    package: Path, tmp_path: Path
) -> None:
    """Each removes what it may while others take their folders: none finds its own gone."""
    take = (
        "import pathlib, sys; from fleet import kernels\n"
        "parent = pathlib.Path(sys.argv[1])\n"
        "for turn in range(200):\n"
        "    folder = parent / f'kernels-{turn % 7:016x}'\n"
        "    kernels._hold(folder); kernels._remove_old(folder)\n"
        "    assert (folder / 'in-use').exists(), folder\n"
    )
    parent = tmp_path / "cache"
    line = [sys.executable, *AFRESH, "-c", take, str(parent)]
    running = [subprocess.Popen(line, cwd=tmp_path, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    assert [(one.communicate(timeout=300)[1], one.returncode) for one in running] == [("", 0)] * 3
    assert bill_of(tmp_path) == 25.0
