"""The disciplines in words: what each case gives, who notices. Pure.

Takes the JSON of `rhodeck estimate disciplines`. Times in ms or s, shares in percent. Prevents: the best
number of one case shown without the group that pays for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard import theme, words
from dashboard.charts import Figure, rounded
from fleet.outcomes import TIERS

GROUPINGS = {"by_class": "size", "by_tier": "tier", "by_tenant": "tenant"}


def headline(compared: Mapping[str, Any]) -> tuple[words.Tone, str]:
    """Return what the comparison says of everybody, in one sentence."""
    base, *others = compared["cases"]
    if compared["compare"] == "batching":
        times = others[0]["output_tokens_per_s"] / base["output_tokens_per_s"]
        return "plain", f"{others[0]['name']}: {times:.1f} times the output tokens/s of {base['name']}."
    if compared["compare"] == "chunking":
        gaps = [f"{case['name']} {words.seconds(case['gap_s']['max'])}" for case in compared["cases"]]
        return "plain", f"Longest gap between two tokens: {', '.join(gaps)}."
    if compared["compare"] == "displacement":
        lost = [f"{case['name']} {_refused_of(case, 'interactive'):,}" for case in compared["cases"]]
        return (
            "plain",
            f"Interactive requests refused: {', '.join(lost)}. Who loses its place stands below.",
        )
    before = base["all"]["ttft_s"]["p99"]
    best = min(compared["cases"], key=_p99)
    if best is base or before is None:
        return "plain", f"No case has a lower p99 of the first token than {base['name']}."
    change = 1 - _p99(best) / before
    return "plain", (
        f"{best['name']}: p99 of the first token {words.seconds(_p99(best))} instead of "
        f"{words.seconds(before)} with {base['name']}, {words.percent(change, 0)} less over all requests. "
        "Who pays for it stands below."
    )


def _refused_of(case: Mapping[str, Any], tier: str) -> int:
    group = case["by_tier"].get(tier)
    return 0 if group is None else sum(group["refused"].values())


def _p99(case: Mapping[str, Any]) -> float:
    found = case["all"]["ttft_s"]["p99"]
    return float("inf") if found is None else float(found)


def case_rows(compared: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return a row for every case."""
    rows = [_case(case) for case in compared["cases"]]
    return {name: [row[name] for row in rows] for name in rows[0]}


def _case(case: Mapping[str, Any]) -> dict[str, str]:
    return _latencies(case["all"]) | {
        "case": case["name"],
        "gap": words.seconds(case["gap_s"]["p99"]),
        "longest": words.seconds(case["gap_s"]["max"]),
        "rate": words.number(case["output_tokens_per_s"]),
        "preempted": words.count(case["preemptions"]),
        "what": case["what"],
    }


def _latencies(group: Mapping[str, Any]) -> dict[str, str]:
    first = group["ttft_s"]
    return {
        "p50": words.seconds(first["p50"]),
        "p95": words.seconds(first["p95"]),
        "p99": words.seconds(first["p99"]),
        "last": words.seconds(group["e2e_s"]["p99"]),
        "good": words.percent(group["good_share"]),
        "refused": words.count(sum(group["refused"].values())),
    }


def group_rows(compared: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return a row for every size class, tier and tenant in every case, cases of one group together."""
    rows = [
        {
            "who": f"{kind} {words.tier(name)}",
            "case": case["name"],
            "offered": words.count(case[key][name]["offered"]),
        }
        | _latencies(case[key][name])
        for key, kind in GROUPINGS.items()
        for name in _ordered(compared["cases"][0][key])
        for case in compared["cases"]
    ]
    return {name: [row[name] for row in rows] for name in rows[0]}


def _ordered(names: Mapping[str, Any]) -> list[str]:
    """Return sizes from short to long and tiers by precedence; the rest as it comes."""
    order = ("short", "medium", "long", *(tier.value for tier in TIERS))
    known = [name for name in order if name in names]
    return [*known, *(name for name in names if name not in known)]


def notice_lines(compared: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return each case's title and what whom changes against the first case."""
    return [
        (
            f"{one['case']} against {one['against']}",
            [words.tier(line) for line in one["lines"]] or ["nobody would notice"],
        )
        for one in compared["notices"]
    ]


def tail_figure(compared: Mapping[str, Any]) -> Figure:
    """Return p99 of the first token by size class, one bar a case, on a log axis."""
    cases = compared["cases"]
    names = _ordered(cases[0]["by_class"])
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": case["name"],
            "x": names,
            "y": [rounded(case["by_class"][name]["ttft_s"]["p99"]) for name in names],
            "marker": {"color": theme.SERIES[place % len(theme.SERIES)]},
            "hovertemplate": "%{x}: %{y:.3~g} s<extra>%{fullData.name}</extra>",
        }
        for place, case in enumerate(cases)
    ]
    layout = {
        "title": {"text": "First token at p99 by size, s", "font": {"size": 13}, "x": 0},
        "margin": {"l": 52, "r": 12, "t": 34, "b": 80},
        "barmode": "group",
        "yaxis": {"type": "log", "dtick": 1},
        "legend": {"orientation": "h", "y": -0.15, "x": 0, "yanchor": "top"},
        "uirevision": f"tails {compared['compare']}",
    }
    said = "; ".join(
        f"{case['name']}: "
        + ", ".join(f"{name} {words.seconds(case['by_class'][name]['ttft_s']['p99'])}" for name in names)
        for case in cases
    )
    return Figure({"data": data, "layout": layout}, f"First token at p99. {said}", 320)
