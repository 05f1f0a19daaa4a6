"""The programs we compare with are found, fetched or loudly missed; never silently skipped."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import peers


def test_a_program_on_the_path_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    own = tmp_path / "prometheus"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert peers.program("prometheus") == own


def test_a_machine_without_apt_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv(peers.CACHE_VARIABLE, str(tmp_path / "cache"))
    with pytest.raises(peers.PeerMissing, match="apt-get install victoria-metrics"):
        peers.program("victoria-metrics")


@pytest.mark.parametrize(("name", "flag"), [("prometheus", "--version"), ("victoria-metrics", "-version")])
def test_the_peers_of_the_tests_run_here(name: str, flag: str):
    done = subprocess.run(
        [str(peers.program(name)), flag],
        env=peers.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
