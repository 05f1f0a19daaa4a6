"""Causes that show in queues: too few places, long requests before short ones, order, lack of capacity.

Rates are per second, times seconds, sizes tokens, ratios 0..1. Prevents: nodes bought for a queue that a
limit in front of idle engines makes, and an overload explained away as an unlucky order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fleet.diagnosis_engine_facts import in_buckets
from fleet.diagnosis_engines import engine_cap, has_queue
from fleet.diagnosis_evidence import Cause, Finding, Number, Series
from fleet.diagnosis_facts import Facts, PoolFacts, above, known_sum, p
from fleet.histograms import merge
from fleet.percentages import percent
from fleet.readings import Histogram

LONG_FACTOR = 8.0  # a prompt is long when it is this many times the median
LONG_MIN_TOKENS = 2_000.0
LONG_SHARE_MAX = 0.3  # of requests: more of them are no exception but the traffic
LONG_TOKENS = 0.35  # of all prompt tokens
SPREAD = 8.0  # p95 / p50 of the output
CALM_RHO = 0.9
FULL_RHO = 0.97
FRONT_ROUNDS = 0.3


@dataclass(frozen=True, slots=True)
class FrontQueue:
    """The queue at the gateways: share of rounds with somebody in it, and how many were in flight then."""

    share: float
    in_flight: float  # median while somebody queued
    pinned: float  # share of those rounds at the most ever in flight
    most: float
    queued: Series


def front_queue(facts: Facts) -> FrontQueue | None:
    """Return the gateways' queue over the interval, None where they do not say."""
    slices = [s for f in facts.flows for s in f.evidence.slices]
    rounds: dict[float, tuple[int, int]] = {}
    for s in slices:
        if s.queued is not None and s.in_flight is not None:
            queued, inside = rounds.get(s.ended_at_s, (0, 0))
            rounds[s.ended_at_s] = (queued + s.queued, inside + s.in_flight)
    if not rounds:
        return None
    inside = np.asarray([r[1] for r in rounds.values()], np.float64)
    queued = np.asarray([r[0] for r in rounds.values()], np.float64)
    held = inside[queued > 0]
    most = float(inside.max())
    return FrontQueue(
        share=float((queued > 0).mean()),
        in_flight=float(np.median(held)) if len(held) else 0.0,
        pinned=float((held >= 0.97 * most - 0.5).mean()) if len(held) else 0.0,
        most=most,
        queued=Series(
            "queued at the gateways", "requests", tuple((t, float(q)) for t, (q, _) in rounds.items())
        ),
    )


def front_cap(facts: Facts) -> Finding | None:
    """Requests queue at the gateways at one fixed number in flight, with idle engines behind it."""
    queue = front_queue(facts)
    if queue is None or queue.share < FRONT_ROUNDS or queue.pinned < 0.7 or queue.most < 2:
        return None
    inside = [e for e in facts.engines if has_queue(e)]
    mu, seen = facts.hardware_rate, known_sum(e.arrival_rate for e in facts.engines)
    used = seen / mu if mu and seen is not None else None
    if len(inside) > len(facts.engines) / 4 or (used is not None and used > 0.7):
        return None
    kv = [float(np.nanmax(e.kv)) for e in facts.engines if len(e.kv) and not np.isnan(e.kv).all()]
    return Finding(
        Cause.CONCURRENCY_CAP,
        0.95 if used is not None else 0.7,
        f"a cap of {queue.most:.0f} requests in flight holds back {len(facts.engines)} engines",
        f"In {percent(queue.share)} of the rounds requests queued while exactly {queue.most:.0f} were in "
        "flight, and the "
        f"engines behind did {'an unknown part' if used is None else format(used, '.0%')} of what they "
        "could.",
        (
            Number("in flight while others queued", queue.most, "requests"),
            Number("rounds with a queue", queue.share, "ratio"),
            Number("use of the hardware", used, "ratio"),
            Number("KV cache, fullest engine", max(kv) if kv else None, "ratio"),
        ),
        "Count tokens, not requests: lift the fixed limit and admit by KV room",
        "policy:admission.kv_target_ratio",
        "The queue empties as soon as the limit is lifted; the engines' batches and their use rise.",
        series=(queue.queued,),
        missing=() if used is not None else ("a capacity of the engines",),
    )


def concurrency_cap(facts: Facts, pool: PoolFacts) -> Finding | None:
    """A fixed number of places, at the engines or in front of them."""
    return engine_cap(facts, pool) or front_cap(facts)


