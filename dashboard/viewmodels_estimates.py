"""The closed-form estimate in words, and beside it what it hides. Pure; money is Decimal USD.

Prevents: a saving quoted without the requests it refuses, and an estimate taken for a measurement.
"""

from __future__ import annotations

from typing import Any

from dashboard import words
from dashboard.viewmodels import Card
from fleet.cost import SOURCES, TARGET_RHO, ClosedForm, Option


def cards(found: ClosedForm) -> list[Card]:
    """Return the answer to the dollar."""
    static, admission = found.static_peak, found.admission
    saves = found.saving_month > 0
    return [
        Card(
            "Static peak",
            words.dollars(static.usd_month),
            words.plural(static.nodes, "node"),
            "plain",
            f"a month; rho at peak {static.rho_at_peak:.2f}",
        ),
        Card(
            "Admission",
            words.dollars(admission.usd_month),
            words.plural(admission.nodes, "node"),
            "plain",
            f"a month; rho at peak {admission.rho_at_peak:.2f}",
        ),
        Card(
            "Burst pool",
            words.dollars(found.burst_realistic),
            words.plural(found.inputs.burst_nodes, "spot node"),
            "plain",
            f"realistic; always on {words.dollars(found.burst_always_on)}",
        ),
        Card("Admission and burst", words.dollars(found.total), "a month", "plain", "the two together"),
        Card(
            "Less than static peak",
            words.dollars(found.saving_month),
            "a month" if saves else "no saving",
            "good" if saves else "watch",
            f"{words.dollars(found.saving_year)} a year",
        ),
    ]


def option_rows(found: ClosedForm) -> dict[str, list[Any]]:
    """Return every way to provision by column: cost, rho, and what it refuses."""
    options: list[Option] = [found.static_peak, found.headroom, found.admission, found.with_burst]
    return {
        "option": [o.name for o in options],
        "nodes": [o.nodes for o in options],
        "spot": [o.spot_nodes for o in options],
        "usd": [words.dollars(o.usd_month) for o in options],
        "rho peak": [o.rho_at_peak for o in options],
        "rho mean": [o.rho_at_mean for o in options],
        "shed": [words.percent(o.shed_at_peak) for o in options],
        "per million": [words.cents(o.usd_per_million_tokens) for o in options],
    }


def hidden(found: ClosedForm) -> list[str]:
    """Return what the closed form hides, with numbers."""
    lines = [
        f"A node serves {found.node_rps:.3g} requests/s here: {found.inputs.tokens_per_s:g} tokens/s over "
        f"{found.inputs.tokens_in + found.inputs.tokens_out:g} tokens a request. Prompt and output tokens "
        "cost an engine very differently, so measure your own.",
        f"Static peak with {words.plural(found.static_peak.nodes, 'node')} runs at rho "
        f"{found.static_peak.rho_at_peak:.2f} at the peak; rho of {TARGET_RHO:g} or less needs "
        f"{words.plural(found.headroom.nodes, 'node')}, {words.dollars(found.headroom.usd_month)} a month.",
        f"While at peak, admission refuses {words.percent(found.admission.shed_at_peak)} of requests, with "
        f"the burst pool {words.percent(found.with_burst.shed_at_peak)}.",
        f"Peak to mean is {found.peak_to_mean:.2f}.",
    ]
    lines += [
        f"If the rate is at its peak {words.percent(shape.time_above, 0)} of the time, "
        f"{words.percent(shape.refused)} of the month's requests are refused."
        for shape in found.peak_shapes
    ]
    return lines


def spot_rows(found: ClosedForm) -> dict[str, list[Any]]:
    """Return the totals at several spot prices."""
    return {
        "Spot, USD/h": [f"{row.spot_price:f}" for row in found.spot],
        "Burst always on": [words.dollars(row.burst_always_on) for row in found.spot],
        "Admission and burst": [words.dollars(row.total_always_on) for row in found.spot],
        "Saves": [words.dollars(row.saving_month) for row in found.spot],
    }


def calendar_rows(found: ClosedForm) -> dict[str, list[Any]]:
    """Return the totals of real months instead of 720 hours."""
    return {
        "Month of": [f"{row.days} days, {row.hours} h" for row in found.calendar],
        "Static peak": [words.dollars(row.static_peak) for row in found.calendar],
        "Admission": [words.dollars(row.admission) for row in found.calendar],
        "Burst pool always on": [words.dollars(row.burst_always_on) for row in found.calendar],
    }


def source(name: str) -> str:
    """Return where a default comes from, and when it was true."""
    return f"{SOURCES[name].what} ({SOURCES[name].date})"


def wrong_answer(found: ClosedForm) -> tuple[list[str], list[str]]:
    """Return the warnings that say admission is the wrong answer, and the others."""
    wrong = [w for w in found.warnings if w.startswith("Admission is the wrong answer")]
    return wrong, [w for w in found.warnings if w not in wrong]
