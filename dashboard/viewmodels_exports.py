"""Files of a month in words: what can be downloaded, and what became of those dropped by themselves.

Prevents: a download nobody can name, and a file that is missing for days with only a log line to say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from control.export_destinations import Delivery
from dashboard.times import Zone
from dashboard.viewmodels_spend import export_path

#: What a column of the table is called where a file has no name yet: "2026-11/focus.csv".
_STATES = {"delivered": "✓ dropped", "pending": "waits", "given_up": "given up"}


def export_links(month: str) -> tuple[tuple[str, str, str], ...]:
    """Return what a month can be downloaded as: label, address, what it is. The canonical file is first."""
    return (
        ("CSV", export_path(month), "The canonical file: its bytes are what closing a month signs"),
        ("Excel", export_path(month, "xlsx"), "The same lines with real numbers and dates"),
        ("Parquet", export_path(month, "parquet"), "The same lines, amounts as decimals"),
        (
            "FOCUS CSV",
            export_path(month, "csv", "focus"),
            "In the columns of the FinOps FOCUS specification",
        ),
        ("FOCUS Excel", export_path(month, "xlsx", "focus"), "FOCUS as a workbook"),
        ("Manifest", f"{export_path(month)}?manifest=1", "Rows, total and checksum of the CSV"),
        (
            "Usage records",
            f"/exports/usage/{month}.csv",
            "One row a request, CSV; takes minutes for millions",
        ),
        ("Usage, Parquet", f"/exports/usage/{month}.parquet", "The same records in a fifth of the size"),
    )


def drop_rows(found: Sequence[Delivery], zone: Zone) -> dict[str, list[Any]]:
    """Return the table of dropped files."""
    return {
        "to": [each.destination for each in found],
        "file": [each.file_name or each.what for each in found],
        "is": [_STATES.get(each.state, each.state) for each in found],
        "at": [_when(each, zone) for each in found],
        "tries": [each.attempts for each in found],
        "problem": [each.error or "" for each in found],
    }


def failing_text(found: Sequence[Delivery]) -> str:
    """Return a warning about files that could not be dropped yet; "" if there is none."""
    failing = [each for each in found if each.state == "pending" and each.error]
    if not failing:
        return ""
    first = failing[0]
    many = f"{len(failing)} files wait" if len(failing) > 1 else "A file waits"
    return f"{many} to be dropped: {first.what} into {first.destination}: {first.error}"


def _when(each: Delivery, zone: Zone) -> str:
    if each.delivered_at is not None:
        return zone.stamp(each.delivered_at)
    return f"next {zone.stamp(each.next_at)}" if each.state == "pending" else ""