@dataclass(frozen=True, slots=True)
class LongPrompts:
    """The exceptional prompts of a pool. Shares 0..1, lengths tokens."""

    median: float
    long_from: float
    request_share: float
    token_share: float


def long_prompts(lengths: Histogram | None) -> LongPrompts | None:
    """Return the prompts of 8 times the median and more, when they are few and most of the work."""
    median = p(lengths, 0.5)
    if lengths is None or median is None or not lengths.sum or lengths.count < 50:
        return None
    limit = max(LONG_FACTOR * median, LONG_MIN_TOKENS)
    bounds = (0.0, *lengths.edges)
    uppers = (*lengths.edges, lengths.edges[-1] * 2)
    rows = list(zip(bounds, uppers, lengths.counts, strict=True))
    # a bucket counts as long when its middle is
    many = sum(n for low, high, n in rows if (low + high) / 2 >= limit)
    short_tokens = sum(n * (low + high) / 2 for low, high, n in rows if (low + high) / 2 < limit)
    share, tokens = many / lengths.count, max(0.0, 1 - short_tokens / lengths.sum)
    if not many or share > LONG_SHARE_MAX or tokens < LONG_TOKENS:
        return None
    return LongPrompts(median, limit, share, tokens)


def is_waiting(facts: Facts, pool: PoolFacts) -> bool:
    """Return whether requests of the pool wait for a place, in its engines or at the gateways."""
    queue = front_queue(facts)
    inside = [e for e in pool.engines if (e.waiting_share or 0.0) >= 0.2]
    return len(inside) >= len(pool.engines) / 3 or (queue is not None and queue.share >= 0.2)


def head_of_line(facts: Facts, pool: PoolFacts) -> Finding | None:
    """Few long contexts hold places and steps, and the many short requests wait behind them."""
    long = long_prompts(pool.lengths)
    late = above(facts.ttft, facts.evidence.goals.ttft_s)
    if (
        long is None
        or late is None
        or late <= long.request_share + (1 - facts.evidence.goals.attainment_ratio)
    ):
        return None  # only the long ones are late: they pay for themselves
    wait = merge([h for f in facts.flows if (h := f.queue_wait) is not None])
    inside = pool.histogram("queue_wait_s")
    wait_s = max((v for h in (wait, inside) if (v := p(h, 0.95)) is not None), default=None)
    ttft_s = p(facts.ttft, 0.99)
    engine = max(pool.engines, key=lambda e: e.waiting_share or 0.0)
    queue = front_queue(facts)
    return Finding(
        Cause.HEAD_OF_LINE,
        min(0.95, 0.7 + 0.3 * long.token_share),
        f"{percent(long.request_share)} long contexts block the short requests",
        f"Prompts of {long.long_from:.0f} tokens and more are {percent(long.request_share, 1)} of the "
        "requests and "
        f"{percent(long.token_share)} of the prompt tokens; half of all prompts are under "
        f"{long.median:.0f}. "
        f"{percent(late)} of requests miss the goal for the first token, far more than there are long "
        "ones.",
        (
            Number("long prompts, share of requests", long.request_share, "ratio"),
            Number("long prompts, share of tokens", long.token_share, "ratio"),
            Number("median prompt", long.median, "tokens"),
            Number("wait for a place, p95", wait_s, "s"),
            Number("first token, p99", ttft_s, "s"),
            Number("requests later than the goal", late, "ratio"),
        ),
        "Give long contexts a size class of their own, or a pool of their own",
        "policy:admission.size_classes",
        "Short requests no longer wait for long ones; the long ones wait for each other.",
        tuple(e.name for e in pool.engines if (e.waiting_share or 0.0) >= 0.2),
        (
            queue.queued
            if queue is not None and queue.share >= 0.2
            else engine.series("waiting", "requests", lambda w: w.waiting),
        ),
    )


