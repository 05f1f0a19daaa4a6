"""Days through the real gate beside the event simulation of the same requests, in words. Pure.

Money is US dollars of the days simulated, waits seconds, shares are of offered requests. Prevents: the cost
of a few days read as a month's, and a tier's refusals hidden in the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from control.estimate_runs import Precision, RunView
from dashboard import words
from dashboard.viewmodels_comparison import usd
from dashboard.viewmodels_simulation import state_and_left
from fleet.comparison import Comparison
from fleet.fluid import BIN_S, DAY_BINS
from fleet.outcomes import TIERS, Tier

#: What a core gets through in a second with nothing else to do: gate and engines. Measured.
USUAL_PACE = 35_000
_FIGURES = ("usd", "refused events", "refused", *(tier.value for tier in TIERS), "p95 events", "p95",
            "p99 events", "p99", "first p95", "slo events", "slo")  # fmt: skip


def rows(
    compared: Comparison, hashes: Mapping[str, str], found: Mapping[str, RunView], now: datetime
) -> dict[str, list[Any]]:
    """Return one row a strategy by column."""
    columns: dict[str, list[Any]] = {
        name: [] for name in ("strategy", "state", "progress", *_FIGURES, "difference")
    }
    for one in compared.outcomes:
        run = found.get(hashes[one.name])
        month = None if run is None else next(iter(run.months.values()), None)
        columns["strategy"].append(one.name)
        columns["state"].append("not asked for" if run is None else state_and_left(run, now))
        columns["progress"].append(None if run is None else run.days_done / run.days)
        figures = dict.fromkeys(_FIGURES, words.UNKNOWN) if month is None else _figures(month)
        for name, value in figures.items():
            columns[name].append(value)
        columns["difference"].append(words.UNKNOWN if month is None else " ".join(month["difference"]))
    return columns


def _figures(month: Mapping[str, Any]) -> dict[str, str]:
    events, tiers = month["events"], month["tiers"]
    by_tier = {
        tier.value: words.percent(tiers[tier.value]["refused_share"], 2) if tier.value in tiers else "none"
        for tier in TIERS
    }
    return {
        "usd": usd(month["cost_usd"]),
        "refused events": words.percent(events["refused_share"], 2),
        "refused": words.percent(month["refused_share"], 2),
        **by_tier,
        "p95 events": words.seconds(events["wait_p95_s"]),
        "p95": words.seconds(month["wait_p95_s"]),
        "p99 events": words.seconds(events["wait_p99_s"]),
        "p99": words.seconds(month["wait_p99_s"]),
        "first p95": words.seconds(tiers.get(Tier.INTERACTIVE.value, {}).get("first_p95_s")),
        "slo events": words.percent(events["slo_attainment"], 2),
        "slo": words.percent(month["slo_attainment"], 2),
    }


def summary(
    rates_rps: Any, hashes: Mapping[str, str], found: Mapping[str, RunView], precision: Precision
) -> str:
    """Return how it is done, how long it takes and how far it is."""
    days = precision.gate_days or 0
    requests = float(rates_rps[: days * DAY_BINS].sum()) * BIN_S
    minutes = max(1, round(requests / USUAL_PACE / 60))
    runs = [found[key] for key in set(hashes.values()) if key in found]
    done, of = sum(run.days_done for run in runs), sum(run.days for run in runs)
    how = (
        f"The gate that admits in production decides on every request of {words.plural(days, 'day')}, "
        f"beside one queue with the same requests and nodes, {_behind(precision)}. Tiers, weights and "
        f"tenants are those of the inputs. About {requests:,.0f} requests a strategy: "
        f"{words.plural(minutes, 'minute')} of a core each, days side by side on up to four. "
        "USD are of these days."
    )
    return f"{how} {done:,} of {of:,} days are done." if runs else f"{how} Nobody asked for it yet."


def _behind(precision: Precision) -> str:
    if precision.engine is None:
        return "and the same service times"
    return f"before engines ({precision.engine}) scaled so that a full node serves mu"


def tenant_rows(
    compared: Comparison, hashes: Mapping[str, str], found: Mapping[str, RunView]
) -> dict[str, list[Any]]:
    """Return one row a strategy and tenant by column; none where tenants are not told apart."""
    names = ("strategy", "tier", "tenant", "offered", "refused", "mean wait", "slo")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for one in compared.outcomes:
        run = found.get(hashes[one.name])
        month = None if run is None else next(iter(run.months.values()), None)
        noticed: list[dict[str, Any]] = [] if month is None else month.get("tenants", [])
        for tenant in noticed:
            values = (
                one.name,
                words.tier(tenant["tier"]),
                tenant["tenant"],
                words.count(tenant["offered"]),
                words.percent(tenant["refused_share"], 2),
                words.seconds(tenant["mean_wait_s"]),
                words.percent(tenant["slo_attainment"], 2),
            )
            for name, value in zip(names, values, strict=True):
                columns[name].append(value)
    return columns
