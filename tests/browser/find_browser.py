"""Finds a Chromium for the browser tests, or installs one; says what to do when it cannot.

Order: one that is on the PATH, Playwright's own, Playwright's download, Debian's package (as root).
A missing browser is a failure, never a silent skip. Prints the path.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
MISSING = (
    "No Chromium or Chrome was found, and none could be installed.\n"
    "Install one and run again:\n"
    "  Debian, Ubuntu:  apt-get install chromium      (as root)\n"
    "  Fedora:          dnf install chromium\n"
    "  elsewhere:       .venv/bin/playwright install --with-deps chromium\n"
    "or set CHROMIUM=/path/to/chrome"
)


def on_path() -> str | None:
    """Return a browser named by $CHROMIUM or found on the PATH."""
    named = os.environ.get("CHROMIUM")
    if named:
        return named if os.access(named, os.X_OK) else None
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def playwrights_own() -> str | None:
    """Return Playwright's downloaded Chromium, if it is there."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).is_file() else None


def _run(*command: str, timeout_s: float) -> bool:
    print("installing a browser:", " ".join(command), file=sys.stderr, flush=True)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(command, timeout=timeout_s, check=False, env=env, stdout=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def playwright_download() -> str | None:
    """Let Playwright download its Chromium; None where it cannot."""
    if _run(sys.executable, "-m", "playwright", "install", "chromium", timeout_s=600):
        return playwrights_own()
    return None


def debian_package() -> str | None:
    """Install Debian's Chromium; only as root on a Debian."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    if _run("apt-get", "update", "-qq", timeout_s=300) and _run(
        "apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium", timeout_s=900
    ):
        return on_path()
    return None


STEPS: tuple[Callable[[], str | None], ...] = (
    on_path,
    playwrights_own,
    playwright_download,
    debian_package,
)


def find(*, install: bool) -> str | None:
    """Return the path of a browser; with `install`, try to bring one."""
    steps = STEPS if install else STEPS[:2]
    return next((found for step in steps if (found := step())), None)


if __name__ == "__main__":
    browser = find(install=True)
    if browser is None:
        sys.exit(MISSING)
    print(browser)