def fifo_mixed_sizes(facts: Facts, pool: PoolFacts) -> Finding | None:
    """Short answers wait behind long ones because the queue serves in order of arrival."""
    outputs = pool.histogram("generation_tokens")
    short, tall = p(outputs, 0.5), p(outputs, 0.95)
    order = facts.evidence.order
    policies = {e.evidence.launch.scheduling_policy for e in pool.engines}
    at_door = front_queue(facts)
    in_front = at_door is not None and at_door.share >= 0.2
    if in_front and order != "fifo":
        return None
    if not in_front and policies == {"priority"}:
        return None
    if outputs is None or short is None or tall is None or outputs.count < 50 or tall < SPREAD * short:
        return None
    rho = facts.rho
    if not is_waiting(facts, pool) or not facts.is_slow_to_start or (rho is not None and rho > 1.0):
        return None
    wait = merge([h for f in facts.flows if (h := f.queue_wait) is not None]) if in_front else None
    wait = wait if wait is not None else pool.histogram("queue_wait_s")
    engine = max(pool.engines, key=lambda e: e.waiting_share or 0.0)
    return Finding(
        Cause.FIFO_MIXED_SIZES,
        0.8 if order == "fifo" or policies == {"fcfs"} else 0.65,
        "short answers wait behind long ones in order of arrival",
        f"Half of the answers are under {short:.0f} tokens, one in twenty is over {tall:.0f}, "
        f"{tall / short:.0f} times as long, and the queue treats them alike. Serving the shortest first, "
        "with "
        "aging, lets most requests overtake the few that hold a place for long.",
        (
            Number("answer, median", short, "tokens"),
            Number("answer, p95", tall, "tokens"),
            Number("wait for a place, mean", _mean(wait), "s"),
            Number("wait for a place, p95", p(wait, 0.95), "s"),
            Number("rho", rho, "ratio"),
        ),
        "Queue at the gateway, shortest first with aging",
        "policy:admission.order",
        "The median wait falls to a fraction; the longest requests wait up to their aging bound.",
        (),
        (
            at_door.queued
            if in_front and at_door
            else engine.series("waiting", "requests", lambda w: w.waiting),
        ),
    )


def _mean(histogram: Histogram | None) -> float | None:
    return (
        histogram.sum / histogram.count
        if histogram is not None and histogram.sum and histogram.count
        else None
    )


def lack_of_capacity(facts: Facts) -> Finding | None:
    """More work is offered than the engines can finish, all of them full."""
    rho, mu = facts.rho, facts.service_rate
    engines = [e for e in facts.engines if not e.still]
    if rho is None or mu is None or rho < FULL_RHO or not engines:
        return None
    full = [e for e in engines if has_queue(e)]
    queue = front_queue(facts)
    at_door = queue is not None and queue.share >= FRONT_ROUNDS
    refused = facts.refused_share or 0.0
    if len(full) < 0.6 * len(engines) and not at_door and refused < 0.03:
        return None
    offered = facts.offered_rate or 0.0
    wanted = math.ceil(len(engines) * rho / 0.85)
    low = known_sum(e.capacity.low_requests_per_s for e in engines)
    high = known_sum(e.capacity.high_requests_per_s for e in engines)
    points = _waiting_by_minute(facts)
    return Finding(
        Cause.CAPACITY,
        0.95 if rho >= 1.02 or (high is not None and offered > high) else 0.8,
        f"{len(engines)} engines cannot finish what is offered: rho {rho:.2f}",
        f"{offered:.1f} requests/s are offered, {mu:.1f} is what the engines can finish at this mix, and "
        f"{len(full)} of {len(engines)} have requests waiting. No order of serving helps against that.",
        (
            Number("rho", rho, "ratio"),
            Number("demand", offered, "requests/s"),
            Number("capacity", mu, "requests/s"),
            Number("capacity, low end", low, "requests/s"),
            Number("engines with a queue", len(full) / len(engines), "ratio"),
            Number("refused", facts.refused_share, "ratio"),
        ),
        f"Add {max(1, wanted - len(engines))} engines (rho 0.85 needs {wanted}), or admit less",
        "page:estimates",
        f"At {wanted} engines rho is {offered / mu * len(engines) / wanted:.2f} and the queue drains.",
        tuple(e.name for e in full),
        (Series("waiting in all engines", "requests", points),),
    )


def _waiting_by_minute(facts: Facts) -> tuple[tuple[float, float | None], ...]:
    windows = [t for e in facts.engines for t in e.windows]
    points: list[tuple[float, float | None]] = []
    for at_s, group in in_buckets(windows, lambda t: t.ended_at_s):
        waits = [t.window.waiting for t in group]
        known = [w for w in waits if w is not None]
        share = len({t.ended_at_s for t in group})
        points.append((at_s, sum(known) / share if len(known) == len(waits) and share else None))
    return tuple(points)
