"""Numbers, times and names as pages show them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard import words
from dashboard.times import UTC_ZONE, age, zone_of
from fleet.histograms import quantile
from fleet.readings import Histogram

AT = datetime(2026, 11, 29, 3, 0, 0, tzinfo=UTC)


def test_unknown_is_a_dash_and_zero_is_zero() -> None:
    shown = [
        f(None) for f in (words.number, words.count, words.ratio, words.percent, words.rate, words.seconds)
    ]
    assert shown == ["\u2014"] * 6
    assert [words.number(0.0), words.count(0), words.percent(0.0), words.ratio(0.0)] == [
        "0",
        "0",
        "0.0 %",
        "0.00",
    ]


def test_ratios_become_percent_once() -> None:
    assert words.percent(0.05) == "5.0 %"
    assert words.ratio(1.07) == "1.07"


def test_latencies_change_unit_at_a_second() -> None:
    assert [words.seconds(0.42), words.seconds(1.25), words.seconds(0.0004)] == [
        "420 ms",
        "1.25 s",
        "0.4 ms",
    ]


def test_quantiles_admit_what_a_histogram_cannot_say() -> None:
    above = quantile(Histogram((1.0, 60.0), (0, 0, 10_000), None), 0.5)
    below = quantile(Histogram((0.3, 1.0), (10_000, 0, 0), None), 0.5)
    few = quantile(Histogram((0.1, 0.5), (0, 20, 0), None), 0.99)  # 0.2 observations beyond it
    assert words.quantile(above) == "> 60 s"
    assert words.quantile(below) == "\u2264 300 ms"
    assert words.quantile(few).endswith("(few)")
    assert words.quantile(None) == "\u2014"


def test_money_is_shown_to_the_dollar_or_cent() -> None:
    assert words.dollars(Decimal("105800")) == "$105,800"
    assert words.dollars(Decimal("-105800")) == "-$105,800"
    assert words.cents(Decimal("1234.5")) == "$1,234.50"


@given(st.text(max_size=60))
def test_names_of_others_never_become_markup(name: str) -> None:
    shown = words.plain(name)
    for mark in "*_`[]<$:#":
        assert shown.count(mark) == shown.count(f"\\{mark}")
    assert "\n" not in shown


@pytest.mark.parametrize("text", ["`a\n\n[x](http://evil)`", "`a\r\r# head`", "`a\u2028\u2028b`"])
def test_code_never_spans_an_empty_line(text: str) -> None:
    assert len(words.with_code(text).splitlines()) == 1


def test_hints_keep_their_code() -> None:
    assert words.with_code("Run `rhodeck db up` (now)") == "Run `rhodeck db up` \\(now\\)"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (43, "43 s"), (180, "3 min"), (9_000, "2.5 h"), (4 * 86_400, "4 d"), (None, "\u2014")],
)
def test_ages_use_the_largest_unit_that_fits(seconds: float | None, said: str) -> None:
    assert age(seconds) == said


def test_one_instant_reads_the_same_on_axis_and_in_tables() -> None:
    # 03:00 UTC in November is 22:00 of the day before in New York (UTC-5)
    york = zone_of("local", "America/New_York")
    assert york.axis(AT) == "2026-11-28 22:00:00"
    assert york.stamp(AT) == "2026-11-28 22:00:00 America/New_York"
    assert UTC_ZONE.axis(AT) == "2026-11-29 03:00:00"
    assert UTC_ZONE.clock(AT) == "03:00:00 UTC"
    assert UTC_ZONE.since(AT, AT + timedelta(minutes=3)) == "3 min ago, 03:00:00 UTC"


@pytest.mark.parametrize("named", [None, "", "Not/AZone", "../../etc/passwd"])
def test_unknown_browser_zones_fall_back_to_utc(named: str | None) -> None:
    assert zone_of("local", named) == UTC_ZONE
