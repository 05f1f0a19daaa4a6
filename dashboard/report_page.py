"""A comparison as one printable page: tables, bars, every input with its source. Pure HTML, no script.

The browser prints it or saves it as PDF; nothing is fetched, so the file can be mailed and opened anywhere.
Money is US dollars a month of 720 h. Prevents: a picture of a table that lost the prices' dates, and text
of others that becomes markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from control.comparison_documents import Comparable
from control.comparison_report import METHOD
from dashboard import theme
from dashboard import viewmodels_comparison as vm
from fleet.comparison import Comparison
from fleet.percentages import percent

#: No script, nothing fetched; styles are in the page.
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
}
_STYLE = """
:root{color-scheme:light}
body{font:14px/1.45 system-ui,sans-serif;color:#16202c;background:#fff;max-width:62rem;margin:2rem auto;
padding:0 1.5rem}
h1{font-size:1.5rem;margin:0 0 .3rem}h2{font-size:1.1rem;margin:1.6rem 0 .4rem}
.answer{font-size:1.1rem;border-left:4px solid #1f5fa8;padding:.3rem .8rem;margin:1rem 0}
.cards{display:flex;flex-wrap:wrap;gap:.6rem;margin:1rem 0}
.card{border:1px solid #d5dce5;border-radius:.4rem;padding:.5rem .8rem;flex:1 1 8rem}
.card b{display:block;font-size:1.35rem;font-variant-numeric:tabular-nums}
.card span,small{color:#4a5663}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{border-bottom:1px solid #d5dce5;padding:.25rem .5rem;text-align:right;vertical-align:top}
th:first-child,td:first-child,td.text,th.text{text-align:left}
td:not(.text):not(:first-child){white-space:nowrap}tr{break-inside:avoid}h2{break-after:avoid}svg{width:100%;height:auto}
@page{size:A4 landscape;margin:12mm}
@media print{body{margin:0;max-width:none;padding:0}a{color:inherit;text-decoration:none}}
"""
_HEADS = {
    "strategy": "Strategy",
    "usd": "USD a month",
    "per million": "per M tokens",
    "per million out": "per M output",
    "nodes": "Nodes (most)",
    "refused": "Refused",
    "p50": "Wait p50",
    "p95": "p95",
    "p99": "p99",
    "slo": "In objective",
    "rho": "rho",
    "stands": "Against the baseline",
    "tier": "Tier",
    "tenant": "Tenant",
    "offered": "Requests a month",
    "share": "Of its own",
    "worst hour": "Worst hour",
    "input": "Input",
    "value": "Value",
    "source": "Where it comes from, and when",
    "cold_start": "Cold start, 1 to 10 min",
    "burst_length": "Bursts, a tenth to twice as long",
    "spot_ratio": "Spot at 20 to 80 %",
}
_TEXT = {"strategy", "stands", "tier", "tenant", "input", "value", "source"}


def report_page(ready: Comparable, compared: Comparison, more: Sequence[str], made: str) -> str:
    """Return the page. `more`: sentences on what flips the answer; `made`: when, in words with the zone."""
    _, answer = vm.headline(ready, compared)
    wrong, others = vm.wrong_answers(ready, compared)
    cards = "".join(
        f"<div class=card><span>{escape(c.label)}</span><b>{escape(c.value)}</b>"
        f"<small>{escape(c.word)}<br>{escape(c.note)}</small></div>"
        for c in vm.cards(ready, compared)
    )
    noticed = vm.noticed_rows(compared)
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8><title>Estimate: "
        f"{escape(ready.document['traffic'])}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Estimate</h1><small>{escape(METHOD)}. Made {escape(made)}. Content {ready.sha256}.</small>",
        f"<p class=answer>{escape(answer)}</p><div class=cards>{cards}</div>",
        _list(wrong),
        "<h2>Strategies</h2>",
        _table(vm.outcome_rows(ready, compared)),
        "<h2>Cost, and requests missed</h2>",
        bars(compared),
        "<h2>Which is the cheapest</h2>",
        _list([*vm.cheapest_sentences(compared), *more]),
    ]
    if noticed["strategy"]:
        parts += [
            "<h2>Who is refused</h2>",
            _table(noticed),
            f"<p><small>{escape(vm.split(ready))}</small></p>",
        ]
    parts += ["<h2>Inputs</h2>", _table(vm.input_rows(ready)), _list(others), "</body></html>"]
    return "\n".join(parts)


def _list(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>" if items else ""


def _table(rows: dict[str, list[Any]]) -> str:
    def kind(name: str) -> str:
        return " class=text" if name in _TEXT else ""

    head = "".join(f"<th{kind(name)}>{escape(_HEADS.get(name, name))}</th>" for name in rows)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{kind(name)}>{escape(f'{cell:.2f}' if isinstance(cell, float) else str(cell))}</td>"
            for name, cell in zip(rows, line, strict=True)
        )
        + "</tr>"
        for line in zip(*rows.values(), strict=True)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def bars(compared: Comparison) -> str:
    """Return two bars a strategy as SVG: its cost, and the share of requests it misses."""
    costs = [found.cost_usd for found in compared.outcomes]
    shares = [found.stand.missed / found.month.offered for found in compared.outcomes]
    high, wide, step = max(*costs, 1e-9), max(*shares, 1e-9), 30
    drawn: list[str] = []
    for place, found in enumerate(compared.outcomes):
        y = place * step
        drawn += [
            f"<text x='0' y='{y + 17}'>{escape(found.name)}</text>",
            f"<rect x='200' y='{y + 4}' width='{280 * costs[place] / high:.1f}' height='18' "
            f"fill='{theme.BLUE}'/>",
            f"<text x='{205 + 280 * costs[place] / high:.1f}' y='{y + 17}'>{vm.usd(costs[place])}</text>",
            f"<rect x='580' y='{y + 4}' width='{240 * shares[place] / wide:.1f}' height='18' "
            f"fill='{theme.RED}'/>",
            f"<text x='{585 + 240 * shares[place] / wide:.1f}' "
            f"y='{y + 17}'>{percent(shares[place], 2)}</text>",
        ]
    return (
        f"<svg viewBox='0 0 900 {len(costs) * step}' role='img' aria-label='Cost and missed requests' "
        f"font-size='13' fill='#16202c'>{''.join(drawn)}</svg>"
    )
