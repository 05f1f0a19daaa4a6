"""Dates a person types are read into UTC or refused; none of them overflows."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import InvalidInput
from fleet.instants import FIRST_YEAR, LAST_YEAR, day_of, instant_of, require_day, require_instant
from fleet.months import month_of

OFFSETS = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))


def test_an_instant_is_utc_whatever_offset_it_was_written_with():
    assert instant_of("2026-12-01T05:30+05:30", "--from") == datetime(2026, 12, 1, tzinfo=UTC)
    assert instant_of(" 2026-12-01 ", "--from") == datetime(2026, 12, 1, tzinfo=UTC)
    assert instant_of("2026-12-01T00:00Z", "--from").tzinfo is UTC


@pytest.mark.parametrize(
    "text",
    [
        "0001-01-01T00:00+14:00",  # in UTC it is before the first year there is
        "9999-12-31T23:59-12:00",  # and this one after the last
        "0001-01-01",
        "9999-12-31T00:00Z",
        "1999-12-31T23:59:59Z",
        "2000-01-01T00:00+14:00",  # 31 December 1999 in UTC
        "2199-12-31T23:00-02:00",  # 1 January 2200 in UTC
        "2200-01-01",
    ],
)
def test_an_instant_outside_the_range_is_refused_with_the_range(text: str):
    with pytest.raises(InvalidInput, match="out of range") as refused:
        instant_of(text, "--from")
    assert (refused.value.field, refused.value.hint) == ("--from", "Give a year from 2000 to 2199")


@pytest.mark.parametrize("text", ["", "tomorrow", "2026-13-01", "2026-11-31", "١٢", "2026-12-01T25:00Z"])
def test_what_is_no_time_is_refused(text: str):
    for read in (instant_of, day_of):
        with pytest.raises(InvalidInput, match="is not a"):
            read(text, "from")


@given(st.datetimes(timezones=st.one_of(st.none(), OFFSETS)))
def test_every_instant_there_is_is_taken_into_the_range_or_refused(at: datetime):
    try:
        found = require_instant(at, "from")
    except InvalidInput:
        assert not FIRST_YEAR < at.year < LAST_YEAR
    else:
        assert FIRST_YEAR <= found.year <= LAST_YEAR
        assert found == (at if at.tzinfo else at.replace(tzinfo=UTC))
        for zone in ("Pacific/Kiritimati", "Etc/GMT+12"):  # every zone can show it
            found.astimezone(ZoneInfo(zone))


@given(st.dates())
def test_every_day_there_is_is_taken_or_refused(day: date):
    if FIRST_YEAR <= day.year <= LAST_YEAR:
        assert day_of(day.isoformat(), "from") == require_day(day, "from") == day
    else:
        with pytest.raises(InvalidInput, match="out of range"):
            day_of(day.isoformat(), "from")


@pytest.mark.parametrize("name", ["2200-01", "9998-12", "9999-12", "0001-01", "1969-12"])
def test_months_end_where_days_do(name: str):
    with pytest.raises(InvalidInput, match="is not a month"):
        month_of(name, ZoneInfo("Pacific/Kiritimati"))


def test_the_last_month_has_an_end_that_every_zone_can_show():
    end = month_of("2199-12", ZoneInfo("Etc/GMT+12")).end
    assert end == datetime(2200, 1, 1, 12, tzinfo=UTC)
