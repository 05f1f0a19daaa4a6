"""The build these tests run with, and how they run suites by it.

The suites run in a pytest of their own, because a process runs either way and this one is plain Python.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from compiled import compiler
from compiled.compiler import CannotBuild

ROOT = Path(__file__).resolve().parents[2]
RunSuite = Callable[..., int]


def environment(switch: str) -> dict[str, str]:
    """Return this process's environment with the hot modules switched on ("1") or off ("0")."""
    return os.environ | {"RHODECK_COMPILED": switch, "PYTHONHASHSEED": "0"}


@pytest.fixture(scope="session")
def compiled_build() -> None:
    """See that the present sources are compiled. Any number of workers may ask at once."""
    try:
        compiler.command()
        compiler.require_headers()
    except CannotBuild as exc:
        pytest.skip(f"everything runs in plain Python here: {exc}")
    command = [sys.executable, "-m", "compiled.build"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def run_suite(compiled_build: None) -> RunSuite:
    """Return what runs tests by the compiled modules and returns how many passed; none may fail."""

    def run(*arguments: str) -> int:
        plugins = ["-p", "tests.compiled.only_compiled", "-p", "no:cacheprovider", "-p", "no:xdist"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *plugins, *arguments],
            cwd=ROOT,
            env=environment("1"),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
        counted = re.search(r"(\d+) passed", done.stdout)
        assert counted is not None, done.stdout
        print(f"{counted[1]} tests passed by the compiled modules")
        return int(counted[1])

    return run
