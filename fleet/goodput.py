"""How much an engine may admit, and how many sequences at once, so that what it serves is served in time.

Rates are requests/s of one engine, times seconds, lengths tokens, shares ratios. Goodput counts requests
served within every objective. The engine is a birth-death chain: n sequences leave at n / ((O + 1/2)
tau(n)), an arrival joining in the middle of a step. Prevents: the largest batch taken for the best one,
and a rate that keeps the mean latency while one request in ten is late.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri  # pyright: ignore[reportMissingTypeStubs]

from fleet.curve_fit import StepCurve
from fleet.errors import InvalidInput
from fleet.percentages import percent
from fleet.replay_outcomes import Objectives

Vector = NDArray[np.float64]

#: Batches tried, beside the one in use.
BATCHES = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
#: Of the advised rate as quota: a quota counts tokens, and short requests pass when it is short.
QUOTA_SHARE = 0.85
#: Fewer sequences for at most this much less goodput: shorter gaps between tokens, less KV.
NEAR_BEST = 0.03
MAX_BATCH = 4096
LONGEST_STEP_S = 1e7  # of a fixed part, or for each sequence
_PROMPTS, _PHASES, _WAITS = 16, 4, 24  # points of the grids
_STATES = 64  # states of the chain that are told apart
_HALVINGS = 26
_LEAST_WEIGHT = 1e-9


@dataclass(frozen=True, slots=True)
class EngineModel:
    """An engine at one mix. `curve` holds what prompts of that mix cost: m = beta + gamma I / O."""

    curve: StepCurve
    prompt_tokens: float
    output_tokens: float
    prompt_s_per_token: float  # gamma
    prompt_cv: float = 1.0
    output_cv: float = 0.8
    max_num_batched_tokens: int = 8192
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "output_tokens"):
            if not 1 <= getattr(self, name) <= 1e8:
                raise InvalidInput(f"{name} is {getattr(self, name):g}", field=name, hint="1 to 1e8")
        for name in ("prompt_s_per_token", "prompt_cv", "output_cv"):
            value = getattr(self, name)
            if not 0 <= value < 1e3:
                raise InvalidInput(f"{name} is {value:g}", field=name, hint="0 or more")
        curve = self.curve
        is_growing = 0 < curve.intercept_s < LONGEST_STEP_S and 0 <= curve.slope_s < LONGEST_STEP_S
        if not is_growing or not 0 <= curve.last_slope_s < LONGEST_STEP_S:
            raise InvalidInput("the step time must grow from above 0", field="curve", hint="alpha > 0")

    def throughput(self, batch: float) -> float:
        """Return X(b) = b / (O tau(b)), requests/s at `batch` sequences."""
        return batch / (self.output_tokens * self.curve.step_time_s(batch))

    @property
    def prefill_share(self) -> float:
        """Return the part of the slope that prompts take, gamma I / (O m); at most 1 makes sense."""
        slope = self.curve.slope_s
        prompt = self.prompt_s_per_token * self.prompt_tokens / self.output_tokens
        return prompt / slope if slope > 0 else math.inf if prompt > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Point:
    """One rate at one batch: what requests would see. Quantiles at `quantile`."""

    rate: float
    batch: int
    mean_batch: float  # sequences at once, on average
    ttft_s: float
    itl_s: float
    e2e_s: float
    queued_share: float  # of requests that wait for a slot
    good_share: float
    quantile: float

    @property
    def goodput(self) -> float:
        """Return requests/s within every objective."""
        return self.rate * self.good_share


@dataclass(frozen=True, slots=True)
class Choice:
    """The most one batch may admit."""

    batch: int
    saturation: float  # X(batch): beyond it the queue grows without end
    best: Point | None  # at the largest rate that keeps every objective; None: none does
    limited_by: str  # "ttft", "itl", "e2e" or "saturation": what is reached first


@dataclass(frozen=True, slots=True)
class Advice:
    """Every batch tried, the best of them, and what to set."""

    choices: tuple[Choice, ...]
    best: Choice | None
    words: tuple[str, ...] = field(default=())


def load_line(model: EngineModel, rate: float) -> float | None:
    """Return b = lambda O alpha / (1 - lambda O m), past a knee by its slope; None at saturation.

    Source: inverse of X(b) = b / (O tau(b)), Little's law for sequences in decode.
    """
    curve, tokens = model.curve, rate * model.output_tokens
    knee = math.inf if curve.knee is None else curve.knee
    if tokens * curve.slope_s < 1:
        below = tokens * curve.intercept_s / (1 - tokens * curve.slope_s)
        if below <= knee:
            return below
    if curve.knee is None or tokens * curve.last_slope_s >= 1:
        return None
    past = tokens * (curve.intercept_s - curve.extra_slope_s * knee) / (1 - tokens * curve.last_slope_s)
    return past if past >= knee else None


def _lognormal(mean: float, cv: float, points: int) -> Vector:
    """Return the middle quantile of each of `points` equal parts of a lognormal distribution."""
    if cv == 0:
        return np.full(1, mean)
    sigma = math.sqrt(math.log1p(cv * cv))
    middle = (np.arange(points) + 0.5) / points
    normal: Vector = np.asarray(ndtri(middle), np.float64)
    values = np.exp(math.log(mean) - sigma * sigma / 2 + sigma * normal)
    return values * (mean / float(values.mean()))


def _share_below(value: Vector, mean: float, cv: float) -> Vector:
    """Return P(length <= value) of a lognormal length."""
    if cv == 0:
        return (value >= mean).astype(np.float64)
    sigma = math.sqrt(math.log1p(cv * cv))
    found: Vector = np.zeros_like(value)
    above = value > 0
    z = (np.log(value[above]) - math.log(mean) + sigma * sigma / 2) / sigma
    found[above] = np.asarray(ndtr(z), np.float64)
    return found


@dataclass(frozen=True, slots=True)
class _Chain:
    """Shares of time with n sequences, n = 0..B, and the queue beyond B."""

    shares: Vector  # the last holds B and every longer queue
    drain: float  # mu_B - lambda


def _chain(model: EngineModel, rate: float, batch: int) -> _Chain | None:
    """Return the steady state of Poisson arrivals at `rate`; None where the queue has none.

    Source: birth-death balance lambda p(n) = mu(n + 1) p(n + 1), geometric beyond B.
    """
    states = np.arange(1, batch + 1, dtype=np.float64)
    knee = model.curve.knee
    above = np.maximum(states - knee, 0) if knee is not None else np.zeros(batch)
    tau = model.curve.intercept_s + model.curve.slope_s * states + model.curve.extra_slope_s * above
    rates = states / ((model.output_tokens + 0.5) * tau)
    ratio = rate / float(rates[-1])
    if ratio >= 1:
        return None
    logs = np.concatenate((np.zeros(1), np.cumsum(math.log(rate) - np.log(rates))))
    weights = np.exp(logs - logs.max())
    weights[-1] /= 1 - ratio
    return _Chain(weights / weights.sum(), float(rates[-1]) - rate)


def _grouped(shares: Vector) -> tuple[Vector, Vector]:
    """Return at most `_STATES` (mean n, weight) of the states without a queue."""
    states, weights = np.arange(shares.size, dtype=np.float64), shares
    known = weights > _LEAST_WEIGHT
    states, weights = states[known], weights[known]
    if states.size <= _STATES:
        return states, weights
    places = np.minimum((np.arange(states.size) * _STATES) // states.size, _STATES - 1)
    summed = np.bincount(places, weights, _STATES)
    means = np.bincount(places, weights * states, _STATES) / summed
    return np.asarray(means, np.float64), np.asarray(summed, np.float64)


def _steps(model: EngineModel, states: Vector) -> Vector:
    knee = model.curve.knee
    above = np.maximum(states - knee, 0) if knee is not None else np.zeros_like(states)
    return model.curve.intercept_s + model.curve.slope_s * states + model.curve.extra_slope_s * above


def point(
    model: EngineModel, rate: float, batch: int, objectives: Objectives, quantile: float = 0.95
) -> Point | None:
    """Return what requests see at `rate` (> 0) with at most `batch` sequences; None past saturation.

    First token: wait for a slot, the rest of a step, one step for each chunk of the prompt, the prompt
    itself. Raises InvalidInput for a batch or quantile out of range.
    """
    if not 1 <= batch <= MAX_BATCH or not 0.5 <= quantile < 1 or rate <= 0:
        raise InvalidInput(
            f"rate {rate:g}, batch {batch}, quantile {quantile:g}",
            field="batch",
            hint=f"Rate above 0, batch 1 to {MAX_BATCH}, quantile 0.5 to below 1",
        )
    chain = _chain(model, rate, batch)
    if chain is None:
        return None
    queued = float(chain.shares[-1])
    states, weights = _grouped(chain.shares[:-1])
    prompts = _lognormal(model.prompt_tokens, model.prompt_cv, _PROMPTS)
    phases = (np.arange(_PHASES) + 0.5) / _PHASES
    waits = -np.log1p(-(np.arange(_WAITS) + 0.5) / _WAITS) / chain.drain
    found = [_first(model, states, np.zeros(1), prompts, phases, weights)]
    found.append(_first(model, np.full(1, float(batch)), waits, prompts, phases, np.full(1, queued)))
    ttft, share, step = (np.concatenate([part[i] for part in found]) for i in range(3))
    share /= share.sum()
    busy = np.arange(chain.shares.size, dtype=np.float64)
    tokens = np.concatenate((states * weights, [batch * queued]))
    gaps = _steps(model, np.concatenate((states, [float(batch)])))
    left = _e2e(model, ttft, share, step, quantile)
    return Point(
        rate=rate,
        batch=batch,
        mean_batch=float((busy * chain.shares).sum()),
        ttft_s=_quantile(ttft, share, quantile),
        itl_s=_quantile(gaps, tokens, quantile) if tokens.sum() > 0 else float(gaps[0]),
        e2e_s=left,
        queued_share=queued,
        good_share=_good(model, ttft, share, step, objectives),
        quantile=quantile,
    )


def _first(
    model: EngineModel, states: Vector, waits: Vector, prompts: Vector, phases: Vector, weights: Vector
) -> tuple[Vector, Vector, Vector]:
    """Return (time to first token, weight, step time) of every combination."""
    step = _steps(model, np.maximum(states, 1.0))
    room = np.maximum(1.0, model.max_num_batched_tokens - states)
    by_state = (slice(None), None, None, None)  # state x wait x prompt x phase
    rest = np.where(states > 0, step, 0.0)[by_state] * phases
    chunks = np.ceil(prompts[:, None] / room[by_state])
    own_s = model.prompt_s_per_token * prompts[:, None]
    total: Vector = waits[:, None, None] + rest + chunks * step[by_state] + own_s
    parts = waits.size * prompts.size * phases.size
    return total.ravel(), np.repeat(weights / parts, parts), np.repeat(step, parts)


def _quantile(values: Vector, weights: Vector, share: float) -> float:
    order = np.argsort(values)
    passed = np.cumsum(weights[order])
    place = int(np.count_nonzero(passed < share * float(passed[-1])))
    return float(values[order[min(place, values.size - 1)]])


def _e2e(model: EngineModel, ttft: Vector, share: Vector, step: Vector, quantile: float) -> float:
    """Return the quantile of first token + (O - 1) steps."""
    outputs = _lognormal(model.output_tokens, model.output_cv, 32)
    order = np.argsort(ttft)
    places = np.minimum((np.cumsum(share[order]) * 64).astype(np.int64), 63)
    weight = np.bincount(places, share[order], 64)
    kept = weight > 0
    firsts = np.bincount(places, share[order] * ttft[order], 64)[kept] / weight[kept]
    steps = np.bincount(places, share[order] * step[order], 64)[kept] / weight[kept]
    total = firsts[:, None] + np.maximum(outputs - 1, 0)[None, :] * steps[:, None]
    weights = np.repeat(weight[kept] / outputs.size, outputs.size)
    return _quantile(total.reshape(-1), weights, quantile)


def _good(model: EngineModel, ttft: Vector, share: Vector, step: Vector, objectives: Objectives) -> float:
    is_good = np.ones_like(ttft)
    if objectives.ttft_s is not None:
        is_good *= ttft <= objectives.ttft_s
    if objectives.itl_s is not None:
        is_good *= step <= objectives.itl_s
    if objectives.e2e_s is not None:
        room = (objectives.e2e_s - ttft) / step + 1
        is_good *= _share_below(room, model.output_tokens, model.output_cv)
    return float((is_good * share).sum())


def broken_by(found: Point, objectives: Objectives) -> str:
    """Return the first objective that `found` does not keep at its quantile; "" when it keeps all."""
    for name, value, bound in (
        ("ttft", found.ttft_s, objectives.ttft_s),
        ("itl", found.itl_s, objectives.itl_s),
        ("e2e", found.e2e_s, objectives.e2e_s),
    ):
        if bound is not None and value > bound:
            return name
    return ""


def most_at(model: EngineModel, batch: int, objectives: Objectives, quantile: float = 0.95) -> Choice:
    """Return the largest rate that keeps every objective at `quantile` with at most `batch` sequences."""
    saturation = model.throughput(batch)
    low, high = 0.0, saturation
    best: Point | None = None
    limited_by = "saturation"
    for _ in range(_HALVINGS):
        rate = (low + high) / 2
        found = point(model, rate, batch, objectives, quantile)
        broken = "saturation" if found is None else broken_by(found, objectives)
        if broken:
            high, limited_by = rate, broken
        else:
            low, best = rate, found
    if best is None or best.rate < 1e-6 * saturation:
        return Choice(batch, saturation, None, limited_by)
    return Choice(batch, saturation, best, limited_by)


def advise(
    model: EngineModel,
    objectives: Objectives,
    *,
    most_batch: int = 256,
    in_use: int | None = None,
    quantile: float = 0.95,
) -> Advice:
    """Return the most that each batch up to `most_batch` may admit, and which of them to choose.

    Among batches within 3 % of the best goodput the smallest is chosen. `in_use` is tried too and
    compared in words.
    """
    if not 1 <= most_batch <= MAX_BATCH:
        raise InvalidInput(f"most_batch is {most_batch}", field="most_batch", hint=f"1 to {MAX_BATCH}")
    knee = model.curve.knee
    tried = {b for b in BATCHES if b < most_batch} | {most_batch}
    tried |= {round(knee)} if knee is not None and 1 <= knee <= most_batch else set()
    tried |= {in_use} if in_use is not None else set()
    choices = tuple(most_at(model, batch, objectives, quantile) for batch in sorted(tried))
    able = [(choice, choice.best.goodput) for choice in choices if choice.best is not None]
    if not able:
        return Advice(choices, None, (_none_keeps(choices, objectives),))
    most = max(goodput for _, goodput in able)
    best = next(choice for choice, goodput in able if goodput >= (1 - NEAR_BEST) * most)
    return Advice(choices, best, _words(model, choices, best, in_use))


#: What `limited_by` is in words.
LIMIT_WORDS = {
    "ttft": "the time to the first token",
    "itl": "the time between tokens",
    "e2e": "the time to the last token",
    "saturation": "saturation",
}


def _none_keeps(choices: Sequence[Choice], objectives: Objectives) -> str:
    least = choices[0].limited_by
    bound = {"ttft": objectives.ttft_s, "itl": objectives.itl_s, "e2e": objectives.e2e_s}.get(least)
    return (
        f"No rate keeps the objectives: with {choices[0].batch} at a time {LIMIT_WORDS[least]} is over "
        f"{bound or 0:g} s already. Shorten prompts, use faster nodes, or relax it."
    )


def _words(
    model: EngineModel, choices: Sequence[Choice], best: Choice, in_use: int | None
) -> tuple[str, ...]:
    point_ = best.best
    if point_ is None:
        return ()
    tokens = QUOTA_SHARE * point_.rate * (model.prompt_tokens + model.output_tokens) * 60
    found = [
        f"Set max-num-seqs, or max_num_seqs of the pool at the gateway, to {best.batch}: at most so many "
        "sequences at once on an engine.",
        f"Admit at most {point_.rate:.2f} requests/s an engine; what comes above is refused at once, "
        f"instead of making everybody late. What is reached first is {LIMIT_WORDS[best.limited_by]}.",
        f"As quotas: {percent(QUOTA_SHARE)} of that to begin with, {tokens:,.0f} tokens a minute an "
        "engine, "
        f"bursts of {tokens / 6:,.0f}.",
    ]
    used = next((c for c in choices if c.batch == in_use), None)
    if used is not None and used.best is None:
        found.append(f"With {in_use} as now no rate keeps the objectives.")
    elif used is not None and used.best is not None and used is not best:
        change = point_.goodput / used.best.goodput - 1
        found.append(
            f"With {in_use} as now: {used.best.goodput:.2f} requests/s in time, tokens "
            f"{1000 * used.best.itl_s:.0f} ms apart; with {best.batch} "
            f"{percent(change, 1, is_signed=True)} and "
            f"{1000 * point_.itl_s:.0f} ms."
        )
    return tuple(found)
