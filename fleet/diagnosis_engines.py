"""Causes that show inside engines: standing still, lying numbers, memory, slots, batching.

Each function looks at one pool and returns a finding, None when the signature is absent, or a sentence
about what it cannot tell. Times are seconds, sizes tokens, ratios 0..1. Prevents: a full set of slots
taken for a full engine, and a cause named from one sample.
"""

from __future__ import annotations

import numpy as np

from fleet.curve_fit import Vector
from fleet.diagnosis_engine_facts import EngineFacts
from fleet.diagnosis_evidence import Cause, Finding, Number
from fleet.diagnosis_facts import Facts, PoolFacts
from fleet.percentages import percent
from fleet.readings import EngineWindow

#: A queue is a queue when it is there at the end of this part of the windows.
WAITING_SHARE = 0.25
MIN_WINDOWS = 6
#: Sequences below which gauges and concurrency are too small to compare.
COMPARABLE = 3.0
GAUGE_DISAGREES = 0.35
BATCH_EXCEEDS = 1.25  # decoding can never exceed running
KV_FULL = 0.88  # usage tops out below 1: a block is reserved, and one preemption frees several
KV_FREE = 0.75
PREEMPTED_SHARE = 0.01  # preemptions per completed request that cost something
CAP_GAIN = 1.1  # throughput at twice the slots, under the pessimistic slope
PINNED = 0.95
DRAINED = 0.6
EMPTIED = 0.25
STEP_FULL = 0.7
PREFILLING = 0.2  # of the tokens a step may carry
DEFAULT_BUDGET = 8192.0  # vLLM's own, where nobody registered one


def frozen(facts: Facts) -> Finding | None:
    """Engines with work whose every counter stood still for 25 s and three windows or more."""
    stuck = [e for e in facts.engines if e.still]
    if not stuck:
        return None
    worst = max(stuck, key=lambda e: sum(t.window.length_s for t in e.still))
    seconds = sum(t.window.length_s for t in worst.still)
    last = worst.still[-1]
    is_now = last is worst.evidence.windows[-1]
    names = tuple(e.name for e in stuck)
    return Finding(
        Cause.ENGINE_FROZEN,
        0.97,
        f"{', '.join(names)} stood still with work inside",
        f"{worst.name} held {last.window.running or 0} running and {last.window.waiting or 0} waiting "
        "requests "
        f"and finished not one token for {seconds:.0f} s{', and still does' if is_now else ''}. Its page "
        "answers as ever, so a router goes on sending requests there.",
        (
            Number("stood still", seconds, "s"),
            Number("running meanwhile", last.window.running, "requests"),
            Number("waiting meanwhile", last.window.waiting, "requests"),
        ),
        "Drain the node, then restart its engine",
        f"node:{worst.evidence.node}",
        "Counters move again within one round of the restart; its requests are lost and come back as "
        "retries.",
        names,
        (worst.series("output tokens a window", "tokens", lambda w: w.generation_tokens),),
    )


def inconsistent(facts: Facts) -> Finding | None:
    """Engines whose own numbers contradict each other, so that no verdict about them can be trusted."""
    lying: list[tuple[EngineFacts, str, tuple[Number, ...]]] = []
    for engine in facts.engines:
        found = _contradiction(engine)
        if found is not None:
            lying.append((engine, *found))
    if not lying:
        return None
    engine, words, numbers = lying[0]
    return Finding(
        Cause.METRICS_INCONSISTENT,
        0.9,
        f"{', '.join(e.name for e, _, _ in lying)} exports numbers that contradict each other",
        f"{engine.name}: {words}. Whatever is computed from the wrong one is wrong.",
        numbers,
        "Compare the page with the engine's log, then upgrade or restart it",
        f"node:{engine.evidence.node}",
        "The figures agree again within five minutes; until then its rho and its queue are not to be "
        "trusted.",
        tuple(e.name for e, _, _ in lying),
        (
            engine.series("running, by the gauge", "requests", lambda w: w.running),
            engine.series("decoding, by the counters", "requests", _decoding),
        ),
    )


