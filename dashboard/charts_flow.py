"""Figures of the flow page: latency on a log axis, places against what explains them, utilization curves.

Pure. Prevents: a doubling that looks like a straight line on one axis and a wall on another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from control.flow_store import FlowPoint
from dashboard import charts, theme, words
from dashboard.charts import Figure, Line
from dashboard.times import Zone
from fleet.health_reading import TARGET_RHO
from fleet.utilization_curve import IDLE_P50, UtilizationCurve

_HEIGHT_PX = 240


def latency_figure(points: Sequence[FlowPoint], zone: Zone, title: str) -> Figure:
    """Return p50 and p99 of each minute on a log axis: a steady doubling is a straight line there."""
    figure = charts.timeline(
        [p.at for p in points],
        [
            Line("p99", [_ms(p.p99_s) for p in points], theme.ORANGE),
            Line("p50", [_ms(p.p50_s) for p in points], theme.BLUE),
            Line("TTFT p99", [_ms(p.ttft_p99_s) for p in points], theme.PURPLE, "dot"),
        ],
        zone,
        title=title,
        unit="ms",
        summary=f"{title}: p50 and p99 of each minute; of several in a point the median p50 and worst p99",
        height_px=_HEIGHT_PX,
    )
    figure.spec["layout"]["title"]["text"] = f"{title}, on a log scale (time in {zone.name})"
    seen = [v for p in points for v in (_ms(p.p50_s), _ms(p.p99_s), _ms(p.ttft_p99_s)) if v is not None]
    figure.spec["layout"]["yaxis"] = {"type": "log", **_ticks(seen)}
    return figure


def _ticks(values_ms: Sequence[float]) -> dict[str, Any]:
    """Return ticks of a log axis that say their unit: decades, with 2 and 5 where the range is short."""
    if not values_ms:
        return {}
    first, last = math.floor(math.log10(min(values_ms))), math.ceil(math.log10(max(values_ms)))
    steps = (1, 2, 5) if last - first <= 2 else (1,)
    at = [step * 10.0**decade for decade in range(first, last + 1) for step in steps]
    return {"tickvals": at, "ticktext": [words.seconds(value / 1000) for value in at]}


def places_figure(points: Sequence[FlowPoint], zone: Zone) -> Figure:
    """Return L and X W of each minute: they part when requests grow old."""
    return charts.timeline(
        [p.at for p in points],
        [
            Line("L, requests inside", [p.mean_in_system for p in points], theme.BLUE),
            Line("X W, explained", [p.explained for p in points], theme.GREEN, "dot"),
        ],
        zone,
        title="Places held and explained",
        unit="requests",
        summary="mean requests inside and throughput times mean time of each minute",
        height_px=_HEIGHT_PX,
    )


def _ms(value: float | None) -> float | None:
    return None if value is None or value <= 0 else 1000 * value


def utilization_figure(curves: Mapping[str, UtilizationCurve]) -> Figure:
    """Return rho against the share of the time at or below it, one line a pool."""
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": pool,
            "x": [charts.rounded(100 * share) for share, _ in curve.points],
            "y": [charts.rounded(rho) for _, rho in curve.points],
            "line": {"color": theme.SERIES[i % len(theme.SERIES)], "width": 2},
            "hovertemplate": f"%{{x:.0f}} % of the time at or below rho %{{y:.2f}}<extra>{pool}</extra>",
        }
        for i, (pool, curve) in enumerate(curves.items())
    ]
    layout: dict[str, Any] = {
        "margin": {"l": 52, "r": 12, "t": 34, "b": 40},
        "height": _HEIGHT_PX,
        "title": {
            "text": "Utilization curve, rho",
            "font": {"size": 13},
            "x": 0,
            "xanchor": "left",
            "y": 0.98,
        },
        "xaxis": {"title": {"text": "% of the time", "font": {"size": 11}}, "range": [0, 100]},
        "yaxis": {"rangemode": "tozero"},
        "legend": {"orientation": "h", "y": 1.0, "x": 1, "xanchor": "right", "yanchor": "bottom"},
        "uirevision": "utilization",
        "shapes": [],
        "annotations": [],
    }
    charts.add_limit(layout, TARGET_RHO, f"{TARGET_RHO:g}, the target")
    charts.add_limit(layout, IDLE_P50, f"{IDLE_P50:g}: idle if below it half of the time", theme.GREEN)
    said = "; ".join(f"{pool}: half of the time at or below {c.p50:.2f}" for pool, c in curves.items())
    return Figure({"data": data, "layout": layout}, f"Utilization curve. {said}", _HEIGHT_PX)
