"""One journey of an operator in a real Chromium against real processes, as `rhodeck demo` starts them.

Sign in from a deep link, see rho, change a quota, a weight and a queue timeout, publish, watch both
gateways confirm, see what is refused; then the dashboard is killed and the page must say so.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from control.embedded_socket import free_tcp_port
from tests.browser.find_browser import find
from tests.postgres_server import open_folder

ROOT = Path(__file__).resolve().parents[2]
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
TENANT = "acme-chat"
PATIENCE_MS = 120_000  # bounds a hang; nothing is asserted about time

pytestmark = [pytest.mark.browser, pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Demo:
    """A demonstration that runs: its addresses, accounts, and its state folder."""

    url: str
    gateways: list[str]
    passwords: dict[str, str]
    keys: dict[str, str]
    dashboard_pid: Callable[[], int]


@pytest.fixture(scope="module")
def demo() -> Generator[Demo]:
    with open_folder() as folder:
        state = folder / "state"
        log = (folder / "demo.log").open("wb")
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "control", "demo", "--state-dir", str(state)),
                *("--nodes", "2", "--rate", "5", "--dashboard-port", str(free_tcp_port())),
            ],
            cwd=ROOT,
            env={k: v for k, v in os.environ.items() if k != "DATABASE_URL"},
            stdout=log,
            stderr=log,
        )
        try:
            summary = state / "secrets" / "demo.json"
            wait_until(lambda: summary.exists() or process.poll() is not None, 240)
            assert process.poll() is None, (folder / "demo.log").read_text()[-4_000:]
            said = json.loads(summary.read_text())
            yield Demo(
                said["dashboard"],
                list(said["gateways"].values()),
                said["accounts"],
                json.loads((state / "secrets" / "traffic_keys.json").read_text()),
                lambda: child_of(process.pid, "dashboard"),
            )
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(30)
            log.close()


def child_of(parent: int, module: str) -> int:
    """Return the pid of the child that runs `-m module`."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
            words = status.with_name("cmdline").read_bytes().split(b"\0")
        except OSError:  # it ended meanwhile
            continue
        if int(fields[1]) == parent and module.encode() in words:
            return int(status.parent.name)
    raise AssertionError(f"no child runs {module}")


def wait_until(is_so: Callable[[], bool], within_s: float) -> None:
    """Wait for a condition; the bound only ends a hang."""
    tick = threading.Event()
    for _ in range(int(within_s / 0.2)):
        if is_so():
            return
        tick.wait(0.2)
    raise AssertionError("it never became true")


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    path = find(install=False)
    assert path is not None, "no Chromium: run `make browser`"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield chromium
        finally:
            chromium.close()


def settle(page: Page) -> None:
    """Wait until the script of the page has run."""
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]", timeout=PATIENCE_MS)


def go_to(page: Page, name: str) -> None:
    page.get_by_test_id("stSidebarNav").get_by_role("link", name=name, exact=True).click()
    expect(page.get_by_role("heading", name=name, exact=True, level=1)).to_be_visible(timeout=PATIENCE_MS)
    settle(page)


def set_number(page: Page, key_part: str, value: str) -> None:
    field = page.locator(f"[class*='st-key-policy_{key_part}'] input")
    field.fill(value)
    field.press("Enter")
    settle(page)


def set_quota(page: Page, tenant: str, column: int, value: str) -> None:
    """Type into the quota table: click the tenant's row, go right to the column, type, Enter."""
    grid = page.locator("[class*='st-key-policy_quotas'] [data-testid=stDataFrame]")
    grid.evaluate("table => table.scrollIntoView({block: 'center'})")
    names = grid.locator("canvas td[aria-colindex='1']").all_inner_texts()
    assert tenant in names, names
    row_px = 35  # a row's height, the header's too
    page.wait_for_timeout(500)  # the page scrolls, then the canvas follows
    box = grid.locator("canvas").first.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 90, box["y"] + row_px * (names.index(tenant) + 1.5))
    here = grid.locator("canvas td[aria-selected='true']")
    expect(here).to_have_text(tenant, timeout=PATIENCE_MS)
    for index in range(2, column + 1):
        page.keyboard.press("ArrowRight")
        expect(here).to_have_attribute("aria-colindex", str(index), timeout=PATIENCE_MS)
    page.keyboard.press("Enter")
    editor = page.locator("#portal .gdg-input")
    expect(editor).to_be_focused(timeout=PATIENCE_MS)
    editor.fill(value)
    editor.press("Enter")
    expect(editor).to_have_count(0, timeout=PATIENCE_MS)
    settle(page)


