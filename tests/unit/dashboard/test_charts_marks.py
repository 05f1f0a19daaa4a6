"""Marks on charts by value: where they stand, what they say, and that Plotly takes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import plotly.graph_objects as go

from control.queries_marks import Mark
from dashboard.charts import Figure, Line, timeline
from dashboard.charts_marks import LOOKS, with_marks
from dashboard.times import UTC_ZONE, Zone

START = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
STARTS = [START + timedelta(seconds=10 * i) for i in range(6)]


def figure(zone: Zone = UTC_ZONE) -> Figure:
    return timeline(
        STARTS, [Line("rho", [0.1] * 6)], zone, title="t", unit="ratio", summary="rho over time"
    )


def mark(seconds: float, kind: str = "alert", text: str = "n1 is silent", alert: int | None = 7) -> Mark:
    return Mark(START + timedelta(seconds=seconds), kind, "node_silent n1", text, alert)  # type: ignore[arg-type]


def test_marks_stand_at_their_instant_on_the_clock_of_the_axis() -> None:
    berlin = Zone("Europe/Berlin", ZoneInfo("Europe/Berlin"))
    drawn = with_marks(figure(berlin), [mark(20)]).spec
    assert drawn["data"][-1]["x"] == ["2026-03-02 13:00:20"]
    assert drawn["layout"]["shapes"][-1]["x0"] == "2026-03-02 13:00:20"


def test_what_lies_outside_the_chart_is_left_out_and_a_chart_without_time_untouched() -> None:
    # six buckets of 10 s: the chart ends at 60 s
    plain = figure()
    assert with_marks(plain, [mark(-1), mark(61)]) is plain
    assert len(with_marks(plain, [mark(0), mark(60)]).spec["data"][-1]["x"]) == 2
    timeless = Figure(plain.spec, "x")
    assert with_marks(timeless, [mark(20)]) is timeless


def test_the_figure_marked_before_is_not_changed() -> None:
    plain = figure()
    with_marks(plain, [mark(20)])
    assert plain.spec["layout"]["shapes"] == []
    assert len(plain.spec["data"]) == 1


def test_kinds_differ_by_sign_and_not_by_colour_alone() -> None:
    signs = [sign for _, sign, _ in LOOKS.values()]
    assert len(set(signs)) == len(LOOKS)
    kinds = list(LOOKS)
    drawn = with_marks(figure(), [mark(10 * i, kind) for i, kind in enumerate(kinds)])
    assert drawn.spec["data"][-1]["marker"]["symbol"] == signs
    assert drawn.summary == "rho over time; 4 events marked"


def test_only_the_alert_of_the_link_shows_its_name() -> None:
    drawn = with_marks(figure(), [mark(10), mark(20, alert=8), mark(30, "resolved", alert=8)], linked=8)
    assert [a["text"] for a in drawn.spec["layout"]["annotations"]] == ["node_silent n1"]
    assert [s["line"]["width"] for s in drawn.spec["layout"]["shapes"]] == [1, 3, 3]


def test_what_others_wrote_is_no_markup() -> None:
    hostile = mark(10, text="<a href='javascript:x'>click</a> & " + "x" * 500)
    (said,) = with_marks(figure(), [hostile]).spec["data"][-1]["text"]
    assert "<" not in said
    assert said.startswith("alert opened: &lt;a href=")
    assert len(said) < 300


def test_plotly_takes_a_marked_chart() -> None:
    drawn = with_marks(figure(), [mark(10), mark(20, "revision"), mark(30, "restart")], linked=7)
    made = go.Figure(drawn.spec).to_plotly_json()  # checks names and values of every property
    assert list(made["layout"]["yaxis9"]["range"]) == [0, 1]
