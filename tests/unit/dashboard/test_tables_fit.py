"""Every table fits beside the menu of a window of 1440 pixels; at 800 the columns that matter come first.

The places measured in Chromium: 1,074 and 582 pixels. A column without a width takes what its longest cell
asks for, up to 500 pixels, so each has one.
"""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module
from typing import Any

import pytest

import dashboard

WIDE, NARROW = 1_074, 582
#: What people decide by, table by table: it must not be off-screen at 800 pixels.
MATTERS = {
    "tables.NODES": ("node", "state", "rho", "kv", "waiting", "why"),
    "tables.RHO": ("subject", "verdict", "rho", "interval", "grade"),
    "tables.TRAFFIC": ("tenant", "tier", "offered", "refused %", "wait p95", "TTFT p95"),
    "tables.GATEWAYS": ("gateway", "condition", "revision", "nodes", "heard"),
    "tables.TENANTS": ("tenant", "tier", "tokens_per_minute", "burst_tokens", "max_in_flight_tokens"),
    "tables.AUDIT": ("at", "actor", "action", "subject"),
    "tables.SPEND": ("line", "tenant", "tier", "model", "usd"),
    "tables.PRICES": ("class", "usd", "source"),
    "tables.HISTORY": ("revision", "at", "author", "rollout"),
    "tables_sizing.CHOICES": ("spread", "verdict", "batch"),
    "tables_estimates.OUTCOMES": ("strategy", "usd", "refused", "p99", "slo"),
    "tables_estimates.METHODS": ("strategy", "state", "usd", "usd events"),
    "tables_studies.CASES": ("case", "p95", "p99", "good", "refused"),
    "tables_studies.GROUPS": ("who", "case", "p50", "p95", "good", "refused"),
    "tables_studies.CHOICES": ("batch", "rate", "goodput", "verdict", "limit"),
    "tables_months.MONTHS": ("month", "state", "usd", "sha256", "at"),
    "tables_budgets.BUDGETS": ("tenant", "standing", "part", "usd", "end", "then"),
}


def tables() -> dict[str, tuple[dict[str, int], tuple[str, ...]]]:
    """Return the widths of each table's columns, and the names of those shown on demand."""
    found: dict[str, tuple[dict[str, int], tuple[str, ...]]] = {}
    for info in pkgutil.iter_modules(dashboard.__path__):
        if info.name.split("_")[0] != "tables":
            continue
        module = import_module(f"dashboard.{info.name}")
        for name, value in inspect.getmembers(module, lambda v: isinstance(v, dict)):
            if name.isupper() and not name.startswith("_"):
                widths: dict[str, Any] = {column: look["width"] for column, look in value.items()}
                found[f"{info.name}.{name}"] = widths, getattr(module, f"{name}_MORE", ())
    return found


TABLES = tables()


@pytest.mark.parametrize("table", TABLES)
def test_a_table_fits_a_wide_window(table: str) -> None:
    widths, more = TABLES[table]
    assert all(isinstance(width, int) for width in widths.values()), widths
    assert set(more) <= set(widths)
    assert sum(width for name, width in widths.items() if name not in more) <= WIDE


@pytest.mark.parametrize("table", MATTERS)
def test_what_matters_is_in_sight_in_a_narrow_window(table: str) -> None:
    widths, _ = TABLES[table]
    matters = MATTERS[table]
    names = list(widths)
    last = max(names.index(name) for name in matters)
    handles = 34 if table == "tables.TENANTS" else 0  # the rows of an editor have a handle
    assert sum(widths[name] for name in names[: last + 1]) + handles <= NARROW
