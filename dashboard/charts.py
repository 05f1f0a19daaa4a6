"""Figures as plain values: series, lines, markers. Pure; colours of text and grid come from the theme.

Times are instants turned into wall time of the shown zone (`times.Zone.axis`), x as one start and one
step. A None is a gap. Prevents: a hole in the data drawn as a line, and an axis on another clock than the
table beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from dashboard import theme
from dashboard.times import Zone

_MARGIN = {"l": 52, "r": 12, "t": 34, "b": 40}


@dataclass(frozen=True, slots=True)
class Figure:
    """A Plotly figure as data, and one sentence that says what it shows to who cannot see it."""

    spec: dict[str, Any]
    summary: str
    height_px: int = 240
    time: tuple[datetime, datetime, Zone] | None = None  # what a chart over time shows, and in which zone


@dataclass(frozen=True, slots=True)
class Line:
    """One series on equally spaced instants."""

    name: str
    values: Sequence[float | None]
    colour: str = theme.BLUE
    dash: str = "solid"
    axis: str = "y"


@dataclass(frozen=True, slots=True)
class Marker:
    """A vertical line at an instant: a change somebody made."""

    at: datetime
    label: str


def timeline(
    starts: Sequence[datetime],
    lines: Sequence[Line],
    zone: Zone,
    *,
    title: str,
    unit: str,
    summary: str,
    limit: tuple[float, str] | None = None,
    markers: Sequence[Marker] = (),
    band: tuple[Sequence[float | None], Sequence[float | None]] | None = None,
    height_px: int = 240,
) -> Figure:
    """Return lines over time in `zone`, with an optional limit, band (low, high) and change markers."""
    step_ms = (starts[1] - starts[0]).total_seconds() * 1000 if len(starts) > 1 else 10_000
    axis = {"x0": zone.axis(starts[0]), "dx": step_ms} if starts else {"x": []}
    data: list[dict[str, Any]] = []
    if band is not None and starts:
        data += _band(band, starts, step_ms, zone)
    for line in lines:
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": line.name,
                "y": [rounded(v) for v in line.values],
                "connectgaps": False,
                "yaxis": line.axis,
                "line": {"color": line.colour, "width": 2, "dash": line.dash},
                "hovertemplate": f"%{{y:.3~g}} {unit}<extra>{line.name}</extra>",
                **axis,
            }
        )
    layout = {
        "margin": _MARGIN,
        "height": height_px,
        "title": {
            "text": f"{title}, {unit} (time in {zone.name})",
            "font": {"size": 13},
            "x": 0,
            "xanchor": "left",
            "y": 0.98,
        },
        "xaxis": {"type": "date", "nticks": 7},
        "yaxis": {"rangemode": "tozero"},
        "legend": {"orientation": "h", "y": 1.0, "x": 1, "xanchor": "right", "yanchor": "bottom"},
        "hovermode": "x unified",
        "uirevision": title,
        "shapes": [],
        "annotations": [],
    }
    if limit is not None:
        add_limit(layout, *limit)
    for marker in markers:
        _mark(layout, zone.axis(marker.at), marker.label)
    shown = (starts[0], starts[-1] + timedelta(milliseconds=step_ms), zone) if starts else None
    return Figure({"data": data, "layout": layout}, summary, height_px, shown)


def _band(
    band: tuple[Sequence[float | None], Sequence[float | None]],
    starts: Sequence[datetime],
    step_ms: float,
    zone: Zone,
) -> list[dict[str, Any]]:
    """Return the filled interval, a pair of traces a stretch without gaps: a fill would cross them."""
    data: list[dict[str, Any]] = []
    for first, last in _stretches(*band):
        shared = {
            "type": "scatter",
            "mode": "lines",
            "line": {"width": 0},
            "hoverinfo": "skip",
            "legendgroup": "interval",
            "x0": zone.axis(starts[first]),
            "dx": step_ms,
        }
        low, high = ([rounded(v) for v in side[first:last]] for side in band)
        fill = {"fill": "tonexty", "fillcolor": "rgba(43,131,198,0.18)", "showlegend": not data}
        data.append({**shared, "name": "lowest", "y": low, "showlegend": False})
        data.append({**shared, "name": "interval", "y": high, **fill})
    return data


def _stretches(low: Sequence[float | None], high: Sequence[float | None]) -> list[tuple[int, int]]:
    """Return [first, last) of every run in which both sides are known."""
    found: list[tuple[int, int]] = []
    first: int | None = None
    for i, (a, b) in enumerate([*zip(low, high, strict=True), (None, None)]):
        is_known = a is not None and b is not None
        if is_known and first is None:
            first = i
        elif not is_known and first is not None:
            found.append((first, i))
            first = None
    return found


def add_limit(layout: dict[str, Any], at: float, label: str, colour: str = theme.RED) -> None:
    """Draw a level line with its meaning at its left end."""
    layout["shapes"].append(
        {
            "type": "line",
            "xref": "paper",
            "x0": 0,
            "x1": 1,
            "y0": at,
            "y1": at,
            "line": {"color": colour, "width": 1.5, "dash": "dash"},
        }
    )
    layout["annotations"].append(
        {
            "xref": "paper",
            "x": 0,
            "y": at,
            "text": label,
            "showarrow": False,
            "xanchor": "left",
            "yanchor": "bottom",
            "font": {"color": colour, "size": 11},
        }
    )


def _mark(layout: dict[str, Any], at: str, label: str) -> None:
    layout["shapes"].append(
        {
            "type": "line",
            "yref": "paper",
            "x0": at,
            "x1": at,
            "y0": 0,
            "y1": 1,
            "line": {"color": theme.PURPLE, "width": 1, "dash": "dot"},
        }
    )
    layout["annotations"].append(
        {
            "yref": "paper",
            "x": at,
            "y": 1,
            "text": label,
            "showarrow": False,
            "xanchor": "left",
            "yanchor": "top",
            "font": {"color": theme.PURPLE, "size": 11},
        }
    )


def capacity_scatter(
    batches: Sequence[float],
    gaps_s: Sequence[float],
    fit: tuple[Sequence[float], Sequence[float]] | None,
    *,
    summary: str,
    height_px: int = 260,
) -> Figure:
    """Return inter-token latency against batch, one point a window, and the fitted curve if any."""
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "windows",
            "x": [rounded(b) for b in batches],
            "y": [rounded(1000 * gap) for gap in gaps_s],
            "marker": {"color": theme.BLUE, "size": 6, "opacity": 0.6},
            "hovertemplate": "batch %{x:.1f}, %{y:.1f} ms<extra></extra>",
        }
    ]
    if fit is not None:
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": "fit",
                "x": [rounded(b) for b in fit[0]],
                "y": [rounded(1000 * gap) for gap in fit[1]],
                "line": {"color": theme.ORANGE, "width": 2},
            }
        )
    layout = {
        "margin": _MARGIN,
        "height": height_px,
        "title": {
            "text": "Time between tokens by requests at once",
            "font": {"size": 13},
            "x": 0,
            "xanchor": "left",
            "y": 0.98,
        },
        "xaxis": {
            "title": {"text": "requests decoding at once (mean of a window)", "font": {"size": 11}},
            "rangemode": "tozero",
        },
        "yaxis": {
            "title": {"text": "inter-token latency, ms", "font": {"size": 11}},
            "rangemode": "tozero",
        },
        "legend": {"orientation": "h", "y": 1.0, "x": 1, "xanchor": "right", "yanchor": "bottom"},
        "uirevision": "capacity",
    }
    return Figure({"data": data, "layout": layout}, summary, height_px)


def rounded(value: float | None) -> float | None:
    """Return `value` with the digits a 32-bit float carries: what a screen can show, and half the bytes."""
    return None if value is None else float(f"{value:.6g}")
