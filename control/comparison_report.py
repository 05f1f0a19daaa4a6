"""A comparison for people, spreadsheets and scripts: text, CSV, JSON. The same numbers in each.

Money is US dollars a month of 720 h, shares ratios, waits seconds. Prevents: a table taken to a meeting
that does not say whose traffic, which prices and which method it came from.
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import asdict, replace
from typing import Any, cast

from control.comparison_documents import DEFAULTS, Comparable
from control.export_table import neutralised
from fleet.comparison import BreakEven, Comparison, Outcome, Versus
from fleet.comparison_catalogue import against_admission
from fleet.month_result import as_dict
from fleet.percentages import percent
from fleet.traffic_shape import burst_durations, traffic_shape

METHOD = (
    "fluid, 10 s bins, 720 h; refusals within about 0.5 points on smooth traffic, up to 4 on bursty pools"
)
#: What the text says behind an input's value.
_UNITS = {
    "mu": "requests/s a node",
    "tokens_in": "tokens a request",
    "tokens_out": "tokens a request",
    "price": "USD a node-hour",
    "reserved_price": "USD a node-hour",
    "spot_price": "USD a node-hour",
    "slo_wait_s": "s",
    "refusal_usd": "USD",
    "cold_start_s": "s",
}
_MONEY = ("cost_usd", "usd_per_million_tokens", "usd_per_million_output_tokens")


def input_lines(ready: Comparable) -> list[tuple[str, str, str]]:
    """Return every input as (name, value, where it comes from and when it was true)."""
    document = ready.document
    lines = [("traffic", _traffic(ready), ready.profile.source)]
    for key, default in DEFAULTS.items():
        said = document["sources"].get(key)
        is_default = document[key] == default.value
        origin = said or (f"default: {default.source} ({default.date})" if is_default else "typed in")
        lines.append((key, plain_value(document[key]), origin))
    return lines


def _traffic(ready: Comparable) -> str:
    shape = traffic_shape(ready.profile.month())
    return (
        f"{ready.document['traffic']}: mean {shape.mean_rps:.4g}, p90 {shape.p90_rps:.4g}, "
        f"peak {shape.peak_rps:.4g} requests/s"
    )


def plain_value(value: Any) -> str:
    """Return an input's value in words."""
    if value is None:
        return "-"
    if isinstance(value, dict):
        parts = cast("dict[str, Any]", value)
        return ", ".join(f"{key} {_part_value(part)}" for key, part in parts.items()) or "-"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _part_value(part: Any) -> str:
    """A tier's number, or its tenants with their shares of it; a weight only where it is not 1."""
    if not isinstance(part, dict):
        return f"{part:.4g}"
    named = cast("dict[str, list[float]]", part)
    told = [f"{name} {share:.3g}{f' weight {w:g}' if w != 1 else ''}" for name, (share, w) in named.items()]
    return f"({', '.join(told)})"


def split_words(ready: Comparable) -> str:
    """Return how a month's refusals are divided, with the weights they are divided by."""
    weights = " / ".join(f"{weight:g}" for weight in ready.tier_weights.values())
    tenants = " and within a tier to its tenants by theirs" if ready.document["tenants"] else ""
    return (
        "How it is divided: the simulated months know one queue. In each 10 seconds that refuse anybody, "
        f"what is served goes to the tiers by the policy's weights ({weights}){tenants}; what one does not "
        "need goes to the others. Who asks for most beyond its weight's part is refused first. Each tier's "
        "own longest wait and tenants' quotas are not in it."
    )


def warnings(ready: Comparable, compared: Comparison) -> list[str]:
    """Return when admission is the wrong answer on this traffic, and what to know of the traffic."""
    month = ready.profile.month()
    alone = min(
        (o.candidate.strategy.nodes for o in compared.outcomes if o.candidate.strategy.autoscaler is None),
        default=compared.outcomes[0].candidate.strategy.nodes,
    )
    bursts = burst_durations(month, alone * ready.node.service_rate)
    if ready.document["burst_s"] is not None:
        bursts = replace(bursts, median_s=ready.document["burst_s"], is_given=True)
    return [
        *against_admission(
            compared,
            traffic_shape(month),
            bursts,
            refusal_usd=ready.refusal_usd,
            refusal_acceptable=ready.document["refusal_acceptable"],
            cold_start_s=ready.document["cold_start_s"],
        ),
        *ready.profile.notes(),
    ]


def break_even_words(found: BreakEven) -> str:
    """Return how a strategy stands against the baseline, in words."""
    cents = None if found.refusal_usd is None else f"{found.refusal_usd * 100:.3g} cents"
    return {
        Versus.BASELINE: "the baseline",
        Versus.SAME: "the same as the baseline",
        Versus.BETTER: "better at any price of a refusal",
        Versus.WORSE: "worse at any price of a refusal",
        Versus.PAYS_ABOVE: f"pays if a refusal costs over {cents}",
        Versus.PAYS_BELOW: f"pays if a refusal costs under {cents}",
    }[found.versus]


def cheapest_lines(compared: Comparison) -> list[str]:
    """Return which strategy is the cheapest from which price of a refusal on."""
    steps, lines = compared.cheapest, list[str]()
    for place, step in enumerate(steps):
        upto = steps[place + 1].from_usd if place + 1 < len(steps) else math.inf
        if math.isinf(upto):
            span = "at any price of a refusal" if place == 0 else f"above {100 * step.from_usd:.3g} cents"
        else:
            span = f"from {100 * step.from_usd:.3g} to {100 * upto:.3g} cents a refusal"
        lines.append(f"{step.name}: {span}")
    return lines