def cells(page: Page, key: str) -> list[list[str]]:
    """Return a table's cells as the page offers them to screen readers."""
    rows = page.locator(f".st-key-table_{key} canvas tbody tr").all()
    return [row.locator("td").all_inner_texts() for row in rows]


def sign_in(page: Page, demo: Demo, path: str, name: str) -> None:
    """Open a deep link, sign in at the form it leads to."""
    page.goto(demo.url + path)
    expect(page).to_have_url(re.compile(r"/sign-in\?next="))
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(demo.passwords[name])
    page.get_by_role("button", name="Sign in").click()
    settle(page)


def card(page: Page, name: str) -> Locator:
    """Return the box of one number."""
    return page.locator(f".st-key-card_{name}")


def ask_gateway(demo: Demo) -> httpx.Response:
    """Ask the first gateway for some 2,500 tokens as the tenant."""
    return httpx.post(
        f"{demo.gateways[0]}/v1/chat/completions",
        headers={"Authorization": f"Bearer {demo.keys[TENANT]}"},
        json={
            "model": "llama-3.3-70b-fp8",
            "max_tokens": 50,
            "messages": [{"role": "user", "content": "word " * 2_000}],
        },
        timeout=120,
        trust_env=False,
    )


def test_operator_changes_policy_and_sees_it_take_hold(demo: Demo, browser: Browser) -> None:
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))

    # a deep link survives sign-in, with its filters
    sign_in(page, demo, "/policy?range=15m", "operator")
    expect(page).to_have_url(re.compile(r"/policy\?.*range=15m"), timeout=PATIENCE_MS)
    expect(page.get_by_test_id("stMain")).to_contain_text("operator")
    cookie = next(c for c in context.cookies() if c["name"] == "rhodeck_sign_in")
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Lax"

    # rho is on the first page: a number, or that it is not known yet
    go_to(page, "Fleet")
    expect(card(page, "fleet_rho")).to_contain_text(
        re.compile(r"\d\.\d\d|not known|no verdict"), timeout=PATIENCE_MS
    )
    expect(page.get_by_test_id("stMain")).to_contain_text("Flow balance", timeout=PATIENCE_MS)

    # quota, weights and a timeout
    go_to(page, "Policy")
    set_number(page, "interactive_weight", "60")
    expect(page.get_by_test_id("stMain")).to_contain_text("they must sum to 100", timeout=PATIENCE_MS)
    set_number(page, "batch_weight", "35")
    expect(page.get_by_test_id("stMain")).to_contain_text("The weights sum to 100 %", timeout=PATIENCE_MS)
    set_number(page, "interactive_timeout", "1.0")
    expect(page.get_by_text("3 pending changes")).to_be_visible(timeout=PATIENCE_MS)
    set_quota(page, TENANT, 3, "600")  # tokens a minute
    expect(page.get_by_text("4 pending changes")).to_be_visible(timeout=PATIENCE_MS)
    set_quota(page, TENANT, 4, "700")  # burst: a push never empties a bucket, but its size bounds the level
    expect(page.get_by_text("5 pending changes")).to_be_visible(timeout=PATIENCE_MS)
    page.locator(".st-key-review button").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible(timeout=PATIENCE_MS)
    settle(page)
    expected = {
        f"{TENANT} \u203a burst_tokens": "700",
        f"{TENANT} \u203a tokens_per_minute": "600",
        "batch \u203a weight": "35",
        "interactive \u203a queue_timeout_s": "1",
        "interactive \u203a weight": "60",
    }

    def changed() -> dict[str, str]:
        return {row[0].partition(" \u203a ")[2]: row[2] for row in cells(page, "review_differences")}

    wait_until(lambda: len(changed()) == len(expected), 60)
    assert changed() == expected

    # no reason, no revision; then two fast clicks make one revision
    dialog.get_by_text("All gateways at once").click()
    dialog.get_by_role("button", name="Publish").click()
    expect(dialog).to_contain_text("a change needs a note", timeout=PATIENCE_MS)
    dialog.get_by_label("Reason").fill("Less for acme, more for batch")
    dialog.get_by_label("Reason").press("Tab")
    settle(page)
    dialog.get_by_role("button", name="Publish").dblclick()
    expect(page.get_by_text("Revision 2 is published")).to_be_visible(timeout=PATIENCE_MS)

    # both gateways confirm it
    go_to(page, "Rollout")
    expect(card(page, "gateways_confirmed")).to_contain_text("2 of 2", timeout=PATIENCE_MS)
    expect(card(page, "revision")).to_contain_text("r2")
    wait_until(lambda: [row[2] for row in cells(page, "gateways")] == ["2 / 2", "2 / 2"], 60)

    # the tenant is refused at the door, and the page says so. Requests under way at the push still return
    # what they had reserved, which lets some pass; ten of 2,500 tokens are far above 600 a minute.
    answers = (ask_gateway(demo) for _ in range(10))
    refusal = next((answer for answer in answers if answer.status_code == 429), None)
    assert refusal is not None, "ten requests of 2,500 tokens passed a quota of 600 a minute"
    assert int(refusal.headers["retry-after"]) >= 1
    go_to(page, "Fleet")

    def refused() -> bool:
        rows = [row for row in cells(page, "traffic") if row and row[0] == TENANT]
        share = (
            rows[0][3].partition("%")[0].strip() if rows else ""
        )  # "Refused", a share of what was offered
        return bool(share) and float(share) > 0

    wait_until(refused, 120)

    # after some minutes of load the capacity is known, and rho is a number with its interval and grade
    rho = re.compile(r"\d\.\d\d.*\d\.\d\d to \d+\.\d\d; grade [ABCD]", re.DOTALL)
    expect(card(page, "fleet_rho")).to_contain_text(rho, timeout=480_000)

    # and all of it is on the record
    go_to(page, "Audit")

    def published() -> list[tuple[str, ...]]:
        rows = [row for row in cells(page, "audit") if row[3:5] == ["policy.publish", "revision 2"]]
        return [(row[2], row[6], row[7], row[5]) for row in rows]

    wait_until(lambda: bool(published()), 60)
    assert published() == [("operator", "operator", "page", "Less for acme, more for batch")]
    assert wrong == []
    context.close()


