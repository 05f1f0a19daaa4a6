"""The figure of a tenant's month: spent so far, the way to the month's end with its interval, the budget.

Pure; days are those of finance's zone, money is US dollars. Prevents: a forecast drawn like a measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from control.budgets import TenantBudget
from dashboard import money_axis, theme
from dashboard.charts import Figure, rounded
from fleet.months import Month

_HEIGHT_PX = 320


def month_path(
    budget: TenantBudget,
    month: Month,
    now: datetime,
    thresholds: Sequence[float],
    *,
    is_counted: bool = True,
) -> Figure:
    """Return cumulative spend, forecast and budget of the running month, at `now`.

    A point stands where its day ends; the last one of what is spent, and the first ahead, stand at `now`.
    What is spent begins with the first day that has some: before it nothing may have been recorded. It is
    left out unless `is_counted`: what nobody counted yet is not 0.
    """
    state, here = budget.state, now.astimezone(ZoneInfo(month.zone))
    first, today = date.fromisoformat(f"{month.name}-01"), here.date()
    began = min((day for day, usd in budget.days.items() if usd and day >= first), default=today)
    days = [began + timedelta(days=n) for n in range((today - began).days + 1)]
    at = [*map(_midnight, days), f"{here:%Y-%m-%d %H:%M}"]
    data: list[dict[str, Any]] = []
    if state.forecast is not None:
        data += _ahead(budget, at[-1])
    if is_counted:
        data.append(_line("spent", at, [0.0, *_running(budget.days, days)], theme.BLUE, "solid", 3))
    last = month.end.astimezone(ZoneInfo(month.zone)).date()
    layout: dict[str, Any] = {
        "margin": {"l": 64, "r": 90, "t": 40, "b": 48},
        "height": _HEIGHT_PX,
        "title": {
            "text": f"{state.tenant}: spent in {month.name}, USD (days of {month.zone})",
            "font": {"size": 13},
            "x": 0,
            "xanchor": "left",
            "y": 0.98,
        },
        "xaxis": {
            "type": "date",
            "tickformat": "%-d %b",
            "nticks": 10,
            "range": [_midnight(first), _midnight(last)],
        },
        "yaxis": {"rangemode": "tozero", **money_axis.axis(_all_usd(data, state.limit_usd))},
        "legend": {"orientation": "h", "y": -0.2, "x": 0, "yanchor": "top", "font": {"size": 10}},
        "hovermode": "x unified",
        "uirevision": f"budget {state.tenant}",
        "shapes": [],
        "annotations": [],
    }
    for ratio in sorted({*thresholds, 1.0}):
        _mark(layout, float(state.limit_usd) * ratio, ratio)
    return Figure({"data": data, "layout": layout}, _summary(budget, is_counted=is_counted), _HEIGHT_PX)


def _all_usd(data: Sequence[Mapping[str, Any]], limit_usd: Decimal) -> list[float | None]:
    """Return every amount that is drawn, the budget's line included."""
    return [float(limit_usd), *(usd for trace in data for usd in trace["y"])]


def _running(by_day: Mapping[date, Decimal], days: Sequence[date]) -> list[float]:
    total, found = Decimal(0), list[float]()
    for day in days:
        total += by_day.get(day, Decimal(0))
        found.append(float(total))
    return found


def _line(
    name: str, at: Sequence[str], usd: Sequence[float], colour: str, dash: str, width: int
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(at),
        "y": [rounded(value) for value in usd],
        "line": {"color": colour, "width": width, "dash": dash},
        "hovertemplate": f"$%{{y:{money_axis.form(money_axis.digits(usd))}}}<extra>{name}</extra>",
    }


def _midnight(day: date) -> str:
    return f"{day} 00:00"


def _ahead(budget: TenantBudget, here: str) -> list[dict[str, Any]]:
    """Return forecast and interval, from what is spent now on."""
    state = budget.state
    path = state.forecast.days if state.forecast else ()
    days = [here, *(_midnight(day.day + timedelta(days=1)) for day in path)]
    now = float(state.spent_usd)
    low = _line("low", days, [now, *(d.low for d in path)], theme.ORANGE, "solid", 0)
    high = _line("four months in five", days, [now, *(d.high for d in path)], theme.ORANGE, "solid", 0)
    middle = _line("forecast", days, [now, *(d.usd for d in path)], theme.ORANGE, "dash", 2)
    low |= {"showlegend": False, "hoverinfo": "skip"}
    high |= {"fill": "tonexty", "fillcolor": "rgba(209,143,0,0.20)", "hoverinfo": "skip"}
    return [low, high, middle]


def _mark(layout: dict[str, Any], at: float, ratio: float) -> None:
    is_all = ratio == 1.0
    layout["shapes"].append(
        {
            "type": "line",
            "xref": "paper",
            "x0": 0,
            "x1": 1,
            "y0": at,
            "y1": at,
            "line": {
                "color": theme.RED if is_all else theme.PURPLE,
                "width": 2 if is_all else 1,
                "dash": "solid" if is_all else "dot",
            },
        }
    )
    layout["annotations"].append(
        {
            "xref": "paper",
            "x": 1.005,
            "y": at,
            "xanchor": "left",
            "showarrow": False,
            "font": {"size": 11},
            "text": "budget" if is_all else f"{100 * ratio:g} %",
        }
    )


def _summary(budget: TenantBudget, *, is_counted: bool) -> str:
    state = budget.state
    spent = f"${state.spent_usd:,.2f}" if is_counted else "an unknown part"
    said = f"{state.tenant} has spent {spent} of ${state.limit_usd:,.2f}; {state.standing}"
    if state.forecast is None:
        return f"{said}. No forecast: {state.why_unknown}"
    end = state.forecast.end
    return f"{said}. Month's end ${end.usd:,.0f}, ${end.low:,.0f} to ${end.high:,.0f}"
