"""The robust step-time curve of one engine: inter-token latency against decode concurrency.

Pure numpy; b in sequences, tau in seconds, randomness by an rng argument. tau(b) = a + m b below the knee
and rises with a steeper slope above it. Prevents: a straight line through a curve with a knee (13 to 38 %
optimistic on a real engine), one night of idling outvoting an hour at load, and a bootstrap interval sold
as honest although nothing was ever seen beyond the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

HUBER_K = 1.345  # 95 % efficiency on Gaussian noise
MAD_TO_SIGMA = 1.4826
KNOT_COUNT = 15
KNOT_RANGE = (0.15, 0.85)
MIN_SIDE = 10  # windows on each side of a knee
BLOCK = 12  # windows a bootstrap block: neighbours share their traffic
BIN_COUNT = 8
RECENT, RECENT_LEAST = 60, 12  # windows that speak for now
WEIGHT_CAP = 10.0
_ITERATIONS = 30
_TINY_S = 1e-7  # floor of the intercept: a step never takes no time


@dataclass(frozen=True, slots=True)
class StepCurve:
    """tau(b) = intercept + slope b + extra max(0, b - knee), seconds; convex, never falling."""

    intercept_s: float
    slope_s: float
    knee: float | None = None
    extra_slope_s: float = 0.0

    @property
    def last_slope_s(self) -> float:
        """Return the slope beyond the knee, or the only one."""
        return self.slope_s + self.extra_slope_s

    def step_time_s(self, batch: float) -> float:
        """Return tau at `batch` sequences, extended with the last slope."""
        above = max(0.0, batch - self.knee) if self.knee is not None else 0.0
        return self.intercept_s + self.slope_s * batch + self.extra_slope_s * above

    def tokens_per_s(self, batch: float) -> float:
        """Return decode tokens/s at `batch`: b / tau(b)."""
        return batch / self.step_time_s(batch)

    def beyond(self, batch: float, reach: float, factor: float) -> float:
        """Return tau at `batch` when the slope past `reach` (the largest b seen) is `factor` times ours."""
        if batch <= reach:
            return self.step_time_s(batch)
        seen = self.step_time_s(reach)
        return seen + factor * (self.step_time_s(batch) - seen)


def bin_weights(batch: Vector) -> Vector:
    """Return weights, mean 1: inverse occupancy of 8 equal-width b-bins, capped at 10 x the median."""
    low, high = float(batch.min()), float(batch.max())
    if high <= low:
        return np.ones_like(batch)
    index = np.minimum(((batch - low) / (high - low) * BIN_COUNT).astype(np.int64), BIN_COUNT - 1)
    weights = 1.0 / np.bincount(index, minlength=BIN_COUNT)[index]
    capped = np.minimum(weights, WEIGHT_CAP * float(np.median(weights)))
    return capped / float(capped.mean())


def _solve(design: Vector, latency: Vector, weights: Vector) -> Vector:
    """Return weighted least squares; the smallest solution when the columns are collinear."""
    weighted = design * weights[:, None]
    normal, right = design.T @ weighted, weighted.T @ latency
    return np.linalg.lstsq(normal, right, rcond=1e-12)[0].astype(np.float64)


def _constrained(design: Vector, latency: Vector, weights: Vector) -> Vector:
    """Return weighted least squares with intercept > 0 and slopes >= 0, by pinning what violates."""
    free = list(range(design.shape[1]))
    found = np.zeros(design.shape[1])
    target = latency
    while free:
        part = _solve(design[:, free], target, weights)
        worst = int(np.argmin(part))
        if part[worst] >= 0:
            found[free] = part
            break
        del free[worst]
    if found[0] < _TINY_S:
        found[0] = _TINY_S
    return found


def _huber_fit(
    design: Vector, latency: Vector, weights: Vector, start: Vector | None, rounds: int
) -> tuple[Vector, Vector, float]:
    """Return (coefficients, robustness weights, residual scale) by iteratively reweighted least squares."""
    robust = np.ones_like(latency) if start is None else start
    coefficients, scale = np.zeros(design.shape[1]), 0.0
    for _ in range(rounds):
        updated = _constrained(design, latency, weights * robust)
        residuals = np.abs(latency - design @ updated)
        scale = MAD_TO_SIGMA * float(np.median(residuals))
        settled = bool(np.allclose(updated, coefficients, rtol=1e-7, atol=1e-12))
        coefficients = updated
        if scale <= 0:
            break
        robust = np.minimum(1.0, HUBER_K * scale / np.maximum(residuals, 1e-300))
        if settled:
            break
    return coefficients, robust, scale


def _huber_loss(residuals: Vector, weights: Vector, scale: float) -> float:
    size = np.abs(residuals) / scale
    loss = np.where(size <= HUBER_K, 0.5 * size**2, HUBER_K * size - 0.5 * HUBER_K**2)
    return float((weights * loss).sum())


def knots(batch: Vector) -> list[float]:
    """Return candidate knees: 15 between 15 % and 85 % of the b range, at least 10 windows each side."""
    low, span = float(batch.min()), float(np.ptp(batch))
    candidates = [low + span * float(part) for part in np.linspace(*KNOT_RANGE, KNOT_COUNT)]
    ordered = np.sort(batch)
    return [
        knot
        for knot in candidates
        if MIN_SIDE <= int(np.searchsorted(ordered, knot)) <= len(ordered) - MIN_SIDE
    ]


def _line_design(batch: Vector) -> Vector:
    return np.column_stack((np.ones_like(batch), batch))


def _bent_design(batch: Vector, knot: float) -> Vector:
    return np.column_stack((np.ones_like(batch), batch, np.maximum(0.0, batch - knot)))


@dataclass(frozen=True, slots=True)
class Fit:
    """The chosen curve and what a resample needs to follow the same method."""

    curve: StepCurve
    weights: Vector  # bin weights times robustness weights
    improvement: float  # n ln(L0/L) - 2 ln n of the best bent curve; above 6 it is chosen


def fit_curve(batch: Vector, latency: Vector) -> Fit:
    """Fit tau(b) by Huber IRLS, a line first, then a convex two-slope curve where it pays.

    `batch` in sequences, `latency` in seconds, same length >= 2. The bent curve is accepted when
    n ln(L0/L) - 2 ln n > 6, L being the weighted Huber loss at the line's residual scale.
    """
    weights = bin_weights(batch)
    line, robust, scale = _huber_fit(_line_design(batch), latency, weights, None, _ITERATIONS)
    straight = Fit(StepCurve(float(line[0]), float(line[1])), weights * robust, -math.inf)
    if scale <= 0:
        return straight
    base_loss = _huber_loss(latency - _line_design(batch) @ line, weights, scale)
    n, best, best_loss, start = len(batch), straight, base_loss, robust
    for knot in knots(batch):
        design = _bent_design(batch, knot)
        bent, start, _ = _huber_fit(design, latency, weights, start, 8)
        loss = _huber_loss(latency - design @ bent, weights, scale)
        if loss < best_loss and bent[2] > 0:
            curve = StepCurve(float(bent[0]), float(bent[1]), knot, float(bent[2]))
            gain = n * math.log(base_loss / max(loss, 1e-300)) - 2 * math.log(n)
            best, best_loss = Fit(curve, weights * start, gain), loss
    return best if best.improvement > 6 else straight


def convex_cost(batch: Vector, latency: Vector, prompts: Vector) -> float:
    """Return gamma >= 0, seconds a prompt token adds to a step, beside a convex cost of the batch.

    Huber fit of tau = a + beta b + extra max(0, b - middle) + gamma p; `prompts` is p, tokens a step. It is
    0 where prompts explain nothing that the batch does not.
    """
    middle = float(batch.min() + batch.max()) / 2
    size = max(float(np.abs(prompts).max()), 1.0)  # columns of one order: tokens are thousands
    design = np.column_stack((_bent_design(batch, middle), prompts / size))
    return float(_huber_fit(design, latency, bin_weights(batch), None, _ITERATIONS)[0][3]) / size


def recent_ratio(curve: StepCurve, batch: Vector, latency: Vector) -> float:
    """Return by how much the newest windows' step times differ from the curve's, at their own batches.

    The median over the last hour's sixth (60 windows of 10 s, at least 12); 1 where there are fewer. A day
    of windows keeps the curve where it was while an engine that is throttled runs slower already.
    """
    if len(batch) < 2 * RECENT_LEAST:
        return 1.0
    count = min(RECENT, len(batch) // 2)
    expected = [curve.step_time_s(float(b)) for b in batch[-count:]]
    return float(np.median(latency[-count:] / np.asarray(expected)))


def block_counts(n: int, draws: int, rng: np.random.Generator) -> Vector:
    """Return, per draw, how often a moving-block resample of n windows takes each window."""
    length = min(BLOCK, n)
    starts = rng.integers(0, n - length + 1, size=(draws, math.ceil(n / length)))
    rises = np.zeros((draws, n + 1))
    rows = np.repeat(np.arange(draws), starts.shape[1])
    np.add.at(rises, (rows, starts.ravel()), 1.0)
    np.add.at(rises, (rows, starts.ravel() + length), -1.0)
    return np.cumsum(rises, axis=1)[:, :n]


def bootstrap_curves(
    batch: Vector, latency: Vector, fit: Fit, draws: int, rng: np.random.Generator
) -> list[StepCurve]:
    """Return `draws` curves refitted to moving-block resamples.

    The robustness weights of `fit` stay fixed (the fast robust bootstrap), so every resample, with its own
    choice of knee, is a handful of small normal equations. `draws` may be 0.
    """
    if draws == 0:
        return []
    counts = block_counts(len(batch), draws, rng) * fit.weights
    candidates = knots(batch) if fit.curve.knee is not None else []
    columns = [np.ones_like(batch), batch, batch * batch, latency, batch * latency]
    for knot in candidates:
        above = np.maximum(0.0, batch - knot)
        columns += [above, above * batch, above * above, above * latency]
    sums = counts @ np.column_stack(columns)
    one, b, bb, t, bt = sums[:, :5].T
    chosen = [StepCurve(fit.curve.intercept_s, fit.curve.slope_s)] * draws
    gains = np.full(draws, -np.inf)
    normal, right = np.array([[one, b], [b, bb]]), np.array([t, bt])
    _take_better(chosen, gains, normal.transpose(2, 0, 1), right.T, None)
    for position, knot in enumerate(candidates):
        h, hb, hh, ht = sums[:, 5 + 4 * position : 9 + 4 * position].T
        normal, right = np.array([[one, b, h], [b, bb, hb], [h, hb, hh]]), np.array([t, bt, ht])
        _take_better(chosen, gains, normal.transpose(2, 0, 1), right.T, knot)
    return chosen


def _take_better(
    chosen: list[StepCurve], gains: Vector, normal: Vector, right: Vector, knot: float | None
) -> None:
    """Replace each resample's curve by this knot's solution where it explains more of the latency."""
    size: Vector = np.einsum("dii->d", normal)
    ridge: Vector = 1e-12 * size[:, None, None] * np.eye(right.shape[1])
    solved: Vector = np.linalg.solve(normal + ridge, right[:, :, None])[:, :, 0].astype(np.float64)
    for draw in np.flatnonzero(solved.min(axis=1) < 0):
        solved[draw] = _resolve(normal[draw], right[draw])
    explained: Vector = 2 * (solved * right).sum(axis=1) - np.einsum("di,dij,dj->d", solved, normal, solved)
    for draw in np.flatnonzero(explained > gains):
        gains[draw] = explained[draw]
        extra = float(solved[draw, 2]) if knot is not None else 0.0
        chosen[draw] = StepCurve(float(solved[draw, 0]), float(solved[draw, 1]), knot, extra)


def _resolve(normal: Vector, right: Vector) -> Vector:
    """Return the constrained solution of one resample's normal equations."""
    free = list(range(len(right)))
    found = np.zeros(len(right))
    while free:
        index = np.ix_(free, free)
        part = np.linalg.lstsq(normal[index], right[free], rcond=1e-12)[0]
        worst = int(np.argmin(part))
        if part[worst] >= 0:
            found[free] = part
            break
        del free[worst]
    found[0] = max(found[0], _TINY_S)
    return found
