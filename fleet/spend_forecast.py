"""What will be spent by the month's end, with an interval, from complete days and their weekdays.

USD as float: a forecast has no cents. Each day is a level times the shape of its weekday times noise: the
level is a mean that halves its weight every 14 days, with a trend; trend and shape are drawn towards none
the less the days tell of them. The interval holds the noise of the days to come, the doubt about level,
trend and shape, and that days resemble the day before. Fewer than seven complete days are too early to say.
Prevents: a straight line through three days that is shown to the cent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from fleet.errors import NotMeasured

MIN_DAYS = 7
WINDOW_DAYS = 56
COVERAGE = 0.8  # of the interval: two ends in ten lie outside
HALF_LIFE_DAYS = 14.0
_PULL = 1.0  # days of a weekday that count as much as the belief that it is like the others
_MOST_CORRELATION = 0.8
_USUAL_SLOPE = 0.004  # of the level, a day: an eighth a month, up or down

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ForecastDay:
    """What will have been spent in the month by the end of `day`."""

    day: date
    usd: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """The month's end and the way there, from today on."""

    days: tuple[ForecastDay, ...]
    days_used: int
    shape: tuple[float, ...]  # by weekday, Monday first; 1: like the mean day

    @property
    def end(self) -> ForecastDay:
        """Return the month's last day."""
        return self.days[-1]


@dataclass(frozen=True, slots=True)
class _Model:
    level: float  # USD of a mean day at the weighted middle of the days used
    middle: float  # days from the weighted middle to the last complete day
    slope: float  # USD a day, drawn towards 0 the less the days tell
    slope_doubt: float  # its variance, USD^2
    shape: tuple[float, ...]
    shape_doubt: tuple[float, ...]  # variance of each weekday's shape, in units of noise variance / level^2
    noise: float  # standard deviation of a mean day, USD
    level_doubt: float  # variance of the level, in units of noise variance
    freedom: float
    correlation: float  # of days that follow each other, 0..1


@dataclass(slots=True)
class _Coming:
    """Days to come, added up."""

    by_weekday: list[float]  # days
    mass: float = 0.0  # sum of shapes
    reach: float = 0.0  # sum of shapes times days from the weighted middle
    count: int = 0

    def add(self, model: _Model, weekday: int, part: float) -> None:
        """Add a part (0..1) of one more day."""
        self.count += 1
        self.by_weekday[weekday] += part
        self.mass += part * model.shape[weekday]
        self.reach += part * model.shape[weekday] * (model.middle + self.count)


def forecast(
    history: Sequence[float], last: date, *, spent: float, today: date, today_left: float, month_end: date
) -> Forecast:
    """Return the forecast of the month that `today` is in.

    `history` is complete days up to `last`, oldest first; `spent` USD this month until now; `today_left`
    the part of today still to come (0..1); `month_end` the month's last day. Raises NotMeasured for fewer
    than `MIN_DAYS`. Source: seasonal means with shrinkage and Student's t prediction intervals; variance of
    sums of an AR(1) process (Box, Jenkins, Reinsel: Time Series Analysis, 2.1).
    """
    used = [max(0.0, usd) for usd in history[-WINDOW_DAYS:]]
    if len(used) < MIN_DAYS:
        days = f"{len(used)} complete day{'' if len(used) == 1 else 's'}"
        raise NotMeasured(
            f"too early to say: {days} with use, {MIN_DAYS} are needed", hint="Wait for a week of use"
        )
    model = _fitted(used, last)
    quantile = float(stdtrit(model.freedom, 0.5 + COVERAGE / 2))
    coming = [(today, today_left)]
    coming += [(today + timedelta(days=n), 1.0) for n in range(1, (month_end - today).days + 1)]
    found: list[ForecastDay] = []
    ahead = _Coming([0.0] * 7)
    for day, part in coming:
        ahead.add(model, day.weekday(), part)
        mean = max(0.0, model.level * ahead.mass + model.slope * ahead.reach)
        reach = quantile * _deviation(model, ahead)
        found.append(ForecastDay(day, spent + mean, spent + max(0.0, mean - reach), spent + mean + reach))
    return Forecast(tuple(found), len(used), model.shape)


