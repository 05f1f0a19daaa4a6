"""How coarse a chart of the past is, in words. Pure.

Prevents: an hour's mean read as a moment, and a hole taken for a quiet night.
"""

from __future__ import annotations

from control.queries_history import History
from control.tables_rollup import Level
from dashboard import words

_READ = {
    Level.RAW: "single rounds",
    Level.MINUTE: "sums by the minute",
    Level.HOUR: "sums by the hour",
}
_UNITS = ((86_400.0, "day"), (3600.0, "hour"), (60.0, "minute"))


def resolution(history: History) -> str:
    """Return what one point stands for, how much of the range is a gap, and what is still to come."""
    empty = sum(point.service_rate is None and point.arrival_rate is None for point in history.points)
    lines = [f"One point is {_length(history.bucket.total_seconds())}, from {_READ[history.level]}."]
    if history.level is not Level.RAW or history.bucket.total_seconds() > 60:
        lines.append("rho and rates are means; waiting and KV use the highest.")
    if empty:
        lines.append(f"{words.percent(empty / len(history.points), 0)} of the range is a gap: no verdict.")
    if history.waiting:
        lines.append(
            f"{words.plural(history.waiting, 'minute')} of it wait to be added up and may be missing."
        )
    return " ".join(lines)


def _length(seconds: float) -> str:
    for size, unit in _UNITS:
        if seconds >= size and seconds % size == 0:
            return words.plural(round(seconds / size), unit)
    return f"{seconds:g} s"
