"""Capacity of one continuous-batching engine, learned from what its counters already say.

Batches are sequences in decode, times seconds, rates per second; mu is what a busy engine could finish at
its present mix. tau(b) is fitted to (concurrency, inter-token latency) pairs and read at the operating
batch b*, the smallest of its limits. Prevents: completions per second, an occupancy gauge, or a straight
line through ten minutes of idling standing in for a capacity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from fleet.capacity_limits import (
    OBJECTIVE,
    LimitRate,
    band_at,
    batch_limits,
    limit_rates,
    occupancy_at,
)
from fleet.curve_fit import Fit, StepCurve, bootstrap_curves, fit_curve, recent_ratio
from fleet.plateau import plateau, queued_plateau
from fleet.prompt_cost import latency_at_mix
from fleet.saturation import (
    LARGEST_DEFAULT_SEQS,
    LEAST_DEFAULT_BUDGET,
    MIN_WINDOWS,
    OUTPUT_CV,
    OUTPUT_CV_BAND,
    EngineLimits,
    Mix,
    Plateau,
    Point,
    known_slots,
    merged,
    mix_of,
    throughput_60s,
)

KV_TARGET = 0.90  # engines that recompute run about 5 % below the formula at 100 % KV
KV_BAND = (0.85, 1.00)  # where recomputation starts is not known better than this
MIN_BAND = 0.01
SAMPLING = (
    2.6 * 1.0
)  # 99 % of a mean whose squared cv is 1, times 1 / sqrt(n): finished requests are a sample
PREFILL_ERROR = (
    0.06  # of the curve where prompts rule the step: decodes see the bursts, the average does not
)
DRIFT = 0.15
QUEUED = "saturated_by_its_queue"  # no gauge was full, but requests waited for minutes
CONFIGURED_ERROR = 0.25  # of a typed capacity: mixes moving by a fifth and a benchmark's own error


class Grade(StrEnum):
    """How much was seen: A a plateau or 80 % of b*, B 30 %, C less, D not identifiable."""

    A = "A"
    B = "B"
    C = "C"
    D = "D"


class Method(StrEnum):
    """Where mu comes from, best first."""

    OBSERVED_SATURATION = "observed_saturation"
    CURVE = "curve"
    CONFIGURED = "configured"
    SIBLING = "sibling"
    PEAK_SEEN = "peak_seen"  # a lower bound, never used as mu
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ConfiguredCapacity:
    """A capacity typed by the operator or imported from a benchmark, with its source and date."""

    source: str
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    relative_error: float = CONFIGURED_ERROR  # half the width of its interval, as a share


@dataclass(frozen=True, slots=True)
class CapacityEstimate:
    """mu with its interval, and everything needed to say why. `None` is unknown, never 0.

    `requests_per_s` is None where too few requests completed to know the mix, even when tokens/s is known.
    `limits` holds the batch each limit allows, `rates_by_limit` mu at that batch with its interval; the one
    that binds is mu itself. `slots` is what the engine was launched with, or is thought to be.
    """

    method: Method
    grade: Grade | None
    requests_per_s: float | None = None
    low_requests_per_s: float | None = None
    high_requests_per_s: float | None = None
    tokens_per_s: float | None = None
    low_tokens_per_s: float | None = None
    high_tokens_per_s: float | None = None
    binding: str | None = None  # slots | kv | batched_tokens | itl
    operating_batch: float | None = None
    reach: float | None = None  # q98 of the batches seen / operating batch
    curve: StepCurve | None = None
    limits: tuple[tuple[str, float], ...] = ()
    rates_by_limit: tuple[LimitRate, ...] = ()
    slots: float | None = None
    mix: Mix | None = None
    windows: int = 0
    fitted_at_s: float | None = None
    peak_seen_tokens_per_s: float | None = None  # lower bound: q95 of 60 s throughput
    drift: float | None = None  # what is seen now / what the curve says - 1, when beyond 15 %
    advised_batch: float | None = None  # fewer sequences would finish over 3 % more
    plateau: Plateau | None = None  # the last capacity seen, whether or not it became mu
    flags: tuple[str, ...] = ()
    source: str = ""
    stale_since_s: float | None = None  # since when the mix is another than the one mu was fitted at

    def occupancy_at(self, rho: float) -> float | None:
        """Return the share of the operating batch to expect at `rho` (0..1); None without a curve."""
        if self.curve is None or self.operating_batch is None:
            return None
        return occupancy_at(self.curve, self.operating_batch, rho)


UNKNOWN = CapacityEstimate(method=Method.UNKNOWN, grade=None)


@dataclass(frozen=True, slots=True)
class _Band:
    mid: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class _Fitted:
    """What the curve says: the estimate so far, tokens/s at b*, and at the b of a full engine."""

    estimate: CapacityEstimate
    band: _Band
    full_tokens_per_s: float


def _widen(band: _Band, relative: float) -> _Band:
    """Keep both sides at least 1 % away, and add an independent relative error to each."""
    below, above = 1 - band.low / band.mid, band.high / band.mid - 1
    down = math.hypot(max(MIN_BAND, below), relative)
    up = math.hypot(max(MIN_BAND, above), relative)
    return _Band(band.mid, band.mid * max(0.0, 1 - down), band.mid * (1 + up))


def _length_noise(e: CapacityEstimate) -> float:
    """Return by how much a minute's tokens exceed the mean as its answers happened to be long, 95 %."""
    peak, events = e.peak_seen_tokens_per_s, e.mix.decode_events if e.mix else None
    if not peak or not events:
        return 0.0
    return min(1.0, 1.65 * OUTPUT_CV / math.sqrt(60 * peak / events))


