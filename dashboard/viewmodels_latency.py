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
            Line("p50", [_ms(point.view.p50) for point in points], theme.BLUE),
            Line("p95", [_ms(point.view.p95) for point in points], theme.ORANGE),
        ],
        zone,
        title="Time to first token at the engines",
        unit="ms",
        summary="median and 95th percentile of the time to first token over time",
    )


def _ms(found: Quantile | None) -> float | None:
    """Return a quantile that is known, in milliseconds; one beyond the last bucket is none."""
    if found is None or found.too_few or found.is_censored:
        return None
    return 1000 * found.estimate
