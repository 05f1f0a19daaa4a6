"""Service-level objectives: attainment, error budget and goodput, as intervals where buckets hide the line.

Thresholds are in the unit of the histogram (seconds for latencies), ratios are 0..1, windows are seconds. A
request that was refused or failed did not meet the objective: it counts against it. Prevents: a threshold
between two bucket edges read as if it were an edge, and a fleet that refuses half its traffic at 100 %.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from fleet.errors import InvalidInput, NotMeasured
from fleet.readings import Histogram

_EDGE_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Objective:
    """`target` of requests have `metric` at or under `threshold`. Default: p95 TTFT under 500 ms."""

    metric: str = "ttft_s"
    threshold: float = 0.5
    target: float = 0.95
    window_s: float = 30 * 86400.0

    def __post_init__(self) -> None:
        if not 0 < self.target < 1:
            raise InvalidInput(
                f"target is {self.target}: it must lie between 0 and 1, both excluded",
                field="target",
                hint="100 % leaves no error budget; 0.999 is three nines",
            )
        if self.threshold <= 0 or self.window_s <= 0:
            raise InvalidInput("threshold and window must be positive", field="threshold")


@dataclass(frozen=True, slots=True)
class Share:
    """A share of requests known only to lie in [low, high]; equal ends when an edge is at the threshold."""

    low: float
    high: float

    @property
    def is_exact(self) -> bool:
        """Return whether the threshold was a bucket edge."""
        return self.low == self.high


def counted_within(histogram: Histogram, threshold: float) -> tuple[int, int]:
    """Return (surely, at most) how many observations are <= `threshold`."""
    edges = histogram.edges
    below = bisect_right(edges, threshold * (1 + _EDGE_TOLERANCE))
    surely = sum(histogram.counts[:below])
    is_edge = below > 0 and abs(edges[below - 1] - threshold) <= _EDGE_TOLERANCE * threshold
    return surely, surely if is_edge else surely + histogram.counts[below]


@dataclass(frozen=True, slots=True)
class Attainment:
    """How an objective stands over some window of traffic."""

    objective: Objective
    offered: int  # served, refused and failed
    share: Share
    budget_left: Share  # 1: untouched, 0: spent, below 0: broken

    @property
    def is_met(self) -> bool | None:
        """Return whether the target holds; None when the buckets cannot say."""
        if self.share.low >= self.objective.target:
            return True
        return False if self.share.high < self.objective.target else None


def attainment(objective: Objective, served: Histogram, *, refused: int = 0, failed: int = 0) -> Attainment:
    """Return the share of offered requests within the objective, and the error budget left.

    `served` holds the objective's metric of the requests that were served. Budget left is
    1 - (1 - share) / (1 - target). Raises NotMeasured without requests.
    """
    if refused < 0 or failed < 0:
        raise InvalidInput(f"refused {refused} and failed {failed} are counts", field="refused")
    offered = served.count + refused + failed
    if offered == 0:
        raise NotMeasured("no requests in the window", hint="Widen the window")
    surely, at_most = counted_within(served, objective.threshold)
    share = Share(surely / offered, at_most / offered)
    allowed = 1 - objective.target
    return Attainment(
        objective,
        offered,
        share,
        Share(1 - (1 - share.low) / allowed, 1 - (1 - share.high) / allowed),
    )


def burn_rate(objective: Objective, share: Share) -> Share:
    """Return how many times faster than allowed the budget burns: (1 - share) / (1 - target).

    1 spends it exactly over the objective's window. The low end belongs to the high share.
    """
    allowed = 1 - objective.target
    return Share((1 - share.high) / allowed, (1 - share.low) / allowed)


def goodput(objective: Objective, served: Histogram, covered_s: float) -> Share:
    """Return requests/s served within the objective over `covered_s` > 0 seconds."""
    if covered_s <= 0:
        raise NotMeasured("no covered time", hint="Wait for two scrapes")
    surely, at_most = counted_within(served, objective.threshold)
    return Share(surely / covered_s, at_most / covered_s)
