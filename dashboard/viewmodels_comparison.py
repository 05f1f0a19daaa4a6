"""A comparison of strategies in words, cards and tables. Pure.

Money is US dollars a month of 720 h, waits seconds, shares are of offered requests. Prevents: a cheapest
strategy named without what it refuses, and an estimate taken for a measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from control.comparison_documents import Comparable
from control.comparison_report import (
    break_even_words,
    cheapest_lines,
    input_lines,
    plain_value,
    split_words,
    warnings,
)
from control.estimate_inputs import Measured, Unmeasured
from dashboard import words
from dashboard.viewmodels import Card
from fleet.comparison import Comparison, Outcome
from fleet.comparison_catalogue import duration
from fleet.comparison_sensitivity import Axis, Sensitivity
from fleet.reserve import Reserve

AXES = {
    Axis.COLD_START: "the cold start (1 to 10 minutes)",
    Axis.BURST_LENGTH: "how long bursts last (a tenth to twice as long)",
    Axis.SPOT_RATIO: "the spot price (20 to 80 % of on demand)",
}


def usd(amount: float) -> str:
    """Return money to the dollar."""
    return words.dollars(Decimal(str(amount)))


def headline(ready: Comparable, compared: Comparison) -> tuple[words.Tone, str]:
    """Return the answer in one sentence, with the price of a refusal it holds for."""
    base = compared.outcome(compared.baseline)
    if not ready.document["refusal_acceptable"]:
        whole = [o for o in compared.outcomes if o.stand.missed == 0]
        if not whole:
            return "act", "Nobody may be refused, and none of these strategies serves everybody in time."
        best = min(whole, key=lambda o: o.cost_usd)
        return "good", f"{best.name} serves everybody in time for {usd(best.cost_usd)} a month."
    best = compared.cheapest_at(ready.refusal_usd)
    text = (
        f"If a refused request costs {_cents(ready.refusal_usd)}, {best.name} costs least, refusals "
        f"included: {usd(best.cost_usd)} a month, {words.percent(best.month.refused_share, 2)} refused"
    )
    if best.name == base.name:
        return "good", f"{text}."
    less = base.cost_usd - best.cost_usd
    return "good", (
        f"{text}. {base.name} costs {usd(abs(less))} {'more' if less > 0 else 'less'} and refuses "
        f"{words.percent(base.month.refused_share, 2)}."
    )


def _cents(amount: float) -> str:
    return "1 cent" if amount == 0.01 else f"{100 * amount:.3g} cents"


def cards(ready: Comparable, compared: Comparison) -> list[Card]:
    """Return the cheapest strategy's numbers: what a product manager asks first."""
    best = _chosen(ready, compared)
    month, node = best.month, ready.node
    base = compared.outcome(compared.baseline)
    return [
        Card(
            "Cost a month",
            usd(best.cost_usd),
            best.name,
            "plain",
            f"{compared.baseline}: {usd(base.cost_usd)}",
        ),
        Card(
            "USD per million tokens",
            per_million(best.per_million(node.tokens_in + node.tokens_out)),
            "all tokens",
            "plain",
            f"prompt and output; of output alone {per_million(best.per_million(node.tokens_out))}",
        ),
        Card(
            "Refused",
            words.percent(month.refused_share, 2),
            "of requests",
            "good" if month.refused_share < 0.001 else "watch",
            f"{month.refused:,.0f} of {month.offered:,.0f} a month",
        ),
        Card(
            "Wait of the slowest 1 %",
            words.seconds(month.wait_p99_s),
            "p99",
            "good" if month.wait_p99_s <= compared.slo_wait_s else "watch",
            f"p50 {words.seconds(month.wait_p50_s)}, p95 {words.seconds(month.wait_p95_s)}",
        ),
        Card(
            "Within the objective",
            words.percent(month.slo_attainment, 2),
            f"wait at most {compared.slo_wait_s:g} s",
            "good" if month.slo_attainment >= 0.99 else "watch",
            "of all offered requests",
        ),
        Card(
            "Nodes",
            f"{month.mean_nodes:.1f}",
            "on average",
            "plain",
            f"at most {month.max_nodes}; rho {month.utilization:.2f}",
        ),
    ]


def _chosen(ready: Comparable, compared: Comparison) -> Outcome:
    if ready.document["refusal_acceptable"]:
        return compared.cheapest_at(ready.refusal_usd)
    return min(compared.outcomes, key=lambda o: (o.stand.missed, o.cost_usd))


def per_million(amount: float | None) -> str:
    """Return a unit price to the cent."""
    return words.cents(None if amount is None else Decimal(str(amount)))


def outcome_rows(ready: Comparable, compared: Comparison) -> dict[str, list[Any]]:
    """Return every strategy by column."""
    found, node = compared.outcomes, ready.node
    return {
        "strategy": [o.name for o in found],
        "usd": [usd(o.cost_usd) for o in found],
        "refused": [words.percent(o.month.refused_share, 2) for o in found],
        "stands": [break_even_words(b) for b in compared.break_evens],
        "per million": [per_million(o.per_million(node.tokens_in + node.tokens_out)) for o in found],
        "slo": [words.percent(o.month.slo_attainment, 2) for o in found],
        "p95": [words.seconds(o.month.wait_p95_s) for o in found],
        "p99": [words.seconds(o.month.wait_p99_s) for o in found],
        "nodes": [f"{o.month.mean_nodes:.2f} ({o.month.max_nodes})" for o in found],
        "per million out": [per_million(o.per_million(node.tokens_out)) for o in found],
        "p50": [words.seconds(o.month.wait_p50_s) for o in found],
        "rho": [o.month.utilization for o in found],
    }