def outcome_row(ready: Comparable, found: Outcome, stands: BreakEven) -> dict[str, Any]:
    """Return one strategy's numbers by name, with what each tier notices."""
    node, row = ready.node, as_dict(found.month)
    row |= {
        "strategy": found.name,
        "cost_usd": found.cost_usd,
        "usd_per_million_tokens": found.per_million(node.tokens_in + node.tokens_out),
        "usd_per_million_output_tokens": found.per_million(node.tokens_out),
        "reserved_nodes": found.candidate.reserved,
        "missed": found.stand.missed,
        "against_baseline": stands.versus.value,
        "break_even_refusal_usd": stands.refusal_usd,
        "cost_with_refusals_usd": found.stand.total_usd(ready.refusal_usd),
    }
    for one in found.noticed:
        if not one.tenant:
            row[f"refused_share_{one.tier}"] = one.refused_share
    return {"strategy": row.pop("strategy"), **row}


def as_json(ready: Comparable, compared: Comparison) -> dict[str, Any]:
    """Return the whole comparison as JSON-ready values."""
    pairs = zip(compared.outcomes, compared.break_evens, strict=True)
    return {
        "sha256": ready.sha256,
        "method": METHOD,
        "document": ready.document,
        "inputs": [
            {"name": name, "value": value, "source": source} for name, value, source in input_lines(ready)
        ],
        "baseline": compared.baseline,
        "outcomes": [
            outcome_row(ready, o, b) | {"noticed": [asdict(n) for n in o.noticed]} for o, b in pairs
        ],
        "cheapest": [asdict(step) for step in compared.cheapest],
        "warnings": warnings(ready, compared),
    }


def as_csv(ready: Comparable, compared: Comparison) -> str:
    """Return one row a strategy, then the inputs: what a spreadsheet can show. Texts are made harmless."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    pairs = list(zip(compared.outcomes, compared.break_evens, strict=True))
    rows = [outcome_row(ready, o, b) for o, b in pairs]
    writer.writerow(rows[0])
    for row in rows:
        writer.writerow([_cell(name, value) for name, value in row.items()])
    writer.writerow([])
    writer.writerow(["who", "tier", "tenant", "requests", "refused", "refused_share", "worst_hour_share"])
    for found in compared.outcomes:
        for one in found.noticed:
            whose = (found.name, one.tier, one.tenant or "all")
            counts = (one.offered, one.refused, one.refused_share, one.worst_hour_share)
            writer.writerow([*(neutralised(text) for text in whose), *(repr(count) for count in counts)])
    writer.writerow([])
    writer.writerow(["input", "value", "source"])
    for line in input_lines(ready):
        writer.writerow([neutralised(part) for part in line])
    writer.writerow(["method", METHOD, ""])
    writer.writerow(["content", ready.sha256, "the same inputs have the same"])
    return out.getvalue()


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return neutralised(value)
    return f"{value:.2f}" if name in _MONEY else repr(value)


def noticed_lines(compared: Comparison) -> list[str]:
    """Return whose requests each strategy refuses, by tier and its tenants."""
    lines: list[str] = []
    for found in compared.outcomes:
        for one in found.noticed if found.month.refused > 0 else ():
            who = f"  {one.tenant}" if one.tenant else one.tier
            lines.append(
                f"  {found.name[:26]:26} {who[:30]:30} {one.refused:>11,.0f} of {one.offered:>12,.0f} "
                f"({percent(one.refused_share, 2)}, worst hour {percent(one.worst_hour_share, 1)})"
            )
    return ["Who is refused:", *lines] if lines else ["Nobody is refused."]


def as_text(ready: Comparable, compared: Comparison) -> str:
    """Return the comparison as lines for people."""
    lines = [
        f"Traffic  {_traffic(ready)}; {ready.profile.source}",
        f"{'':26} {'USD/month':>10} {'USD/M':>7} {'nodes':>6} {'refused':>8} "
        f"{'p95':>7} {'p99':>7} {'SLO':>8}",
    ]
    for found, stands in zip(compared.outcomes, compared.break_evens, strict=True):
        m, tokens = found.month, ready.node.tokens_in + ready.node.tokens_out
        per_million = found.per_million(tokens)
        shown = "-" if per_million is None else f"{per_million:.2f}"
        lines.append(
            f"{found.name[:26]:26} {found.cost_usd:>10,.0f} {shown:>7} {m.mean_nodes:>6.2f} "
            f"{m.refused_share:>8.2%} {m.wait_p95_s:>5.1f} s {m.wait_p99_s:>5.1f} s "
            f"{m.slo_attainment:>8.3%}   {break_even_words(stands)}"
        )
    lines += ["", "Cheapest with its refusals:", *(f"  {line}" for line in cheapest_lines(compared)), ""]
    lines += [f"! {warning}" for warning in warnings(ready, compared)]
    lines += ["", *noticed_lines(compared)]
    lines += ["", "Inputs:"]
    lines += [
        f"  {name:14} {' '.join((value, _UNITS.get(name, ''))):40} {source}"
        for name, value, source in input_lines(ready)
    ]
    return "\n".join([*lines, "", f"Method: {METHOD}.", f"Content {ready.sha256}"])
