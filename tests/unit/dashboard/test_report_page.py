"""The printable report, and strategies as rows of a table."""

from __future__ import annotations

from typing import Any

import pytest

from control.comparison_documents import as_params, read_comparison
from control.rate_profile_files import bundled_profile
from dashboard.report_page import HEADERS, report_page
from dashboard.strategy_rows import rows_of, strategies_of
from fleet.errors import InvalidInput


def records(strategies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = rows_of(strategies)
    return [dict(zip(rows, line, strict=True)) for line in zip(*rows.values(), strict=True)]


def test_the_report_shows_every_input_and_turns_no_name_into_markup() -> None:
    hostile = "<script>alert(1)</script>"
    ready = read_comparison(
        {"traffic": "A", "strategies": [{"name": hostile, "params": {"n": 5, "D": 1.5}}]}, bundled_profile
    )
    page = report_page(ready, ready.run(), ["nothing flips it"], "2026-11-29 20:00 UTC")
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "$100,800" in page
    assert ready.sha256 in page
    assert "8xH100 on demand, low end of hyperscaler list prices (2026-05)" in page
    assert "default-src 'none'" in HEADERS["Content-Security-Policy"]


def test_showing_strategies_in_a_table_changes_none_of_them() -> None:
    document = {
        "traffic": "A",
        "strategies": [
            {
                "name": "plan",
                "params": {
                    "n": 4,
                    "D": 1.5,
                    "ctl_s": 60,
                    "auto": {
                        "mode": "scheduled",
                        "min": 1,
                        "max": 9,
                        "stab_s": 30,
                        "plan": [[0, 8, 4], [8, 22.5, 7], [22.5, 24, 4]],
                    },
                },
                "reserved": 4,
            },
            {
                "name": "spot",
                "params": {
                    "n": 5,
                    "burst": {"n": 2, "price": 6, "up": 0.8, "inflight": 12, "interrupt_h": 5},
                },
            },
        ],
    }
    whole = read_comparison(document, bundled_profile).document
    again = strategies_of(records(whole["strategies"]), whole["strategies"])
    read = read_comparison(whole | {"strategies": again}, bundled_profile)
    assert [as_params(candidate) for candidate in read.candidates] == whole["strategies"]


def test_an_unfilled_cell_and_an_unreadable_plan_name_their_row() -> None:
    with pytest.raises(InvalidInput, match="row 1 says no 'nodes'"):
        strategies_of([{"name": "a", "nodes": None}], [])
    row = {"name": "a", "nodes": 1, "scaler": "scheduled", "least": 1, "most": 2, "plan": "8 to 9: many"}
    with pytest.raises(InvalidInput, match="row 2 has the plan"):
        strategies_of([{"name": "b", "nodes": 1}, row], [])
