"""The batch each limit of an engine allows, and the capacity at that batch with its interval.

Batches are sequences in decode, times seconds, rates requests/s. Slots and KV blocks are held by requests
that are still in prefill too; a step's budget is shared by decoding and prefill. Prevents: slots counted as
if all of them decoded, and a limit shown without saying how well it is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fleet.curve_fit import StepCurve
from fleet.saturation import OUTPUT_CV, EngineLimits, Mix

BEYOND_PESSIMISTIC = 2.0
BEYOND_OPTIMISTIC = 0.67
OBJECTIVE = "itl"  # the limit that an operator sets and a full engine does not know
COMPUTE = "compute"  # what no number of slots can exceed
_HALVINGS = 60


@dataclass(frozen=True, slots=True)
class LimitRate:
    """Requests/s that one limit alone would allow, with the ends of its interval. None: not known."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None


def kv_tokens_per_sequence(prompt_tokens: float, output_tokens: float, output_cv: float) -> float:
    """Return c = E[I O]/E[O] + E[O^2]/(2 E[O]) for independent I and O, tokens a running sequence holds.

    Running requests are length-biased: I + O/2 is too small by O cv^2 / 2.
    """
    return prompt_tokens + output_tokens * (1 + output_cv**2) / 2


def decoding_share(places: float, curve: StepCurve, mix: Mix) -> float:
    """Return how many of `places` running requests decode: b + X(b) W_prefill = places (Little).

    X(b) = b / (O tau(b)) requests/s leave prefill, each after `mix.prefill_s` seconds in its place.
    Equals `places` where prefill is not known to take time. Source: Little (1961), applied to prefill.
    """
    prefill_s, events = mix.prefill_s, mix.decode_events
    if not prefill_s or not events or not math.isfinite(places):
        return places
    low, high = 0.0, places
    for _ in range(_HALVINGS):
        batch = (low + high) / 2
        if batch + prefill_s * curve.tokens_per_s(batch) / events > places:
            high = batch
        else:
            low = batch
    return low


def batch_limits(
    mix: Mix,
    limits: EngineLimits,
    curve: StepCurve,
    slots: float,
    kv_share: float,
    output_cv: float = OUTPUT_CV,
) -> dict[str, float]:
    """Return the batch each limit allows, by its name; absent when that limit is not known.

    `output_cv` counts only where the KV that a sequence holds was not measured.
    """
    found = {"slots": decoding_share(slots, curve, mix)}
    per_sequence = mix.kv_ratio_per_sequence
    if per_sequence is None and limits.kv_capacity_tokens and mix.prompt_tokens and mix.decode_events:
        held = kv_tokens_per_sequence(mix.prompt_tokens, mix.decode_events, output_cv)
        per_sequence = held / limits.kv_capacity_tokens
    if per_sequence:
        found["kv"] = decoding_share(kv_share / per_sequence, curve, mix)
    prompt = mix.prompt_tokens_computed if mix.prompt_tokens_computed is not None else mix.prompt_tokens
    if limits.max_num_batched_tokens and mix.decode_events and prompt is not None:
        found["batched_tokens"] = limits.max_num_batched_tokens / (1 + prompt / mix.decode_events)
    if limits.itl_slo_s is not None:
        found[OBJECTIVE] = batch_at_latency(curve, limits.itl_slo_s)
    return found


def batch_at_latency(curve: StepCurve, itl_s: float) -> float:
    """Return the largest batch whose step takes at most `itl_s`; at least 1, infinite on a flat curve."""
    knee = curve.knee
    if knee is not None and curve.step_time_s(knee) < itl_s:
        rise = itl_s - curve.step_time_s(knee)
        return knee + rise / curve.last_slope_s if curve.last_slope_s > 0 else math.inf
    return max(1.0, (itl_s - curve.intercept_s) / curve.slope_s) if curve.slope_s > 0 else math.inf


def limit_rates(
    curve: StepCurve,
    draws: Sequence[StepCurve],
    reach: float,
    decode_events: float,
    batches: Mapping[str, tuple[float, float, float]],
) -> tuple[LimitRate, ...]:
    """Return mu at each limit's (lowest, likely, highest) batch, and the compute bound 1 / (O m).

    `reach` is the largest batch seen: beyond it the slope may be twice or two thirds of the fitted one.
    """
    found: list[LimitRate] = []
    slopes = [c.last_slope_s for c in (curve, *draws)]
    if curve.last_slope_s > 0:
        steep = BEYOND_PESSIMISTIC * float(np.quantile(slopes, 0.975))
        gentle = BEYOND_OPTIMISTIC * float(np.quantile(slopes, 0.025))
        best = 1 / (decode_events * gentle) if gentle > 0 else None
        found.append(
            LimitRate(COMPUTE, 1 / (decode_events * curve.last_slope_s), 1 / (decode_events * steep), best)
        )
    for name, triple in batches.items():
        if all(map(math.isfinite, triple)):
            mid, low, high = band_at(curve, draws, reach, triple)
            found.append(LimitRate(name, *(rate / decode_events for rate in (mid, low, high))))
    return tuple(found)


def band_at(
    curve: StepCurve, draws: Sequence[StepCurve], reach: float, batches: tuple[float, float, float]
) -> tuple[float, float, float]:
    """Return tokens/s (likely, low, high) at (lowest, likely, highest) batch.

    The ends are the 2.5 % and 97.5 % quantile over the resampled curves, the slope beyond `reach` being
    stretched by 2.0 and 0.67: a bootstrap alone says nothing of what was never seen.
    """
    low_batch, batch, high_batch = batches
    curves = [curve, *draws]
    slow = [min(b / c.beyond(b, reach, BEYOND_PESSIMISTIC) for b in (low_batch, batch)) for c in curves]
    fast = [max(b / c.beyond(b, reach, BEYOND_OPTIMISTIC) for b in (batch, high_batch)) for c in curves]
    mid = curve.tokens_per_s(batch)
    return (
        mid,
        min(float(np.quantile(slow, 0.025)), mid),
        max(float(np.quantile(fast, 0.975)), mid),
    )


def occupancy_at(curve: StepCurve, operating_batch: float, rho: float) -> float | None:
    """Return b / b* at which the engine finishes `rho` (0..1) of what it finishes at b*; None if never.

    On one slope it is rho h / (1 + h - rho) with h = alpha / (m b*): 61 % at rho 0.85 and h = 0.39. The
    smallest such batch counts. Source: the load line b = lambda O alpha / (1 - lambda O m).
    """
    if operating_batch <= 0 or not math.isfinite(operating_batch):
        return None
    wanted = rho * curve.tokens_per_s(operating_batch)
    low, high = 0.0, operating_batch
    knee = curve.knee
    if knee is not None and knee < operating_batch and curve.tokens_per_s(knee) >= wanted:
        high = knee  # past a steep knee X falls again: what is reached first is meant
    for _ in range(_HALVINGS):
        batch = (low + high) / 2
        if curve.tokens_per_s(batch) < wanted:
            low = batch
        else:
            high = batch
    return high / operating_batch


def latency_rise_at(curve: StepCurve, operating_batch: float, rho: float) -> float | None:
    """Return tau / alpha at `rho`: 1 / (1 - rho / (1 + h)) on one slope, 2.6 at rho 0.85 and h = 0.39."""
    share = occupancy_at(curve, operating_batch, rho)
    if share is None or curve.intercept_s <= 0:
        return None
    return curve.step_time_s(share * operating_batch) / curve.intercept_s
