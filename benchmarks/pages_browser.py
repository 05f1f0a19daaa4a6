"""What a person waits for: Chromium with an empty cache, from the address to a page that stands. Seconds.

Each page is opened by a browser context of its own, so scripts and fonts come over the wire each time.
Prevents: a first paint measured with everything already in the cache, and a blank page that counts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from playwright.sync_api import sync_playwright

from tests.browser.find_browser import find
from tests.browser.test_journey import FLAGS

PATIENCE_MS = 120_000


@dataclass(frozen=True, slots=True)
class Paint:
    """Seconds from the address until the title shows, and until the page runs no more."""

    first_s: float
    whole_s: float


def paints(addresses: dict[str, str], rounds: int) -> dict[str, Paint]:
    """Return the quickest of `rounds` openings of each address: other work only ever adds to it."""
    path = find(install=False)
    if path is None:
        raise SystemExit("no Chromium: run `make browser`, or pass --no-browser")
    found: dict[str, list[Paint]] = {name: [] for name in addresses}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            for _ in range(rounds):
                for name, address in addresses.items():
                    context = browser.new_context(viewport={"width": 1440, "height": 1000})
                    page = context.new_page()
                    began_s = time.perf_counter()
                    page.goto(address, timeout=PATIENCE_MS, wait_until="commit")
                    page.locator("h1").first.wait_for(timeout=PATIENCE_MS)
                    first_s = time.perf_counter() - began_s
                    page.locator("[data-testid=stApp][data-test-script-state=notRunning]").wait_for(
                        timeout=PATIENCE_MS
                    )
                    found[name].append(Paint(first_s, time.perf_counter() - began_s))
                    context.close()
        finally:
            browser.close()
    return {name: min(all_of, key=lambda p: p.whole_s) for name, all_of in found.items()}
