"""The part of a day that is left, on days of 23, 24 and 25 hours."""

from __future__ import annotations

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pytest

from control.budgets import part_left

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("now", "part"),
    [
        (datetime(2026, 3, 28, 23, tzinfo=UTC), 1.0),  # midnight of the day summer time begins
        (datetime(2026, 3, 29, 10, 30, tzinfo=UTC), 0.5),  # 11.5 of its 23 hours
        (datetime(2026, 10, 24, 22, tzinfo=UTC), 1.0),  # midnight of the day it ends
        (datetime(2026, 10, 25, 10, 30, tzinfo=UTC), 0.5),  # 12.5 of its 25 hours
        (datetime(2026, 11, 3, 5, tzinfo=UTC), 0.75),
    ],
)
def test_the_part_of_a_day_that_is_left_is_of_the_hours_it_has(now: datetime, part: float) -> None:
    day: date = now.astimezone(BERLIN).date()
    assert part_left(day, BERLIN, now) == pytest.approx(part)
