"""What the page says of files to download and of files dropped by themselves."""

from __future__ import annotations

from datetime import UTC, datetime

from control.export_destinations import Delivery
from dashboard.times import Zone
from dashboard.viewmodels_exports import drop_rows, export_links, failing_text

AT = datetime(2026, 12, 1, 3, 4, 5, tzinfo=UTC)
SENT = Delivery("nas", "2026-11/csv", "delivered", 1, AT, AT, "spend_2026-11_closed.csv", None)
STUCK = Delivery("lake", "2026-11/focus.csv", "pending", 3, AT, None, None, "no secret in env:RHODECK_LAKE")
WAITING = Delivery("nas", "2026-11/xlsx", "pending", 0, AT, None, None, None)
OVER = Delivery("lake", "2026-11@2026-11-29/csv", "given_up", 5, AT, None, None, "HTTP 503 SlowDown")


def test_every_link_is_of_the_month_and_the_canonical_file_comes_first() -> None:
    links = export_links("2026-11")
    assert links[0][:2] == ("CSV", "/exports/spend/2026-11.csv")
    assert len({label for label, _, _ in links}) == len({path for _, path, _ in links}) == len(links)
    assert all("/2026-11." in path for _, path, _ in links)


def test_the_table_names_a_file_once_it_has_a_name() -> None:
    rows = drop_rows([STUCK, SENT, OVER], Zone("UTC", UTC))
    assert rows["file"] == ["2026-11/focus.csv", "spend_2026-11_closed.csv", "2026-11@2026-11-29/csv"]
    assert rows["is"] == ["waits", "✓ dropped", "given up"]
    assert rows["at"][0].startswith("next 2026-12-01 03:04:05")
    assert rows["at"][1].startswith("2026-12-01 03:04:05")
    assert rows["at"][2] == ""
    assert rows["problem"] == ["no secret in env:RHODECK_LAKE", "", "HTTP 503 SlowDown"]


def test_only_what_failed_and_still_waits_is_a_warning() -> None:
    assert failing_text([SENT, WAITING, OVER]) == ""
    said = failing_text([SENT, STUCK, WAITING])
    assert said == "A file waits to be dropped: 2026-11/focus.csv into lake: no secret in env:RHODECK_LAKE"
    assert failing_text([STUCK, STUCK]).startswith("2 files wait")