def _sampling_error(e: CapacityEstimate) -> float:
    """Return the relative error that comes with the mix: mean lengths of a sample, bursts of prompts."""
    if e.mix is None or not e.mix.completions:
        return 0.0
    error = SAMPLING / math.sqrt(e.mix.completions)
    is_rough = e.method is Method.CURVE or QUEUED in e.flags
    return math.hypot(error, PREFILL_ERROR) if e.mix.is_prefill_heavy and is_rough else error


def _grade(seen: Plateau | None, reach: float, flags: tuple[str, ...]) -> Grade:
    if seen is not None:
        return Grade.A
    grade = Grade.A if reach >= 0.8 else Grade.B if reach >= 0.3 else Grade.C
    doubts = {"max_num_seqs_assumed", "below_batches_seen", "max_num_batched_tokens_unknown"}
    return Grade.C if doubts & set(flags) else grade


def estimate_capacity(
    points: Sequence[Point],
    limits: EngineLimits,
    rng: np.random.Generator,
    *,
    draws: int = 100,
    remembered: Plateau | None = None,
) -> CapacityEstimate:
    """Return what `points` (one mix bucket, in time order) say: a plateau, a curve, or grade D.

    `remembered` is an earlier plateau at the same mix that is still valid. `draws` is the number of
    bootstrap resamples (>= 0). Never raises for lack of data: that is the answer `peak_seen` or `unknown`.
    """
    points = [p for p in points if p.is_possible]
    if not points:
        return UNKNOWN
    mix, (slots, flags) = mix_of(points), known_slots(points, limits)
    rates = throughput_60s(points)
    peak = float(np.quantile(rates, 0.95)) if len(rates) else None
    seen = plateau(points, slots, mix)
    if seen is None and limits.max_num_batched_tokens is None and mix.is_prefill_heavy:
        seen = queued_plateau(points, slots, mix)
        flags = flags if seen is None else (*flags, QUEUED)
    seen = seen or remembered
    usable = [p for p in points if p.usable]
    base = CapacityEstimate(
        Method.PEAK_SEEN if peak else Method.UNKNOWN,
        Grade.D,
        mix=mix,
        windows=len(usable),
        fitted_at_s=points[-1].ended_at_s,
        peak_seen_tokens_per_s=peak,
        plateau=seen,
        flags=flags,
    )
    batch = np.asarray([p.batch for p in usable], np.float64)
    reached = float(np.quantile(batch, 0.98)) if len(usable) else 0.0
    fitted: _Fitted | None = None
    if len(usable) >= MIN_WINDOWS and reached >= 1:
        joined = merged(usable, mix)
        batch = np.asarray([p.batch for p in joined], np.float64)
        latency = latency_at_mix(joined, mix, limits.max_num_batched_tokens)
        fit = fit_curve(batch, latency)
        curves = bootstrap_curves(batch, latency, fit, draws, rng)
        reach = (float(batch.min()), reached)
        fitted = _moved(
            _read_curve(base, fit, curves, reach, slots, limits, mix),
            recent_ratio(fit.curve, batch, latency),
        )
    return _choose(base, fitted, seen)


def _moved(fitted: _Fitted, ratio: float) -> _Fitted:
    """Return `fitted` widened to where the newest windows say that step times are, if over 15 % off.

    `ratio` is their step time over the curve's. The interval then reaches to what they allow, and the drift
    is named: throttling, a noisy neighbour, a new kernel.
    """
    if 1 / (1 + DRIFT) <= ratio <= 1 + DRIFT:
        return fitted
    e, band = fitted.estimate, fitted.band
    low, high = min(1.0, 1 / ratio), max(1.0, 1 / ratio)
    described = replace(e, drift=1 / ratio - 1, flags=(*e.flags, "step_time_moved", "capacity_model_drift"))
    return replace(fitted, estimate=described, band=_Band(band.mid, band.low * low, band.high * high))