def _decoding(w: EngineWindow) -> float | None:
    itl = w.histograms.get("itl_s")
    return None if itl is None or itl.sum is None or w.length_s <= 0 else itl.sum / w.length_s


def _contradiction(engine: EngineFacts) -> tuple[str, tuple[Number, ...]] | None:
    running = engine.running[~np.isnan(engine.running)]
    kv = engine.kv[~np.isnan(engine.kv)]
    if len(running) < MIN_WINDOWS:
        return None
    gauge, batch = float(running.mean()), engine.batch
    noise = 3.0 * float(running.std()) / len(running) ** 0.5
    numbers = (
        Number("running, mean of the gauge", gauge, "requests"),
        Number("decoding, from inter-token times", batch, "requests"),
    )
    if batch is not None and batch > COMPARABLE and batch > BATCH_EXCEEDS * gauge + noise:
        return f"{batch:.1f} requests were decoding, but the gauge says {gauge:.1f} were running", numbers
    inside = _served_concurrency(engine)
    if inside is not None and gauge > COMPARABLE and gauge * (1 - GAUGE_DISAGREES) > inside + noise:
        return (
            f"the gauge says {gauge:.1f} were running, but the requests that finished add up to "
            f"{inside:.1f}",
            (*numbers, Number("served at once, from inference times", inside, "requests")),
        )
    if len(kv) >= MIN_WINDOWS and float(kv.max()) == 0.0 and gauge > COMPARABLE:
        return (
            f"{gauge:.1f} requests were running, but the KV cache reads 0 % in every round",
            (*numbers, Number("KV cache, largest", 0.0, "ratio")),
        )
    clamped = sum("kv_used_ratio_clamped" in t.window.flags for t in engine.windows)
    if clamped >= MIN_WINDOWS // 2:
        return (
            f"the KV gauge was outside 0..1 in {clamped} rounds",
            (*numbers, Number("rounds out of range", float(clamped), "rounds")),
        )
    return None


def _served_concurrency(engine: EngineFacts) -> float | None:
    """Return requests in service by Little's law: inference time of the finished / time.

    Long requests are booked when they end, so the first part of the interval lends to the later ones; it
    evens out over an interval much longer than a request.
    """
    inference = engine.summed("inference_s")
    if inference is None or inference[0] < 50 or engine.seconds <= 0:
        return None
    many, sum_s = inference
    if sum_s / many > engine.seconds / 8:
        return None
    rate = engine.arrival_rate
    finished = many / engine.seconds
    if rate is None or abs(rate - finished) > 0.15 * max(rate, finished):
        return None  # filling or draining: what finished does not stand for what is inside
    return sum_s / engine.seconds


def kv_oversubscription(facts: Facts, pool: PoolFacts) -> Finding | None:
    """Engines that take on more sequences than their KV cache holds, and throw work away for it."""
    hit: list[tuple[EngineFacts, float]] = []
    for engine in pool.engines:
        done, thrown = engine.completed, engine.preemptions
        if thrown and done is not None and thrown >= max(3.0, PREEMPTED_SHARE * done):
            hit.append((engine, thrown / max(1, done)))
    if not hit:
        return None
    engine, share = max(hit, key=lambda pair: pair[1])
    kv = engine.kv[~np.isnan(engine.kv)]
    peak = float(np.quantile(kv, 0.9)) if len(kv) else None
    running = float(np.nanmean(engine.running)) if len(engine.running) else None
    return Finding(
        Cause.KV_OVERSUBSCRIPTION,
        0.95 if peak is not None and peak >= KV_FULL else 0.75,
        f"the KV cache of {engines_named(pool, [e for e, _ in hit])} is oversubscribed",
        f"{engine.name} preempted {engine.preemptions} times for {engine.completed} finished requests "
        "while "
        f"its cache was {'full' if peak is None else f'{percent(peak)} full'}; each time, computed "
        "tokens "
        "are thrown away and computed again.",
        (
            Number("preemptions per finished request", share, "ratio"),
            Number("KV cache, 90th percentile", peak, "ratio"),
            Number("running, mean", running, "requests"),
            Number("sequences the cache holds", engine.capacity.kv_batch, "requests"),
        ),
        "Reserve less of the cache at the gate, or start engines with fewer sequences",
        "policy:admission.kv_target_ratio",
        "Preemptions stop; fewer requests run at once, each of them faster, and throughput rises.",
        tuple(e.name for e, _ in hit),
        (
            engine.series("KV cache used", "ratio", lambda w: w.kv_used_ratio),
            engine.series("preemptions a window", "preemptions", lambda w: w.preemptions),
        ),
        () if peak is not None else ("kv_used_ratio",),
    )


