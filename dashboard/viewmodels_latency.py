"""Latency over time as a figure: percentiles of each bucket, milliseconds. Pure.

Prevents: a percentile of four requests drawn like one of four thousand, and "60 s" for "above the last
bucket".
"""

from __future__ import annotations

from collections.abc import Sequence

from control.queries_history import LatencyPoint
from dashboard import charts, theme
from dashboard.charts import Figure, Line
from dashboard.times import Zone
from fleet.histograms import Quantile


def first_token_figure(points: Sequence[LatencyPoint], zone: Zone) -> Figure:
    """Return p50 and p95 of the time to first token; a gap where too few were measured to say."""
    return charts.timeline(
        [point.at for point in points],
        [
            _line("p50", [point.view.p50 for point in points], theme.BLUE),
            _line("p95", [point.view.p95 for point in points], theme.ORANGE),
        ],
        zone,
        title="Time to first token at the engines",
        unit="ms",
        summary="median and 95th percentile of the time to first token over time",
    )


def _line(name: str, found: Sequence[Quantile | None], colour: str) -> Line:
    """Return one percentile over time; one that no point can show says why where its name stands."""
    values = [_ms(one) for one in found]
    is_thin = not any(value is not None for value in values) and any(one and one.too_few for one in found)
    return Line(f"{name}: too few requests a point" if is_thin else name, values, colour)


def _ms(found: Quantile | None) -> float | None:
    """Return a quantile that is known, in milliseconds; one beyond the last bucket is none."""
    if found is None or found.too_few or found.is_censored:
        return None
    return 1000 * found.estimate
