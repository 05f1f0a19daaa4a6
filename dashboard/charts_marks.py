"""Marks on a chart over time: what happened, as lines with a sign on top and words to read on hover. Pure.

A sign for each kind, so that colour is not needed. Prevents: a step in a line whose cause stands on
another page, and twenty labels over each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from control.queries_marks import Mark, MarkKind
from dashboard import theme
from dashboard.charts import Figure

#: Kind -> (colour, sign, what it is).
LOOKS: dict[MarkKind, tuple[str, str, str]] = {
    "alert": (theme.RED, "triangle-down", "alert opened"),
    "resolved": (theme.GREEN, "circle", "alert over"),
    "revision": (theme.PURPLE, "diamond", "policy"),
    "restart": (theme.ORANGE, "x", "restart"),
}
MAX_TEXT = 160
#: An axis of its own from bottom to top, so that signs stay on top whatever the lines do.
_AXIS, _LAYOUT_AXIS = "y9", "yaxis9"


def with_marks(figure: Figure, marks: Sequence[Mark], linked: int | None = None) -> Figure:
    """Return the figure with marks within its time; the alert `linked` stands out with its name."""
    if figure.time is None:
        return figure
    first, last, zone = figure.time
    shown = [mark for mark in marks if first <= mark.at <= last]
    if not shown:
        return figure
    spec = deepcopy(figure.spec)
    layout = spec["layout"]
    for mark in shown:
        is_linked = linked is not None and mark.alert == linked
        layout["shapes"].append(_line(mark, zone.axis(mark.at), is_linked=is_linked))
        if is_linked and mark.kind == "alert":
            layout["annotations"].append(_name(mark, zone.axis(mark.at)))
    layout[_LAYOUT_AXIS] = {
        "overlaying": "y",
        "range": [0, 1],
        "visible": False,
        "fixedrange": True,
        "side": "right",
    }
    spec["data"].append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": "events",
            "x": [zone.axis(mark.at) for mark in shown],
            "y": [0.97] * len(shown),
            "yaxis": _AXIS,
            "marker": {
                "size": 9,
                "color": [LOOKS[mark.kind][0] for mark in shown],
                "symbol": [LOOKS[mark.kind][1] for mark in shown],
            },
            "text": [words(mark) for mark in shown],
            "hovertemplate": "%{text}<extra></extra>",
            "showlegend": False,
        }
    )
    return replace(figure, spec=spec, summary=f"{figure.summary}; {len(shown)} events marked")


def words(mark: Mark) -> str:
    """Return a mark's hover text. Plotly reads a little markup: what others wrote must not be any."""
    said = f"{LOOKS[mark.kind][2]}: {mark.text}"
    short = said if len(said) <= MAX_TEXT else f"{said[: MAX_TEXT - 1]}…"
    return short.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _line(mark: Mark, at: str, *, is_linked: bool) -> dict[str, Any]:
    return {
        "type": "line",
        "yref": "paper",
        "x0": at,
        "x1": at,
        "y0": 0,
        "y1": 1,
        "line": {
            "color": LOOKS[mark.kind][0],
            "width": 3 if is_linked else 1,
            "dash": "solid" if is_linked else "dot",
        },
    }


def _name(mark: Mark, at: str) -> dict[str, Any]:
    return {
        "yref": "paper",
        "x": at,
        "y": 0.9,
        "text": mark.label.replace("<", "&lt;"),
        "showarrow": False,
        "xanchor": "left",
        "yanchor": "top",
        "font": {"color": LOOKS[mark.kind][0], "size": 11},
    }
