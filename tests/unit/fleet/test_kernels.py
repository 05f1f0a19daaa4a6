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


def bill_of(root: Path, **environment: str) -> float:
    line = [sys.executable, "-c", "from fleet.bill_kernel import bill; print(bill(10.0))"]
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