def has_queue(engine: EngineFacts) -> bool:
    """Return whether requests waited inside the engine for a telling part of the interval."""
    share = engine.waiting_share
    return share is not None and share >= WAITING_SHARE and len(engine.windows) >= MIN_WINDOWS


def has_memory(engine: EngineFacts) -> bool:
    """Return whether the KV cache had room while requests waited; unknown counts as room."""
    kv = engine.while_waiting(engine.kv)
    return not len(kv) or float(np.quantile(kv, 0.9)) < KV_FREE


def slots_of(engine: EngineFacts) -> float | None:
    """Return the places requests are seen to fill: the registered slots, or the most ever running."""
    known = engine.running[~np.isnan(engine.running)]
    return float(known.max()) if len(known) else None


def cap_gain(engine: EngineFacts, slots: float) -> float | None:
    """Return how much more the engine would finish at twice the slots, under the pessimistic slope."""
    c = engine.capacity
    if c.curve is None:
        return None
    reached = max(c.reached or slots, slots)
    wider = min(2 * slots, c.kv_batch or 2 * slots)
    if wider <= slots:
        return 1.0
    slow_s = c.curve.beyond(wider, min(reached, wider), 2.0)
    return (wider / slow_s) / c.curve.tokens_per_s(slots)


def engine_cap(facts: Facts, pool: PoolFacts) -> Finding | None:
    """All slots taken and requests waiting, while memory and compute would carry far more sequences."""
    capped: list[tuple[EngineFacts, float, float]] = []
    for engine in pool.engines:
        slots = slots_of(engine)
        if slots is None or slots < 2 or not has_queue(engine) or not has_memory(engine):
            continue
        gain = cap_gain(engine, slots)
        if _pinned(engine.while_waiting(engine.running), slots) and gain is not None and gain >= CAP_GAIN:
            capped.append((engine, slots, gain))
    if not capped:
        return None
    engine, slots, gain = max(capped, key=lambda row: row[2])
    kv = engine.while_waiting(engine.kv)
    registered = engine.evidence.launch.max_num_seqs
    return Finding(
        Cause.CONCURRENCY_CAP,
        0.95 if registered is not None and registered <= slots + 1 else 0.85,
        f"a cap of {slots:.0f} requests holds back {engines_named(pool, [e for e, _, _ in capped])}",
        f"{engine.name} ran {slots:.0f} requests and never more while others waited, with "
        f"{_part(kv)} of its KV cache in "
        "use. "
        f"Twice the places would finish at least {percent(gain - 1)} more.",
        (
            Number("running while others waited", slots, "requests"),
            Number("rounds with a queue", engine.waiting_share, "ratio"),
            Number("KV cache while others waited", float(np.median(kv)) if len(kv) else None, "ratio"),
            Number("throughput at twice the places", gain, "times"),
        ),
        "Raise --max-num-seqs, and let token admission at the gateway be the limit",
        "flag:--max-num-seqs",
        f"The queue inside the engines goes; throughput may rise by {percent(gain - 1)} or more, time "
        "between "
        "tokens grows with the batch.",
        tuple(e.name for e, _, _ in capped),
        (
            engine.series("running", "requests", lambda w: w.running),
            engine.series("waiting", "requests", lambda w: w.waiting),
        ),
        () if len(kv) else ("kv_used_ratio",),
    )


def _part(ratios: Vector) -> str:
    return f"{percent(float(np.median(ratios)), 0)}" if len(ratios) else "an unknown part"


