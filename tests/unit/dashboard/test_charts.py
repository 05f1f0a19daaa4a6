"""Figures by value: gaps, limits, markers, the clock of the axis, and that Plotly accepts them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import plotly.graph_objects as go

from dashboard.charts import Line, Marker, capacity_scatter, rounded, timeline
from dashboard.times import UTC_ZONE, zone_of

START = datetime(2026, 11, 29, 15, 0, tzinfo=UTC)
STARTS = [START + timedelta(seconds=10 * i) for i in range(4)]


def figure(**extra: object):
    return timeline(
        STARTS,
        [Line("rho", [0.5, None, 0.9, 0.95])],
        extra.pop("zone", UTC_ZONE),  # type: ignore[arg-type]
        title="Fleet rho",
        unit="ratio",
        summary="rho over time",
        **extra,  # type: ignore[arg-type]
    )


def test_a_hole_in_the_data_is_a_gap() -> None:
    line = figure().spec["data"][0]
    assert line["y"] == [0.5, None, 0.9, 0.95]
    assert line["connectgaps"] is False


def test_x_is_one_start_and_one_step() -> None:
    line = figure().spec["data"][0]
    assert (line["x0"], line["dx"]) == ("2026-11-29 15:00:00", 10_000)
    assert "x" not in line


def test_axis_reads_the_chosen_zone_and_says_so() -> None:
    drawn = figure(zone=zone_of("local", "America/New_York"))
    assert drawn.spec["data"][0]["x0"] == "2026-11-29 10:00:00"
    assert "America/New_York" in drawn.spec["layout"]["title"]["text"]


def test_limit_and_changes_are_drawn_and_labelled() -> None:
    layout = figure(limit=(0.85, "0.85"), markers=[Marker(STARTS[2], "r7")]).spec["layout"]
    assert [(s.get("y0"), s["line"]["dash"]) for s in layout["shapes"]] == [(0.85, "dash"), (0, "dot")]
    assert layout["shapes"][1]["x0"] == "2026-11-29 15:00:20"
    assert [a["text"] for a in layout["annotations"]] == ["0.85", "r7"]


def test_the_band_lies_between_lowest_and_highest_and_never_crosses_a_gap() -> None:
    data = figure(band=([0.4, None, 0.8, 0.9], [0.6, None, 1.0, 1.1])).spec["data"]
    band = [d for d in data if d["name"] in ("lowest", "interval")]
    assert [d["y"] for d in band] == [[0.4], [0.6], [0.8, 0.9], [1.0, 1.1]]
    assert [d["x0"] for d in band] == ["2026-11-29 15:00:00"] * 2 + ["2026-11-29 15:00:20"] * 2
    assert [d.get("fill") for d in band] == [None, "tonexty", None, "tonexty"]
    assert [d["showlegend"] for d in band] == [False, True, False, False]


def test_the_view_survives_an_update() -> None:
    assert figure().spec["layout"]["uirevision"]


def test_inter_token_latency_is_drawn_in_milliseconds_with_the_fit() -> None:
    data = capacity_scatter([4.0, 8.0], [0.02, 0.03], ([0.0, 8.0], [0.01, 0.03]), summary="s").spec["data"]
    assert data[0]["y"] == [20.0, 30.0]
    assert data[1]["y"] == [10.0, 30.0]
    assert len(capacity_scatter([], [], None, summary="s").spec["data"]) == 1


def test_plotly_accepts_every_figure() -> None:
    drawn = figure(limit=(0.85, "x"), markers=[Marker(START, "r1")], band=([0.1] * 4, [0.9] * 4))
    scatter = capacity_scatter([1.0], [0.02], ([0.0], [0.01]), summary="s")
    for spec in (
        drawn.spec,
        scatter.spec,
        timeline([], [], UTC_ZONE, title="t", unit="u", summary="s").spec,
    ):
        go.Figure(spec)  # raises on anything unknown


def test_numbers_keep_six_digits() -> None:
    assert rounded(0.123456789) == 0.123457
    assert rounded(None) is None
