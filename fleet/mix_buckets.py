"""Which windows share the traffic mix of now: capacity in requests/s holds for one mix alone.

Times are Unix seconds, sizes tokens a request. Ten minutes and 400 finished requests make a segment; those
whose prompt, output and KV per sequence lie within 20 % of the newest segment's are one bucket, however
far apart in time. Prevents: a fit over two mixes that is right for neither, and a mix that comes back each
night being learned from nothing each night.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from fleet.saturation import Mix, Point, mix_of

MIX_STEP = math.log(1.2)
SEGMENT_S = 600.0
SEGMENT_COMPLETIONS = 400  # below it sampling noise alone moves the mean output by 20 %


@dataclass(frozen=True, slots=True)
class Bucket:
    """Points of the present mix in time order, those of others, and since when the present one rules."""

    points: list[Point]
    others: list[Point]
    since_s: float


@dataclass(slots=True)
class Segment:
    """A run of points that grows until it is long enough, and finished enough requests, to have a mix."""

    points: list[Point] = field(default_factory=list[Point])
    completions: int = 0

    def add(self, point: Point) -> bool:
        """Take a point; return whether the segment is whole now."""
        self.points.append(point)
        self.completions += point.completed or 0
        lasted_s = point.ended_at_s - self.points[0].ended_at_s
        return lasted_s >= SEGMENT_S and self.completions >= SEGMENT_COMPLETIONS


def mix_moved(before: Mix, after: Mix) -> bool:
    """Return whether prompt, output or KV per sequence moved by over 20 %, both mixes being well known."""
    if min(before.completions, after.completions) < SEGMENT_COMPLETIONS:
        return False
    pairs = (
        (before.decode_events, after.decode_events),
        (before.prompt_tokens_computed, after.prompt_tokens_computed),
        (before.kv_ratio_per_sequence, after.kv_ratio_per_sequence),
    )
    return any(old and new and abs(math.log(new / old)) > MIX_STEP for old, new in pairs)


def present_bucket(points: Sequence[Point]) -> Bucket:
    """Return the points that share the mix of the newest whole segment, and the others.

    A mix has to last ten minutes to be one. Points after the newest whole segment belong to it.
    """
    segments = _segments(points)
    if len(segments) < 2:
        return Bucket(list(points), [], -math.inf)
    mixes = [mix_of(segment) for segment in segments]
    alike = [not mix_moved(mix, mixes[-1]) for mix in mixes]
    since = next((place for place in range(len(alike) - 1, -1, -1) if not alike[place]), None)
    return Bucket(
        [p for segment, is_alike in zip(segments, alike, strict=True) if is_alike for p in segment],
        [p for segment, is_alike in zip(segments, alike, strict=True) if not is_alike for p in segment],
        -math.inf if since is None else segments[since + 1][0].ended_at_s,
    )


def _segments(points: Sequence[Point]) -> list[list[Point]]:
    """Return runs of ten minutes and 400 finished requests or more; the rest joins the last one."""
    found: list[list[Point]] = []
    run = Segment()
    for point in points:
        if run.add(point):
            found.append(run.points)
            run = Segment()
    if run.points and found:
        found[-1].extend(run.points)
    elif run.points:
        found.append(run.points)
    return found