def noticed_rows(compared: Comparison) -> dict[str, list[Any]]:
    """Return what each tier, and each tenant in it, notices under each strategy that refuses anybody."""
    pairs = [(o, n) for o in compared.outcomes if o.month.refused > 0 for n in o.noticed]
    return {
        "strategy": [o.name for o, _ in pairs],
        "tier": [words.tier(n.tier) for _, n in pairs],
        "tenant": [n.tenant or "all" for _, n in pairs],
        "offered": [f"{n.offered:,.0f}" for _, n in pairs],
        "refused": [f"{n.refused:,.0f}" for _, n in pairs],
        "share": [words.percent(n.refused_share, 2) for _, n in pairs],
        "worst hour": [words.percent(n.worst_hour_share) for _, n in pairs],
    }


def split(ready: Comparable) -> str:
    """Return how a month's refusals are divided; shown beside every such number."""
    return split_words(ready)


def input_rows(ready: Comparable) -> dict[str, list[Any]]:
    """Return every input with where it comes from."""
    lines = input_lines(ready)
    return {
        "input": [name.replace("_", " ") for name, _, _ in lines],
        "value": [words.tier(value) for _, value, _ in lines],
        "source": [source for _, _, source in lines],
    }


def measured_rows(found: Sequence[Measured | Unmeasured]) -> dict[str, list[Any]]:
    """Return what the fleet measured, and what it did not with the reason."""
    return {
        "input": [one.name.replace("_", " ") for one in found],
        "value": [
            words.UNKNOWN if isinstance(one, Unmeasured) else words.tier(plain_value(one.value))
            for one in found
        ],
        "source": [
            f"not measured: {one.reason}" if isinstance(one, Unmeasured) else one.source for one in found
        ],
    }


def cheapest_sentences(compared: Comparison) -> list[str]:
    """Return which strategy is the cheapest from which price of a refusal on."""
    return cheapest_lines(compared)


def wrong_answers(ready: Comparable, compared: Comparison) -> tuple[list[str], list[str]]:
    """Return what says that admission is the wrong answer, and what else to mind."""
    said = warnings(ready, compared)
    wrong = [line for line in said if "is the wrong answer" in line]
    return wrong, [line for line in said if line not in wrong]


def flips(found: list[Sensitivity]) -> list[str]:
    """Return, for each axis, whether the answer holds along it."""
    lines: list[str] = []
    for one in found:
        if not one.steps:
            lines.append(f"Nothing here depends on {AXES[one.axis]}.")
        elif not one.flips:
            lines.append(f"{one.steps[0].cheapest} stays the cheapest whatever {AXES[one.axis]}.")
        else:
            parts = ", ".join(f"{_at(one.axis, s.value)}: {s.cheapest}" for s in one.steps)
            lines.append(f"The answer changes with {AXES[one.axis]}: {parts}.")
    return lines


def _at(axis: Axis, value: float) -> str:
    return duration(value) if axis is Axis.COLD_START else f"x {value:g}"


def band_rows(compared: Comparison, found: list[Sensitivity]) -> dict[str, list[Any]]:
    """Return the least and most each strategy costs along each axis."""
    names = [o.name for o in compared.outcomes]
    rows: dict[str, list[Any]] = {"strategy": names}
    for one in found:
        bands = [one.band(name) for name in names]
        rows[one.axis.value] = [
            words.UNKNOWN if band is None else f"{usd(band[0])} to {usd(band[1])}" for band in bands
        ]
    return rows


def reserve_line(found: Reserve) -> str:
    """Return how many nodes to reserve, and why."""
    where = f"a reserved node costs {words.percent(found.price_ratio, 0)} of an on-demand one"
    if found.nodes == 0:
        return f"Reserve none: {where}, and no node is needed that much of the time."
    last = words.percent(found.needed_share[found.nodes - 1], 0)
    following = (
        f", the next {words.percent(found.needed_share[found.nodes], 0)}"
        if found.nodes < len(found.needed_share)
        else ""
    )
    return (
        f"Reserve {words.plural(found.nodes, 'node')}: {where}; the last of them is needed {last} of the "
        f"time{following}. With ideal autoscaling above them the month costs {usd(found.ideal_usd)}, all "
        f"on demand {usd(found.all_on_demand_usd)}: no real autoscaler reaches that."
    )


def stands_at(ready: Comparable, found: Sensitivity) -> float | None:
    """Return where the comparison itself stands on an axis; None where its strategies differ."""
    if found.axis is Axis.BURST_LENGTH:
        return 1.0
    if found.axis is Axis.COLD_START:
        return float(ready.document["cold_start_s"])
    price = float(ready.document["price"])
    return float(ready.document["spot_price"]) / price if price > 0 else None


def part(done: int, of: int) -> float:
    """Return how much of a file is read, 0 to 1."""
    return min(1.0, done / of) if of else 0.0


def reading_text(done: int, of: int) -> str:
    """Return how far reading a file is."""
    return f"Reading the file: {100 * part(done, of):.0f} %"
