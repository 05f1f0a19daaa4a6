"""An objective over windows: good requests counted minute by minute, burn rates in two windows at once.

Requests; ratios. Counts add up over minutes, tiers and gateways, so any window is a sum. A pair of windows
burns at the lower of its two rates: the long one says that it matters, the short one that it still does.
Prevents: a page for a blip that is over, and a burn rate of eleven requests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fleet.readings import Histogram
from fleet.slo import Objective, Share, burn_rate, counted_within

#: Name -> long window, short window (seconds), burn rate. Source: The Site Reliability Workbook, ch. 5.
PAIRS: dict[str, tuple[float, float, float]] = {
    "fast": (3600.0, 300.0, 14.4),
    "slow": (21_600.0, 1800.0, 6.0),
}
MIN_REQUESTS = 100  # in the long window; fewer say nothing


@dataclass(frozen=True, slots=True)
class GoodCount:
    """Requests an objective was asked of; of how many it surely, and at most, held."""

    offered: int = 0
    good_low: int = 0
    good_high: int = 0

    def __add__(self, other: GoodCount) -> GoodCount:
        return GoodCount(
            self.offered + other.offered, self.good_low + other.good_low, self.good_high + other.good_high
        )

    @property
    def share(self) -> Share | None:
        """Return the share that was good; None without requests."""
        if not self.offered:
            return None
        return Share(self.good_low / self.offered, self.good_high / self.offered)


def good_count(objective: Objective, served: Histogram | None, *, lost: int) -> GoodCount:
    """Return the counts of a window: `served` measured, `lost` refused for lack of capacity or failed."""
    if served is None:
        return GoodCount(lost, 0, 0)
    surely, at_most = counted_within(served, objective.threshold)
    return GoodCount(served.count + lost, surely, at_most)


def total(counts: Iterable[GoodCount]) -> GoodCount:
    """Return the sum."""
    return sum(counts, GoodCount())


@dataclass(frozen=True, slots=True)
class Burn:
    """How fast the budget burns in a pair of windows. None: too few requests to say."""

    long: Share | None
    short: Share | None

    @property
    def sure(self) -> float | None:
        """Return the lower of both windows' rates, at the low end of each: what surely burns."""
        if self.long is None or self.short is None:
            return None
        return min(self.long.low, self.short.low)


def burn(objective: Objective, long: GoodCount, short: GoodCount) -> Burn:
    """Return the burn of a pair of windows: 1 spends the budget exactly over the objective's window."""
    if long.offered < MIN_REQUESTS:
        return Burn(None, None)
    shares = long.share, short.share
    rates = [None if share is None else burn_rate(objective, share) for share in shares]
    return Burn(rates[0], rates[1])
