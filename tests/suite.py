"""Where a run of the tests keeps its files, and which files its workers take first.

Prevents: a run that waits for a disk at every `fsync` of thousands of short-lived gateways and databases,
one that ends with a worker alone on the longest file, and workers that disagree on the names of tests.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
#: What a run may fill at most, and what must be left of the machine's memory besides.
ROOM_BYTES, SPARE_BYTES = 6 << 30, 6 << 30

#: Files that take longest, longest first: begun at the end, each would keep one worker busy alone.
LONGEST = (
    "integration/test_quota_processes.py",
    "browser/test_recovery.py",
    "unit/control/test_push_histories.py",
    "scenarios/test_quota_over_three_gateways.py",
    "browser/test_journey.py",
    "integration/test_gateway_aborts.py",
    "integration/test_late_histories.py",
    "integration/test_up.py",
    "integration/test_alerts_processes.py",
    "integration/test_promsource_verdicts.py",
    "integration/test_promsource.py",
    "integration/test_reconcile_processes.py",
    "integration/test_reconcile_histories.py",
    "integration/test_hostile_pages.py",
    "integration/test_gateway_processes.py",
)


def keep_files_in_memory() -> None:
    """Let temporary files of this process and its children live in memory, where there is plenty.

    Processes are killed here, never machines, so a disk would prove nothing more. TMPDIR is obeyed.
    """
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK | os.X_OK):
        return
    if min(shutil.disk_usage(MEMORY).free - ROOM_BYTES, _available_bytes() - ROOM_BYTES - SPARE_BYTES) > 0:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None  # as it was read before


def keep_order(config: pytest.Config) -> None:
    """Have xdist hand out files in the order of their tests, not those of most tests first."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def longest_first(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the files of tests; within a file nothing moves."""
    places = {str(config.rootpath / "tests" / name): place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(str(item.path), len(places)))


def leave_out_of_collections() -> None:
    """Let the garbage collector pass over what lives as long as the process: modules and collected tests.

    They are two million objects. Streamlit collects after every run of a page, and each would be looked at.
    """
    gc.collect()
    gc.freeze()


def _available_bytes() -> int:
    """Return what the kernel could give to new processes; 0 where it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else 0
