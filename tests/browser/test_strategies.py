"""Strategies typed into the table of a real Chromium: what is typed outlives the group of columns.

Only a browser's grid hands over what was typed: AppTest sets the state that a grid would send.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from control.comparison_documents import as_link
from dashboard.strategy_rows import GROUPS
from tests.browser.test_journey import PATIENCE_MS, cells, settle, wait_until
from tests.browser.test_recovery import chromium, dashboard
from tests.postgres_server import FreshDatabase

pytestmark = [pytest.mark.browser, pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(600)]

#: A month of 720 hours at the document's 10 USD a node-hour.
NODE_MONTH_USD = 10 * 720
ROW_PX = 35
LINK = as_link(
    {
        "traffic": "A",
        "price": 10.0,
        "strategies": [
            {"name": "Ten", "params": {"n": 10, "D": 1.5}},
            {"name": "Five", "params": {"n": 5, "D": 1.5}},
        ],
        "baseline": "Ten",
    }
)


def usd(nodes: int) -> str:
    return f"${nodes * NODE_MONTH_USD:,}"


def costs(page: Page) -> dict[str, str]:
    """Return what each strategy costs, as the table of outcomes says."""
    return {row[0]: row[1] for row in cells(page, "outcomes") if row}


def editor_cells(page: Page) -> list[list[str]]:
    rows = page.locator("[class*='st-key-strategies_'] canvas tbody tr").all()
    return [row.locator("td").all_inner_texts() for row in rows]


def type_row(page: Page, row: int, values: dict[int, str], *, is_new: bool = False) -> None:
    """Click a row of the editor, from 0 (new: the empty one at its end); type values by column, from 1."""
    grid = page.locator("[class*='st-key-strategies_'] [data-testid=stDataFrame]")
    grid.evaluate("table => table.scrollIntoView({block: 'center'})")
    page.wait_for_timeout(500)  # the page scrolls, then the canvas follows
    box = grid.locator("canvas").first.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 90, box["y"] + ROW_PX * (row + 1.5))
    here = grid.locator("canvas td[aria-selected='true']")
    expect(here).to_have_id(f"glide-cell-1-{row}", timeout=PATIENCE_MS)
    at = 1
    for column, value in values.items():
        while at < column:
            page.keyboard.press("ArrowRight")
            at += 1
            expect(here).to_have_id(f"glide-cell-{at}-{row}", timeout=PATIENCE_MS)
        if not (is_new and at == 1):  # the click that makes a row opens its first cell
            page.keyboard.press("Enter")
        field = page.locator("#portal .gdg-input")
        expect(field).to_be_focused(timeout=PATIENCE_MS)
        field.fill(value)
        field.press("Tab")  # one to the right; Enter would go down
        expect(field).to_have_count(0, timeout=PATIENCE_MS)
        at += 1
        expect(here).to_have_id(f"glide-cell-{at}-{row}", timeout=PATIENCE_MS)
    settle(page)


def choose(page: Page, group: str) -> None:
    """Show another group of columns, and wait until the table is the one of that group."""
    page.get_by_role("radio", name=group, exact=True).click()
    width = len(GROUPS[group])
    wait_until(lambda: {len(row) for row in editor_cells(page)} == {width}, 120)
    settle(page)


def test_a_row_added_after_another_group_was_chosen_is_compared_and_stays(
    database: FreshDatabase, tmp_path: Path
) -> None:
    with dashboard(database.dsn, tmp_path) as url, chromium() as page:
        page.goto(f"{url}/strategies?e={LINK}")
        wait_until(lambda: costs(page) == {"Ten": usd(10), "Five": usd(5)}, 120)

        choose(page, "Autoscaler")
        type_row(page, 2, {1: "Three", 2: "3"}, is_new=True)
        wanted = {"Ten": usd(10), "Five": usd(5), "Three": usd(3)}
        wait_until(lambda: costs(page) == wanted, 120)

        choose(page, "Nodes")
        assert [row[:2] for row in editor_cells(page)] == [["Ten", "10"], ["Five", "5"], ["Three", "3"]]
        type_row(page, 0, {2: "4"})
        wanted["Ten"] = usd(4)
        wait_until(lambda: costs(page) == wanted, 120)

        choose(page, "Spot burst pool")
        wait_until(lambda: costs(page) == wanted, 120)
        page.reload()  # the address holds what was typed
        wait_until(lambda: costs(page) == wanted, 120)
