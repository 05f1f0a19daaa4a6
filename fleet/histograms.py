"""Quantiles that say what they do not know, and merging of histograms.

Bounds and estimates are in the unit of the metric, ranks and counts are observations. A quantile comes
with the bucket it lies in, (lo, hi], with the interval that sampling alone leaves open, and with
`is_censored` where it lies above the last bound. Prevents: showing 60 s for "above 60 s", 0.297 s for
"somewhere below 0.3 s", a p99 of thirty observations, and means of quantiles.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, exp, inf, isfinite, log
from operator import sub

from fleet.errors import InvalidInput
from fleet.readings import Histogram

#: Observations wanted beyond a quantile before it means anything: n (1 - q).
TAIL_MIN = 10.0
_EPSILON = 1e-9
_COUNTS_END = 2**63


@dataclass(frozen=True, slots=True)
class Quantile:
    """One quantile of a histogram, with what is known of it.

    The value lies in (`lo`, `hi`]. `estimate` is linear inside the bucket; where `is_censored` it is the
    last bound, a lower limit, and `hi` is infinite. [`ci_lo`, `ci_hi`] are the buckets that a 95 %
    sampling interval of the rank reaches.
    """

    q: float
    estimate: float
    lo: float
    hi: float
    is_censored: bool
    count: int
    rank_lo: int
    rank_hi: int
    ci_lo: float
    ci_hi: float

    @property
    def too_few(self) -> bool:
        """True when fewer than ten observations lie beyond the quantile: n (1 - q) < 10."""
        return self.count * (1.0 - self.q) < TAIL_MIN - _EPSILON

    @property
    def is_below_first_edge(self) -> bool:
        """True when all that is known is "at most the first bound"; the estimate is then arbitrary."""
        return self.lo == 0.0 and not self.is_censored


def describe(quantile: Quantile | None, unit: str = "s") -> str:
    """Return the words to show: "1.2 s (1-2.5)", "<= 0.3 s", "> 60 s", "n/a", with "few" when too few."""
    if quantile is None:
        return "n/a"
    if quantile.is_censored:
        words = f"> {quantile.lo:g} {unit}"
    elif quantile.is_below_first_edge:
        words = f"<= {quantile.hi:g} {unit}"
    else:
        words = f"{quantile.estimate:.3g} {unit} ({quantile.lo:g}-{quantile.hi:g})"
    words = words.replace("  ", " ").rstrip()  # counts have no unit
    return f"{words}, few" if quantile.too_few else words


def from_cumulative(
    bounds: Sequence[float], cumulative: Sequence[float], total: float | None = None
) -> Histogram | None:
    """Return the histogram of cumulative counts at ascending `bounds`, the last of them +Inf.

    None when there is no +Inf bucket. Counts that fall are lifted to the largest before them.
    Raises InvalidInput when the lengths differ. Source: Prometheus, histogram_quantile.
    """
    if len(bounds) != len(cumulative):
        raise InvalidInput(f"{len(bounds)} bounds and {len(cumulative)} counts", field="cumulative")
    if not bounds or bounds[-1] != inf:
        return None
    lifted = list(accumulate(cumulative, max))
    whole = list(map(round, lifted))
    counts = [whole[0], *map(sub, whole[1:], whole)]
    return Histogram(tuple(bounds[:-1]), tuple(counts), total, is_repaired=lifted != list(cumulative))


def from_rising(edges: tuple[float, ...], cumulative: list[float], total: float) -> Histogram | None:
    """Return what `from_cumulative` returns for whole counts that rise; None for others.

    `edges` without the +Inf that the last of `cumulative` is counted at. Counts are below 2^63.
    """
    whole = list(map(int, cumulative))
    if whole != cumulative or whole[0] < 0 or whole[-1] >= _COUNTS_END:
        return None
    counts = (whole[0], *map(sub, whole[1:], whole))
    return None if min(counts) < 0 else Histogram(edges, counts, total)


def quantile(histogram: Histogram, q: float) -> Quantile | None:
    """Return the `q` quantile (0..1), None for an empty histogram.

    Raises InvalidInput when q is outside 0..1. Source: Prometheus histogram_quantile for the estimate;
    order statistics, the binomial interval of a rank, for the confidence interval.
    """
    found = _located(histogram, q)
    if found is None:
        return None
    running, estimate, lo, hi = found
    count, is_censored = running[-1], hi == inf
    rank_lo, rank_hi = rank_interval(count, q)
    ci_lo = _bounds(histogram, _bucket_of(running, max(1, rank_lo)))[0]
    ci_hi = _bounds(histogram, _bucket_of(running, rank_hi))[1]  # a rank past the last: unbounded
    return Quantile(q, estimate, lo, hi, is_censored, count, rank_lo, rank_hi, ci_lo, ci_hi)


def quantile_estimate(histogram: Histogram, q: float) -> float | None:
    """Return the estimate of `quantile` alone, for series of thousands of windows; None when empty."""
    found = _located(histogram, q)
    return None if found is None else found[1]


def _located(histogram: Histogram, q: float) -> tuple[list[int], float, float, float] | None:
    """Return (running counts, estimate, lo, hi) of the `q` quantile; None for an empty histogram."""
    if not 0.0 <= q <= 1.0:
        raise InvalidInput(f"a quantile is between 0 and 1, not {q:g}", field="q")
    running = list(accumulate(histogram.counts))
    if not running or running[-1] <= 0 or not histogram.edges:
        return None
    count = running[-1]
    index = _bucket_of(running, q * count)
    lo, hi = _bounds(histogram, index)
    below = running[index] - histogram.counts[index]
    share = (q * count - below) / histogram.counts[index]
    estimate = lo if hi == inf else hi if lo == -inf else lo + (hi - lo) * min(1.0, max(0.0, share))
    return running, estimate, lo, hi


def _bucket_of(running: list[int], rank: float) -> int:
    """The first bucket that is not empty and reaches `rank`."""
    return bisect_left(running, max(rank, _EPSILON))


def _bounds(histogram: Histogram, index: int) -> tuple[float, float]:
    edges = histogram.edges
    if index >= len(edges):
        return edges[-1], inf
    if index == 0:
        return (0.0 if edges[0] > 0 else -inf), edges[0]
    return edges[index - 1], edges[index]


def rank_interval(count: int, q: float, confidence: float = 0.95) -> tuple[int, int]:
    """Return ranks (lo, hi) between which the true `q` quantile lies with at least `confidence`.

    Free of any distribution. lo 0 and hi `count` + 1 mean "unbounded". Source: David and Nagaraja, Order
    Statistics (2003), 7.1: binomial quantiles of (count, q).
    """
    tail = (1.0 - confidence) / 2.0
    return _binomial_quantile(tail, count, q), _binomial_quantile(1.0 - tail, count, q) + 1


def _binomial_quantile(p: float, n: int, q: float) -> int:
    """The smallest k with P(Binomial(n, q) <= k) >= p."""
    from scipy.special import bdtr, bdtrik  # 0.4 s: only for who asks for quantiles, not for a gateway

    if q <= 0.0 or q >= 1.0:
        return 0 if q <= 0.0 else n
    k = ceil(float(bdtrik(p, n, q)))
    lower = max(k - 1, 0)
    return lower if float(bdtr(lower, n, q)) >= p else k


def merge(histograms: Iterable[Histogram]) -> Histogram | None:
    """Add histograms of the same quantity; None for none, or when they share no bound.

    Where bounds differ only the common ones stay, and resolution is lost; nothing is interpolated.
    A sum is kept when every part has one.
    """
    parts = list(histograms)
    if not parts:
        return None
    edges = parts[0].edges
    if edges and all(part.edges == edges for part in parts):  # one engine's, one gateway's: nearly always
        counts = [sum(each) for each in zip(*(part.counts for part in parts), strict=True)]
    else:
        shared = set(edges).intersection(*(part.edges for part in parts))
        if not shared:
            return None
        edges = tuple(sorted(shared))
        counts = [0] * (len(edges) + 1)
        for part in parts:
            for edge, n in zip((*part.edges, inf), part.counts, strict=True):
                counts[bisect_left(edges, edge)] += n
    sums = [part.sum for part in parts]
    total = None if any(s is None for s in sums) else sum(s for s in sums if s is not None)
    return Histogram(edges=edges, counts=tuple(counts), sum=total)


def mean(histogram: Histogram) -> float | None:
    """Return sum / count in the unit of the edges, None when empty or when the sum is not given."""
    if histogram.sum is None or histogram.count <= 0:
        return None
    return histogram.sum / histogram.count


def exponential_base(schema: int) -> float:
    """Return the growth of exponential buckets, 2 ** 2 ** -schema; schema -4..8 (Prometheus native)."""
    if not -4 <= schema <= 8:
        raise InvalidInput(f"schema is -4 to 8, not {schema}", field="schema")
    return 2.0 ** (2.0**-schema)


def exponential_errors(schema: int) -> tuple[float, float]:
    """Return the largest relative error of a bucket's far end, and of its middle (g - 1) / (g + 1)."""
    base = exponential_base(schema)
    return base - 1.0, (base - 1.0) / (base + 1.0)


def exponential_index(value: float, schema: int) -> int:
    """Return i with base ** (i - 1) < value <= base ** i. Raises InvalidInput unless value is positive."""
    if not (value > 0 and isfinite(value)):
        raise InvalidInput(f"exponential buckets hold positive numbers, not {value:g}", field="value")
    return ceil(log(value) / log(exponential_base(schema)) - 1e-12)


def exponential_quantile(counts: dict[int, int], q: float, schema: int) -> float | None:
    """Return the `q` quantile of exponential buckets {index: count}, log-interpolated; None when empty.

    Source: Prometheus native histograms, exponential interpolation.
    """
    if not 0.0 <= q <= 1.0:
        raise InvalidInput(f"a quantile is between 0 and 1, not {q:g}", field="q")
    total = sum(counts.values())
    if total <= 0:
        return None
    indexes = sorted(i for i, n in counts.items() if n > 0)
    running = list(accumulate(counts[i] for i in indexes))
    at = _bucket_of(running, q * total)
    index, n = indexes[at], counts[indexes[at]]
    share = (q * total - (running[at] - n)) / n
    return exp((index - 1 + min(1.0, max(0.0, share))) * log(exponential_base(schema)))
