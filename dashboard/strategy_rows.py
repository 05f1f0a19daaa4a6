"""Strategies as rows of a table somebody edits, and back. Pure.

Nodes are counts, durations seconds, prices US dollars an hour. An empty cell is "none", never 0. Prevents:
a strategy changed by being shown, and a fault that names no row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fleet.errors import InvalidInput

NONE = "none"
SCALERS = (NONE, "reactive", "predictive", "scheduled")
COLUMNS = (
    "name",
    "nodes",
    "reserved",
    "wait",
    "scaler",
    "least",
    "most",
    "rho",
    "cold",
    "plan",
    "spot",
    "spot price",
    "warm",
    "taken",
)
#: What is shown at a time: all columns together are wider than a window.
GROUPS = {
    "Nodes": ("name", "nodes", "reserved", "wait", "spot"),
    "Autoscaler": ("name", "nodes", "scaler", "least", "most", "rho", "cold", "plan"),
    "Spot burst pool": ("name", "nodes", "spot", "spot price", "warm", "taken"),
}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*-\s*(\d+(?:\.\d+)?)\s*:\s*(\d+)\s*")


def rows_of(strategies: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the strategies of a comparison document by column."""
    rows: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for one in strategies:
        params: Mapping[str, Any] = one["params"]
        auto, burst = _part(params, "auto"), _part(params, "burst")
        plan: Sequence[Sequence[float]] = auto.get("plan", ())
        values: tuple[Any, ...] = (
            one["name"],
            params["n"],
            one.get("reserved", 0),
            params.get("D"),
            auto.get("mode", NONE),
            auto.get("min"),
            auto.get("max"),
            auto.get("rho"),
            auto.get("cold_s"),
            ", ".join(f"{a:g}-{b:g}: {n:g}" for a, b, n in plan) or None,
            burst.get("n"),
            burst.get("price"),
            burst.get("warm_s"),
            burst.get("interrupt_h"),
        )
        for name, value in zip(COLUMNS, values, strict=True):
            rows[name].append(value)
    return rows


def _part(params: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] | None = params.get(name)
    return found or {}


def strategies_of(
    rows: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the strategies in edited rows. What the table does not show stays as `before` had it, by name.

    Raises InvalidInput with the row's number for a cell that is missing or cannot be read.
    """
    known = {one["name"]: one["params"] for one in before}
    return [_strategy(row, number, known) for number, row in enumerate(rows, start=1)]


def _strategy(
    row: Mapping[str, Any], number: int, known: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    name = str(row.get("name") or f"strategy {number}")
    old = known.get(name, {})
    params: dict[str, Any] = {
        "n": _whole(row, "nodes", number),
        **{key: old[key] for key in ("ctl_s", "window_s") if key in old},
    }
    if row.get("wait") is not None:
        params["D"] = float(row["wait"])
    scaler = row.get("scaler") or NONE
    if scaler != NONE:
        params["auto"] = _scaler(row, number, scaler, _part(old, "auto"))
    if row.get("spot"):
        kept = _part(old, "burst")
        shown: dict[str, Any] = {"n": int(row["spot"])}
        shown |= _given(row, {"spot price": "price", "warm": "warm_s", "taken": "interrupt_h"})
        params["burst"] = {
            k: kept[k] for k in ("up", "down", "cooldown_s", "inflight") if k in kept
        } | shown
    return {"name": name, "params": params, "reserved": int(row.get("reserved") or 0)}


def _scaler(row: Mapping[str, Any], number: int, mode: str, old: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {key: old[key] for key in ("stab_s",) if key in old}
    found |= {"mode": mode, "min": _whole(row, "least", number), "max": _whole(row, "most", number)}
    found |= _given(row, {"rho": "rho", "cold": "cold_s"})
    if mode == "scheduled":
        found["plan"] = _plan(row.get("plan"), number)
    return found


def _given(row: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, float]:
    return {key: float(row[name]) for name, key in names.items() if row.get(name) is not None}


def _whole(row: Mapping[str, Any], name: str, number: int) -> int:
    value = row.get(name)
    if value is None:
        raise InvalidInput(f"row {number} says no {name!r}", field=name, hint="Fill the cell")
    return int(value)


def _plan(text: Any, number: int) -> list[list[float]]:
    parts = [_PART.fullmatch(part) for part in str(text or "").split(",")]
    if not all(parts):
        raise InvalidInput(
            f"row {number} has the plan {str(text or '')[:40]!r}",
            field="plan",
            hint="Write hours and nodes, as 0-8: 4, 8-22: 7, 22-24: 4",
        )
    return [[float(p[1]), float(p[2]), int(p[3])] for p in parts if p is not None]