def test_zoom_outlives_ticks_and_a_dead_server_shows(demo: Demo, browser: Browser) -> None:
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    page = context.new_page()
    sign_in(page, demo, "/?range=15m", "viewer")
    chart = page.locator(".st-key-fleet_rho .rk-plot")
    expect(chart.locator(".main-svg").first).to_be_visible(timeout=PATIENCE_MS)
    page.evaluate(
        "box => Plotly.relayout(box, {'yaxis.range[0]': 0.1, 'yaxis.range[1]': 0.4})",
        chart.element_handle(),
    )
    page.evaluate(
        "box => { box.ticks = 0; box.on('plotly_afterplot', () => box.ticks++); }",
        chart.element_handle(),
    )
    wait_until(lambda: page.evaluate("box => box.ticks", chart.element_handle()) >= 2, 90)
    assert page.evaluate("box => box.layout.yaxis.range", chart.element_handle()) == [0.1, 0.4]

    # a viewer sees why nothing can be changed
    go_to(page, "Policy")
    expect(page.get_by_text("may not publish policy").first).to_be_visible(timeout=PATIENCE_MS)
    assert page.locator(".st-key-review button").first.is_disabled()

    # frozen, not closed: the server keeps its sockets and says nothing
    badge = page.locator(".st-key-freshness .rk-badge")
    expect(badge).to_contain_text("last scrape", timeout=PATIENCE_MS)
    expect(badge).not_to_contain_text("STALE", timeout=PATIENCE_MS)
    frozen = demo.dashboard_pid()
    os.kill(frozen, signal.SIGSTOP)
    try:
        expect(badge).to_contain_text("STALE", timeout=PATIENCE_MS)
    finally:
        os.kill(frozen, signal.SIGCONT)
    context.close()
