"""The figure of a month's days: what each cost, by nodes, unused commitments and platform, adjustments.

Pure; days are those of finance's zone, money is US dollars. Prevents: a day nobody
recorded that is drawn as 0.
"""

from __future__ import annotations

from datetime import datetime, time, timedelta
from typing import Any

from dashboard import money_axis, theme
from dashboard.charts import Figure, rounded
from fleet.day_totals import DayTotals

_HEIGHT_PX = 260
_WEEK, _DAY_MS = 7, 86_400_000


def _span(found: DayTotals) -> dict[str, Any]:
    """Return the axis up to the last day: a tick a day at most, and the room of a week at least."""
    first, last = found.days[0].day, found.days[-1].day
    if (last - first).days >= _WEEK:
        return {"nticks": 12}
    end = datetime.combine(last, time(12))
    return {"range": [f"{end - timedelta(days=_WEEK)}", f"{end}"], "dtick": _DAY_MS}


def days_chart(found: DayTotals) -> Figure:
    """Return stacked bars, one a day."""
    days = [day.day.isoformat() for day in found.days]
    parts = (
        ("nodes", [d.nodes_usd if d.is_recorded else None for d in found.days], theme.BLUE),
        ("unused and platform", [d.charges_usd for d in found.days], theme.ORANGE),
        ("adjustments", [d.adjustments_usd for d in found.days], theme.PURPLE),
    )
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": name,
            "x": days,
            "y": [None if usd is None else rounded(float(usd)) for usd in values],
            "marker": {"color": colour},
            "width": 0.8 * _DAY_MS,  # one day alone has no neighbour to take a width from
            "hovertemplate": "$%{y:,.2f}<extra>" + name + "</extra>",
        }
        for name, values, colour in parts
        if name == "nodes" or any(values)
    ]
    layout: dict[str, Any] = {
        "barmode": "relative",
        "margin": {"l": 64, "r": 16, "t": 40, "b": 40},
        "height": _HEIGHT_PX,
        "title": {
            "text": f"Spend by day, USD (days of {found.zone})",
            "font": {"size": 13},
            "x": 0,
            "xanchor": "left",
            "y": 0.98,
        },
        "xaxis": {"type": "date", "tickformat": "%-d %b", **_span(found)},
        "yaxis": {"rangemode": "tozero", **money_axis.axis(float(day.total_usd) for day in found.days)},
        "legend": {"orientation": "h", "y": 1.0, "x": 1, "xanchor": "right", "yanchor": "bottom"},
        "hovermode": "x unified",
        "uirevision": f"days of {found.start:%Y-%m}",
    }
    most = max(found.days, key=lambda day: day.total_usd)
    summary = (
        f"{len(found.days)} days, ${found.total_usd:,.2f} in all; the dearest is {most.day} with "
        f"${most.total_usd:,.2f}"
    )
    return Figure({"data": data, "layout": layout}, summary, _HEIGHT_PX)