def _pinned(values: Vector, top: float) -> bool:
    return len(values) >= MIN_WINDOWS // 2 and float((values >= PINNED * top - 0.5).mean()) >= 0.8


def budget_of(engine: EngineFacts) -> float | None:
    """Return the tokens a step may carry: as registered, else None."""
    registered = engine.evidence.launch.max_num_batched_tokens
    return float(registered) if registered else None


def mean_step(engine: EngineFacts) -> float | None:
    """Return the tokens a step carries on average. (Single values are booked when a prefill ends: too "
    "large.)"""
    steps = engine.summed("iteration_tokens")
    return steps[1] / steps[0] if steps is not None and steps[0] else None


def is_step_bound(engine: EngineFacts) -> bool:
    """Return whether steps carry about as many tokens as they may: then that is what requests wait for."""
    carried, budget = mean_step(engine), budget_of(engine)
    return carried is not None and budget is not None and carried >= STEP_FULL * budget


def _is_busy_prefilling(engine: EngineFacts, slots: float) -> bool:
    """Return whether steps carry prompts while requests wait at empty places: they wait for prefill.

    A static batch that drains computes no prompts at all.
    """
    budget, carried = budget_of(engine), list[float]()
    for timed in engine.windows:
        w = timed.window
        steps = w.histograms.get("iteration_tokens")
        drained = bool(w.waiting) and w.running is not None and w.running <= DRAINED * slots
        if drained and steps is not None and steps.sum is not None and steps.count:
            carried.append((steps.sum / steps.count - (w.running or 0)) / (budget or DEFAULT_BUDGET))
    return bool(carried) and float(np.median(carried)) >= PREFILLING


def static_batching(facts: Facts, pool: PoolFacts) -> Finding | None:
    """Requests wait while most places stand empty: nobody joins until the whole batch has ended."""
    hit: list[tuple[EngineFacts, float, float]] = []
    for engine in pool.engines:
        slots, running = slots_of(engine), engine.while_waiting(engine.running)
        if slots is None or slots < 4 or not has_queue(engine) or not has_memory(engine):
            continue
        if len(running) < MIN_WINDOWS // 2 or is_step_bound(engine) or _is_busy_prefilling(engine, slots):
            continue
        drained = float((running <= DRAINED * slots).mean())
        spread = float(running.std() / max(running.mean(), 1.0))
        if drained >= 0.3 and spread >= 0.25 and float(running.min()) <= EMPTIED * slots:
            hit.append((engine, drained, float(running.min())))
    if not hit:
        return None
    engine, drained, least = max(hit, key=lambda row: row[1])
    return Finding(
        Cause.STATIC_BATCHING,
        0.9,
        f"{engines_named(pool, [e for e, _, _ in hit])} fills its batch only when the last one has ended",
        f"In {percent(drained)} of the rounds with a queue, {engine.name} ran fewer than "
        f"{percent(DRAINED)} of the "
        f"{slots_of(engine):.0f} requests it can run, down to {least:.0f}, with free memory. Continuous "
        "batching would have let the next ones in.",
        (
            Number("rounds with a queue and empty places", drained, "ratio"),
            Number("fewest running while others waited", least, "requests"),
            Number("most running", slots_of(engine), "requests"),
            Number("rounds with a queue", engine.waiting_share, "ratio"),
        ),
        "Serve with continuous (in-flight) batching",
        "flag:batching",
        "The batch stays full while there is a queue; the wait shrinks from a batch's length to a step's.",
        tuple(e.name for e, _, _ in hit),
        (
            engine.series("running", "requests", lambda w: w.running),
            engine.series("waiting", "requests", lambda w: w.waiting),
        ),
    )


def engines_named(pool: PoolFacts, hit: list[EngineFacts]) -> str:
    """Return who is meant: "all 12 engines of pool main", "3 of 12 engines of pool main", or names."""
    if len(hit) == len(pool.engines) and len(hit) > 1:
        return f"all {len(hit)} engines of pool {pool.name}"
    if len(hit) > 3:
        return f"{len(hit)} of {len(pool.engines)} engines of pool {pool.name}"
    return ", ".join(e.name for e in hit)