def _read_curve(
    base: CapacityEstimate,
    fit: Fit,
    curves: Sequence[StepCurve],
    seen: tuple[float, float],
    slots: float,
    limits: EngineLimits,
    mix: Mix,
) -> _Fitted:
    """Return the estimate with its curve and the token rate it allows; b was `seen` from, to."""
    lowest, reached = seen
    allowed = batch_limits(mix, limits, fit.curve, slots, KV_TARGET)
    binding = min(allowed, key=lambda name: allowed[name])
    least, most = slots, slots
    if "max_num_seqs_assumed" in base.flags:  # what was seen is possible; how far it goes on nobody said
        least, most = max(1.0, reached), max(slots, LARGEST_DEFAULT_SEQS)
    cautious = limits
    if limits.max_num_batched_tokens is None:  # nobody said: as little as an engine takes by default
        cautious = replace(limits, max_num_batched_tokens=LEAST_DEFAULT_BUDGET)
    fewest = batch_limits(mix, cautious, fit.curve, least, KV_BAND[0], OUTPUT_CV_BAND[1])
    largest = batch_limits(mix, limits, fit.curve, most, KV_BAND[1], OUTPUT_CV_BAND[0])
    batches = (min(fewest.values()), allowed[binding], min(largest.values()))
    band = _Band(*band_at(fit.curve, curves, reached, batches))
    unseen: tuple[str, ...] = ()
    if cautious is not limits and fewest.get("batched_tokens", math.inf) < allowed[binding]:
        unseen = ("max_num_batched_tokens_unknown",)
    if allowed[binding] < lowest:  # tau is convex from 0 on: X is at most what it was at the lowest b seen
        unseen = (*unseen, "below_batches_seen")
        band = _Band(band.mid, band.low, max(band.high, fit.curve.tokens_per_s(lowest)))
    knee = fit.curve.knee
    advised = None
    if knee is not None and knee < allowed[binding] and fit.curve.tokens_per_s(knee) > 1.03 * band.mid:
        advised = knee
    is_flat = fit.curve.last_slope_s == 0 and reached > 0.3 * allowed[binding] and lowest < 0.5 * reached
    flat = ("memory_bound_flat",) if is_flat else ()
    slo = limits.itl_slo_s
    missed = ("itl_objective_out_of_reach",) if slo is not None and fit.curve.step_time_s(1) > slo else ()
    events = mix.decode_events
    triples = {name: (fewest[name], b, largest[name]) for name, b in allowed.items()}
    by_limit = limit_rates(fit.curve, curves, reached, events, triples) if events else ()
    described = replace(
        base,
        binding=binding,
        operating_batch=allowed[binding],
        reach=reached / allowed[binding],
        curve=fit.curve,
        limits=tuple(allowed.items()),
        rates_by_limit=by_limit,
        slots=slots,
        advised_batch=advised,
        flags=base.flags + flat + missed + unseen,
    )
    full = min(b for name, b in allowed.items() if name != OBJECTIVE)
    return _Fitted(described, band, fit.curve.tokens_per_s(full))


def _choose(base: CapacityEstimate, fitted: _Fitted | None, seen: Plateau | None) -> CapacityEstimate:
    """Prefer a plateau to the curve, raise drift when they disagree, and convert tokens to requests.

    A plateau is what a full engine did: it says nothing of an engine that an objective keeps from filling
    up, so there the curve holds.
    """
    described, band = (fitted.estimate, fitted.band) if fitted else (base, None)
    if seen is not None:
        drift = seen.tokens_per_s / fitted.full_tokens_per_s - 1 if fitted else 0.0
        if abs(drift) > DRIFT:
            named = dict.fromkeys((*described.flags, "capacity_model_drift"))
            described = replace(described, drift=drift, flags=tuple(named))
    if seen is not None and described.binding != OBJECTIVE:
        half = 1.96 * seen.relative_error
        rate = seen.tokens_per_s
        band = _Band(rate, rate * (1 - min(1.0, half)), rate * (1 + half))
        described = replace(described, method=Method.OBSERVED_SATURATION)
    elif band is not None:
        described = replace(described, method=Method.CURVE)
        floor = (base.peak_seen_tokens_per_s or 0.0) * (1 - _length_noise(base))
        if floor > band.mid and described.binding != OBJECTIVE:
            band = _Band(floor, band.low, max(band.high, floor))
    if band is None:
        return described
    mix = described.mix
    band = _widen(band, _sampling_error(described))
    events = mix.decode_events if mix else None
    rates = described.rates_by_limit
    if events:
        binds = LimitRate(described.binding or "", *(x / events for x in (band.mid, band.low, band.high)))
        rates = tuple(binds if rate.name == described.binding else rate for rate in rates)
    return replace(
        described,
        rates_by_limit=rates,
        grade=_grade(
            seen if described.method is Method.OBSERVED_SATURATION else None,
            described.reach or 0.0,
            described.flags,
        ),
        tokens_per_s=band.mid,
        low_tokens_per_s=band.low,
        high_tokens_per_s=band.high,
        requests_per_s=band.mid / events if events else None,
        low_requests_per_s=band.low / events if events else None,
        high_requests_per_s=band.high / events if events else None,
    )
