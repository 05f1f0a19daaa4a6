"""Figures of estimates: cost against refusals, nodes over the month, what a price of a refusal decides.

Pure; money is US dollars a month, shares are drawn in percent, hours of the simulated month are no dates.
Prevents: a chart of dollars that leaves out who was refused for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dashboard import money_axis, theme, words
from dashboard.charts import Figure, rounded
from fleet.comparison import Comparison
from fleet.comparison_sensitivity import Axis, Sensitivity
from fleet.percentages import percent

_MARGIN = {"l": 64, "r": 16, "t": 40, "b": 48}
WEEK_HOURS = 168
#: Prices of a refusal that are drawn, in cents.
_CENTS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
AXIS_TITLES = {
    Axis.COLD_START: "cold start, minutes",
    Axis.BURST_LENGTH: "bursts, times as long",
    Axis.SPOT_RATIO: "spot price / on-demand price",
}


def _layout(title: str, x: str, y: str, height_px: int, **more: Any) -> dict[str, Any]:
    return {
        "margin": _MARGIN,
        "height": height_px,
        "title": {"text": title, "font": {"size": 13}, "x": 0, "xanchor": "left", "y": 0.98},
        "xaxis": {"title": {"text": x, "font": {"size": 11}}, **more.pop("xaxis", {})},
        "yaxis": {"title": {"text": y, "font": {"size": 11}}, **more.pop("yaxis", {})},
        "legend": {"orientation": "h", "y": -0.25, "x": 0, "yanchor": "top", "font": {"size": 10}},
        "uirevision": title,
        **more,
    }


def _colour(place: int) -> str:
    return theme.SERIES[place % len(theme.SERIES)]


def cost_and_refusals(compared: Comparison) -> Figure:
    """Return one point a strategy: its cost, and the share of requests it misses."""
    usd = money_axis.form(money_axis.digits((o.cost_usd for o in compared.outcomes), least=0.0))
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": found.name,
            "x": [rounded(100 * found.stand.missed / found.month.offered)],
            "y": [rounded(found.cost_usd)],
            "marker": {"color": _colour(place), "size": 14},
            "hovertemplate": f"%{{x:.2f}} % missed, $%{{y:{usd}}}<extra>%{{fullData.name}}</extra>",
        }
        for place, found in enumerate(compared.outcomes)
    ]
    layout = _layout(
        "Cost and missed requests",
        "requests refused, lost or late, percent",
        "USD a month",
        360,
        xaxis={"rangemode": "tozero"},
        yaxis={"rangemode": "tozero", **money_axis.axis(o.cost_usd for o in compared.outcomes)},
    )
    said = "; ".join(
        f"{o.name}: ${o.cost_usd:{usd}}, {percent(o.stand.missed / o.month.offered, 2)} missed"
        for o in compared.outcomes
    )
    return Figure({"data": data, "layout": layout}, said, 360)


def nodes_over_time(compared: Comparison, hours: int = WEEK_HOURS) -> Figure:
    """Return the billed nodes of each strategy over the first hours of the month."""
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": found.name,
            "x0": 0,
            "dx": 1,
            "y": [rounded(nodes) for nodes in found.nodes_by_hour[:hours]],
            "line": {"color": _colour(place), "width": 2, "shape": "hv"},
            "hovertemplate": "%{y:.1f} nodes<extra>%{fullData.name}</extra>",
        }
        for place, found in enumerate(compared.outcomes)
    ]
    layout = _layout(
        "Nodes billed, hour by hour",
        "hour of the month",
        "nodes",
        360,
        xaxis={"dtick": 24},
        yaxis={"rangemode": "tozero"},
        hovermode="x unified",
    )
    said = "; ".join(
        f"{o.name}: {o.month.mean_nodes:.1f} nodes on average, at most {o.month.max_nodes}"
        for o in compared.outcomes
    )
    return Figure({"data": data, "layout": layout}, said, 360)


def price_of_a_refusal(compared: Comparison, refusal_usd: float) -> Figure:
    """Return the cost with refusals against what a refusal costs: the lowest line wins."""
    top = 2 * max(found.cost_usd for found in compared.outcomes)
    least = min(found.cost_usd for found in compared.outcomes)
    usd = money_axis.form(money_axis.digits([top], least=0.8 * least))
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": found.name,
            "x": list(_CENTS),
            "y": [rounded(found.stand.total_usd(cents / 100)) for cents in _CENTS],
            "line": {"color": _colour(place), "width": 2},
            "hovertemplate": f"$%{{y:{usd}}}<extra>%{{fullData.name}}</extra>",
        }
        for place, found in enumerate(compared.outcomes)
    ]
    layout = _layout(
        "Cost with refusals: the lowest line is the answer",
        "what a missed request costs, cents",
        "USD a month",
        360,
        xaxis={"type": "log", "tickvals": [0.01, 0.1, 1, 10, 100]},
        yaxis={"range": [0.8 * least, top], **money_axis.axis([top], least=0.8 * least)},
        hovermode="x unified",
    )
    if refusal_usd > 0:
        layout["shapes"] = [
            {
                "type": "line",
                "yref": "paper",
                "x0": 100 * refusal_usd,
                "x1": 100 * refusal_usd,
                "y0": 0,
                "y1": 1,
                "line": {"color": theme.RED, "width": 1, "dash": "dot"},
            }
        ]
    said = "; ".join(f"from {100 * step.from_usd:.3g} cents {step.name}" for step in compared.cheapest)
    return Figure({"data": data, "layout": layout}, f"The cheapest: {said}", 360)


def refused_by_tier(compared: Comparison) -> Figure:
    """Return bars of what each tier notices, one group a strategy."""
    tiers = [one.tier for one in compared.outcomes[0].noticed if not one.tenant]
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": words.tier(tier),
            "x": [found.name for found in compared.outcomes],
            "y": [
                rounded(
                    100
                    * next((n.refused_share for n in found.noticed if n.tier == tier and not n.tenant), 0)
                )
                for found in compared.outcomes
            ],
            "marker": {"color": _colour(place)},
            "hovertemplate": "%{y:.2f} % of its requests<extra>%{fullData.name}</extra>",
        }
        for place, tier in enumerate(tiers)
    ]
    layout = _layout(
        "Refused, of each tier's own requests", "", "percent", 340, yaxis={"rangemode": "tozero"}
    )
    names = [found.name for found in compared.outcomes]
    lines = [name.replace("+ ", "+<br>").replace(", ", ",<br>") for name in names]  # upright, none cut off
    upright = {"tickvals": names, "ticktext": lines, "tickangle": 0, "tickfont": {"size": 10}}
    layout["xaxis"] = layout["xaxis"] | upright
    said = "; ".join(
        f"{words.tier(n.tier)} under {o.name}: {percent(n.refused_share, 2)}"
        for o in compared.outcomes
        for n in o.noticed
        if not n.tenant
    )
    return Figure({"data": data, "layout": layout}, said, 340)


def sensitivity(found: Sensitivity, names: Sequence[str], value: float | None) -> Figure:
    """Return the cost with refusals along one axis; `value` marks where the comparison stands."""
    scale = 1 / 60 if found.axis is Axis.COLD_START else 1.0
    costs = [p.total_usd for step in found.steps for p in step.points if p.name in names]
    usd = money_axis.form(money_axis.digits(costs, least=0.0))
    data: list[dict[str, Any]] = []
    for place, name in enumerate(names):
        points = [
            (step.value * scale, point.total_usd)
            for step in found.steps
            for point in step.points
            if point.name == name
        ]
        if points:
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": name,
                    "x": [rounded(x) for x, _ in points],
                    "y": [rounded(cost) for _, cost in points],
                    "line": {"color": _colour(place), "width": 2},
                    "hovertemplate": f"$%{{y:{usd}}}<extra>%{{fullData.name}}</extra>",
                }
            )
    title = AXIS_TITLES[found.axis]
    layout = _layout(
        f"At another {title.split(',')[0]}",
        title,
        "USD a month, with refusals",
        320,
        yaxis={"rangemode": "tozero", **money_axis.axis(costs)},
        hovermode="x unified",
        showlegend=False,
    )
    if value is not None:
        layout["shapes"] = [
            {
                "type": "line",
                "yref": "paper",
                "x0": value * scale,
                "x1": value * scale,
                "y0": 0,
                "y1": 1,
                "line": {"color": theme.RED, "width": 1, "dash": "dot"},
            }
        ]
    said = "; ".join(f"at {step.value * scale:g} the cheapest is {step.cheapest}" for step in found.steps)
    return Figure({"data": data, "layout": layout}, said, 320)
