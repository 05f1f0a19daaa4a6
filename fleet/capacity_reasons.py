"""Why a capacity is what it is: each step of mu with its values in it.

Batches are sequences, times seconds, rates per second. Pure text from numbers. Prevents: a capacity that
nobody can check by hand.
"""

from __future__ import annotations

from fleet.capacity import CapacityEstimate, Method
from fleet.curve_fit import StepCurve
from fleet.percentages import percent

_LIMITS = {
    "slots": "sequence slots",
    "kv": "KV cache",
    "batched_tokens": "token budget of a step",
    "itl": "objective between tokens",
    "compute": "computing alone",
}
_METHODS = {
    Method.OBSERVED_SATURATION: "the engine was seen full with requests waiting",
    Method.CURVE: "step time fitted against batch",
    Method.CONFIGURED: "typed by an operator",
    Method.SIBLING: "taken from engines of the same configuration",
    Method.PEAK_SEEN: "only a lower bound is known",
    Method.UNKNOWN: "nothing is known yet",
}


def explain_capacity(e: CapacityEstimate, now_s: float) -> tuple[str, ...]:
    """Return the steps from windows to mu, in order: mix, curve, operating batch, tokens/s, requests/s."""
    lines = [_method_line(e, now_s)]
    mix, curve, batch = e.mix, e.curve, e.operating_batch
    if mix is not None and mix.decode_events is not None:
        prompt = "" if mix.prompt_tokens is None else f"I = {mix.prompt_tokens:.4g} prompt tokens, "
        lines.append(f"mix of {mix.completions} requests: {prompt}O = {mix.decode_events:.4g} decode steps")
    if curve is not None:
        bent = "" if curve.knee is None else f", {1000 * curve.last_slope_s:.3g} ms past {curve.knee:.0f}"
        line = f"{1000 * curve.intercept_s:.4g} ms + {1000 * curve.slope_s:.3g} ms b{bent}"
        lines.append(f"tau(b) = alpha + m b = {line}")
    if e.limits and batch is not None:
        named = ", ".join(f"{_LIMITS.get(name, name)} {b:.4g}" for name, b in e.limits)
        lines.append(f"b* = min({named}) = {batch:.4g} sequences")
    if curve is not None and batch is not None and e.tokens_per_s is not None:
        lines.append(_rate_line(e, curve, batch))
    if e.peak_seen_tokens_per_s is not None:
        lines.append(f"most seen in a minute: >= {e.peak_seen_tokens_per_s:.4g} tokens/s, a lower bound")
    if e.drift is not None:
        lines.append(
            f"capacity model drift: what the engine does now is {percent(e.drift, is_signed=True)} "
            "off the curve of all windows"
        )
    if e.advised_batch is not None and curve is not None and batch is not None:
        lines.append(_advice_line(e.advised_batch, curve, batch))
    return tuple(lines)


def _method_line(e: CapacityEstimate, now_s: float) -> str:
    age = "" if e.fitted_at_s is None else f", {max(0.0, now_s - e.fitted_at_s):.0f} s old"
    source = f" ({e.source})" if e.source else ""
    seen = "" if e.reach is None else f", seen up to {percent(e.reach)} of the operating batch"
    windows = f" from {e.windows} windows" if e.windows else ""
    return f"capacity: {_METHODS[e.method]}{source}{windows}{seen}{age}"


def _rate_line(e: CapacityEstimate, curve: StepCurve, batch: float) -> str:
    tokens, requests = e.tokens_per_s or 0.0, e.requests_per_s
    if e.method is Method.CURVE:
        step = f"b* / tau(b*) = {batch:.4g} / {1000 * curve.step_time_s(batch):.4g} ms"
    else:
        step = "median of the saturated minutes"
    events = e.mix.decode_events if e.mix else None
    if requests is None or not events:
        return f"{step} = {tokens:.4g} tokens/s; too few requests ended to say requests/s"
    return f"{step} = {tokens:.4g} tokens/s; mu = {tokens:.4g} / {events:.4g} = {requests:.4g} requests/s"


def _advice_line(advised: float, curve: StepCurve, batch: float) -> str:
    more = curve.tokens_per_s(advised) / curve.tokens_per_s(batch) - 1
    quicker = curve.step_time_s(batch) / curve.step_time_s(advised)
    return (
        f"advice: hold the engine at {advised:.0f} sequences: {percent(more, is_signed=True)} tokens/s "
        f"and {quicker:.1f} times quicker tokens than at {batch:.0f}"
    )
