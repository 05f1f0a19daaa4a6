"""The compiled gate decides as the plain one does, to the last bit, over a long history of everything."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from compiled import load
from tests.compiled.conftest import ROOT, environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

STEPS = 30_000


def decided(seed: int, switch: str) -> tuple[bytes, bytes]:
    """Return which way the history ran, and all that was decided in it."""
    command = [sys.executable, "-m", "tests.compiled.decisions", str(seed), str(STEPS)]
    done = subprocess.run(command, cwd=ROOT, env=environment(switch), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-5_000:]
    way, _, rest = done.stdout.partition(b"\n")
    return way, rest


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_history_gives_the_same_decisions_byte_by_byte(compiled_build: None, seed: int) -> None:
    plain_way, plain = decided(seed, "0")
    compiled_way, compiled = decided(seed, "1")
    assert (plain_way, compiled_way) == (load.SWITCHED_OFF.encode(), load.COMPILED.encode())
    # Of everything a gate can say there is plenty: else equal would mean little.
    said = Counter(line.split(b" ")[1] for line in plain.splitlines())
    common = (b"dispatch", b"queued", b"refused", b"started", b"evicted", b"ended", b"left", b"requeued")
    assert {word: said[word] for word in common if said[word] < 20} == {}
    assert sum(said[word] for word in common) > STEPS / 2
    assert b" at 0x" not in plain  # nothing is compared that is an address
    assert plain == compiled