def _fitted(used: Sequence[float], last: date) -> _Model:
    count = len(used)
    weekdays = [(last - timedelta(days=count - 1 - i)).weekday() for i in range(count)]
    seen = [weekdays.count(day) for day in range(7)]
    mean = sum(used) / count
    if mean <= 0:
        return _Model(0.0, 0.0, 0.0, 0.0, (1.0,) * 7, (0.0,) * 7, 0.0, 0.0, 1.0, 0.0)
    shape = _shape(used, weekdays, seen, mean)
    expected = np.array([shape[weekday] for weekday in weekdays])
    usd, place = np.array(used), np.arange(count, dtype=float)
    decay = 0.5 ** ((count - 1 - place) / HALF_LIFE_DAYS)
    # A ratio of sums, not a mean of ratios: a weekday without use must not divide by almost nothing.
    level = float(decay @ usd / (decay @ expected))
    centre = float(decay @ place / decay.sum())
    lean = expected * (place - centre)
    rest = usd - level * expected
    slope = float((decay * lean) @ rest / ((decay * lean) @ lean))
    fitted = 1 + sum(n / (n + _PULL) for n in seen) * 6 / 7  # parameters the days had to pay for
    freedom = max(1.0, count - fitted)
    variance, correlation = _noise(rest - slope * lean, freedom)
    doubt = variance * float(((decay * lean) ** 2).sum() / ((decay * lean) @ lean) ** 2)
    doubt *= (1 + correlation) / (1 - correlation)
    # Slopes are believed to be about _USUAL_SLOPE; the days say more the longer they are (normal prior).
    proven = (_USUAL_SLOPE * level) ** 2 / ((_USUAL_SLOPE * level) ** 2 + doubt)
    variance, correlation = _noise(rest - proven * slope * lean, freedom)
    return _Model(
        level,
        count - 1 - centre,
        proven * slope,
        proven * doubt,
        shape,
        tuple(n / (n + _PULL) ** 2 for n in seen),
        math.sqrt(variance),
        float((decay**2).sum() / decay.sum() ** 2),
        freedom,
        correlation,
    )


def _shape(
    used: Sequence[float], weekdays: Sequence[int], seen: Sequence[int], mean: float
) -> tuple[float, ...]:
    sums = [0.0] * 7
    for weekday, usd in zip(weekdays, used, strict=True):
        sums[weekday] += usd / mean
    raw = [(sums[day] + _PULL) / (seen[day] + _PULL) for day in range(7)]
    return tuple(value * 7 / sum(raw) for value in raw)


def _noise(rest: Floats, freedom: float) -> tuple[float, float]:
    """Return variance and the correlation of neighbours of what the model leaves."""
    power = float(rest @ rest)
    lag = float(rest[1:] @ rest[:-1]) / power if power else 0.0
    return power / freedom, min(_MOST_CORRELATION, max(0.0, lag))


def _deviation(model: _Model, ahead: _Coming) -> float:
    """Return the standard deviation of what the days to come sum to."""
    r, n = model.correlation, ahead.count
    # Variance of a sum of n values whose neighbours correlate, over that of n independent ones.
    together = 1 + 2 * r / (1 - r) * (1 - (1 - r**n) / (n * (1 - r)))
    noise = sum(ahead.by_weekday) * together
    level = model.level_doubt * (1 + r) / (1 - r) * ahead.mass**2
    shape = sum(w * w * d for w, d in zip(ahead.by_weekday, model.shape_doubt, strict=True))
    return math.sqrt(model.noise**2 * (noise + level + shape) + model.slope_doubt * ahead.reach**2)
