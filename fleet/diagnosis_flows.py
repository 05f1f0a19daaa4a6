"""Causes that show between engines and between tenants: hot nodes, crowding, retries, priority, order.

Rates are per second, times seconds, sizes tokens, ratios 0..1. Prevents: a tenant named because it is
large, when nobody waits for it, and a queue called too long because one node has it.
"""

from __future__ import annotations

import math

import numpy as np

from fleet.diagnosis_engine_facts import EngineFacts, in_buckets
from fleet.diagnosis_evidence import Cause, Finding, FlowSlice, Number, Series
from fleet.diagnosis_facts import Facts, FlowFacts, PoolFacts, above, known_sum, p
from fleet.histograms import merge
from fleet.percentages import percent
from fleet.readings import Histogram

HOT_FACTOR = 1.6  # arrivals against the median of the pool
HOT_Z = 5.0  # and beyond what chance gives
CROWD_SHARE = 0.35
CROWD_FACTOR = 2.0  # others' wait while the tenant is heavy, against while it is light
MIN_MINUTES = 4
ASKS_MORE = 1.3
ATTEMPTS = 1.3
REFUSED = 0.1
RATIO_SAME = 0.7


def hot_node(facts: Facts, pool: PoolFacts) -> Finding | None:
    """Nodes that get far more than their share, or do far less with it, while their siblings have room."""
    engines = [e for e in pool.engines if e.arrivals is not None and not e.still]
    if len(engines) < 3:
        return None
    counts = np.asarray([e.arrivals or 0 for e in engines], np.float64)
    median = float(np.median(counts))
    hot = [
        e
        for e, n in zip(engines, counts, strict=True)
        if n >= HOT_FACTOR * median
        and (n - median) / math.sqrt(max(median, 1.0)) >= HOT_Z
        and _suffers(facts, e)
    ]
    others = [e for e in engines if e not in hot]
    if not hot or 2 * len(hot) >= len(engines) or any(_is_queueing(e) for e in others) or not median:
        return None
    worst = max(hot, key=lambda e: e.arrivals or 0)
    share = sum(e.arrivals or 0 for e in hot) / float(counts.sum())
    names = ", ".join(e.name for e in hot)
    ttft = {e.name: p(e.histogram("ttft_s"), 0.95) for e in engines}
    calm = merge([h for e in others if (h := e.histogram("ttft_s")) is not None])
    return Finding(
        Cause.HOT_NODE,
        0.95,
        f"{names} {'is' if len(hot) == 1 else 'are'} hot while {len(others)} others have room",
        f"{len(hot)} of {len(engines)} nodes of pool {pool.name} took {percent(share)} of its requests, "
        f"{worst.name} {(worst.arrivals or 0) / median:.1f} times the median, minute after minute: the "
        "routing "
        "looks at who asks, not at who has room.",
        (
            Number("share of the pool's requests", share, "ratio"),
            Number("requests against the median node", (worst.arrivals or 0) / median, "times"),
            Number("time to first token p95 there", ttft[worst.name], "s"),
            Number("time to first token p95 elsewhere", p(calm, 0.95), "s"),
        ),
        "Route by load: strategy least_loaded, prefix affinity off",
        "policy:routing.strategy",
        "Requests even out within a minute; the hot nodes' queues drain and the pool's tail follows.",
        tuple(e.name for e in hot),
        (
            worst.series(f"waiting on {worst.name}", "requests", lambda w: w.waiting),
            others[0].series(f"waiting on {others[0].name}", "requests", lambda w: w.waiting),
        ),
    )


def _suffers(facts: Facts, engine: EngineFacts) -> bool:
    late = above(engine.histogram("ttft_s"), facts.evidence.goals.ttft_s)
    gaps = above(engine.histogram("itl_s"), facts.evidence.goals.itl_p99_s)
    return _is_queueing(engine) or (late or 0.0) > 0.05 or (gaps or 0.0) > 0.01


def _is_queueing(engine: EngineFacts) -> bool:
    return (engine.waiting_share or 0.0) > 0.3


def tenant_crowding(facts: Facts) -> Finding | None:
    """A tenant whose heavy minutes are the others' slow minutes."""
    tenants = sorted({f.tenant for f in facts.flows})
    if len(tenants) < 2:
        return None
    found = [crowd for name in tenants if (crowd := _crowd(facts, name)) is not None]
    if not found:
        return None
    name, share, fair, heavy_s, light_s, bucket_tokens = max(
        found, key=lambda row: row[3] / max(row[4], 1e-3)
    )
    points = tuple((at_s, float(tokens)) for at_s, tokens in bucket_tokens)
    return Finding(
        Cause.TENANT_CROWDING,
        min(0.97, 0.7 + 0.05 * math.log2(max(heavy_s / max(light_s, 1e-3), 1.0))),
        f"tenant {name} crowds out the others",
        f"While {name} is busy, everybody else's time to first token is {heavy_s:.2f} s at p95, otherwise "
        f"{light_s:.2f} s. {name} then has {percent(share)} of all requests inside, {percent(fair)} "
        "would be its "
        "even share.",
        (
            Number(f"share of requests inside, {name}", share, "ratio"),
            Number("its even share", fair, "ratio"),
            Number("others' first token p95 while it is busy", heavy_s, "s"),
            Number("others' first token p95 otherwise", light_s, "s"),
        ),
        f"Move {name} to tier batch, or bound its tokens in flight",
        f"tenant:{name}",
        f"The others' time to first token returns to about {light_s:.2f} s; {name} takes longer.",
        (name,),
        (Series(f"tokens of {name}", "tokens a minute", points),),
    )


Crowd = tuple[str, float, float, float, float, list[tuple[float, int]]]


def _crowd(facts: Facts, name: str) -> Crowd | None:
    """Return (tenant, share of requests inside, even share, others' p95 in heavy and in light minutes, "
    "tokens by minute)."""
    own = [f for f in facts.flows if f.tenant == name]
    others = [f for f in facts.flows if f.tenant != name]
    load, everybody = dict(_load_by_minute(own)), dict(_load_by_minute(list(facts.flows)))
    if len(load) < MIN_MINUTES:
        return None
    levels = np.asarray(list(load.values()), np.float64)
    low, high = float(np.quantile(levels, 0.1)), float(levels.max())
    if high < 2 * max(low, 1.0):
        return None
    busy = {at_s for at_s, n in load.items() if n >= (low + high) / 2}
    calm = {at_s for at_s, n in load.items() if n <= low + (high - low) / 4}
    if not _asks_more(own, busy, calm):
        return None  # its requests pile up, but it sends no more of them: the cause lies elsewhere
    held = sum(everybody[at_s] for at_s in busy)
    tenants = len({f.tenant for f in facts.flows})
    share = sum(load[at_s] for at_s in busy) / held if held else 0.0
    fair = _fair_share(facts.flows, name, tenants)
    if share < max(CROWD_SHARE, 1.5 * fair):
        return None
    ttft = _ttft_by_minute(others)
    heavy = merge([h for at_s in sorted(busy) if (h := ttft.get(at_s)) is not None])
    light = merge([h for at_s in sorted(calm) if (h := ttft.get(at_s)) is not None])
    busy_s, calm_s = p(heavy, 0.95), p(light, 0.95)
    late = above(heavy, facts.evidence.goals.ttft_s)
    if (
        busy_s is None
        or calm_s is None
        or heavy is None
        or light is None
        or min(heavy.count, light.count) < 40
    ):
        return None
    if busy_s < CROWD_FACTOR * calm_s or (late or 0.0) <= 1 - facts.evidence.goals.attainment_ratio:
        return None
    return name, share, fair, busy_s, calm_s, _tokens_by_minute(own)


def _asks_more(flows: list[FlowFacts], busy: set[float], calm: set[float]) -> bool:
    """Return whether a tenant offers more a minute while busy than while calm; unknown counts as yes."""
    minutes = {
        at_s: known_sum(s.offered for s in group)
        for at_s, group in in_buckets(_slices(flows), lambda s: s.ended_at_s)
    }
    more = [n for at_s in busy if (n := minutes.get(at_s)) is not None]
    less = [n for at_s in calm if (n := minutes.get(at_s)) is not None]
    return not more or not less or sum(more) / len(more) > ASKS_MORE * sum(less) / len(less)


def _fair_share(flows: tuple[FlowFacts, ...], name: str, tenants: int) -> float:
    weights = {f.tenant: f.evidence.weight for f in flows}
    known = {t: w for t, w in weights.items() if w is not None}
    if len(known) < tenants or not sum(known.values()):
        return 1 / tenants
    return known[name] / sum(known.values())


def _slices(flows: list[FlowFacts]) -> list[FlowSlice]:
    return [s for f in flows for s in f.evidence.slices]


def _load_by_minute(flows: list[FlowFacts]) -> list[tuple[float, int]]:
    """Return requests in flight and queued (largest of the minute), by minute."""
    minutes: list[tuple[float, int]] = []
    for at_s, group in in_buckets(_slices(flows), lambda s: s.ended_at_s):
        rounds: dict[float, int] = {}
        for s in group:
            rounds[s.ended_at_s] = rounds.get(s.ended_at_s, 0) + (s.queued or 0) + (s.in_flight or 0)
        minutes.append((at_s, max(rounds.values())))
    return minutes


def _tokens_by_minute(flows: list[FlowFacts]) -> list[tuple[float, int]]:
    return [
        (at_s, sum((s.prompt_tokens or 0) + (s.output_tokens or 0) for s in group))
        for at_s, group in in_buckets(_slices(flows), lambda s: s.ended_at_s)
    ]


def _ttft_by_minute(flows: list[FlowFacts]) -> dict[float, Histogram]:
    found: dict[float, Histogram] = {}
    for at_s, group in in_buckets(_slices(flows), lambda s: s.ended_at_s):
        merged = merge([s.ttft for s in group if s.ttft is not None])
        if merged is not None:
            found[at_s] = merged
    return found


def retry_storm(facts: Facts) -> Finding | None:
    """Refused requests that come back at once and are most of the demand."""
    offered = known_sum(f.total(lambda s: s.offered) for f in facts.flows)
    originals = known_sum(f.total(lambda s: s.originals) for f in facts.flows)
    refused = facts.refused_share
    if not offered or not originals or refused is None or refused < REFUSED:
        return None
    attempts = offered / originals
    if attempts < ATTEMPTS:
        return None
    seconds = facts.flow_seconds
    points = tuple(
        (at_s, sum(s.offered or 0 for s in group) / max(1, sum(s.originals or 0 for s in group)))
        for at_s, group in in_buckets(_slices(list(facts.flows)), lambda s: s.ended_at_s)
    )
    mu = facts.service_rate
    return Finding(
        Cause.RETRY_STORM,
        min(0.97, 0.7 + 0.15 * (attempts - 1)),
        f"clients try {attempts:.1f} times for one answer",
        f"Of {offered / seconds:.1f} requests/s at the door only {originals / seconds:.1f} are new; the "
        "rest "
        f"repeat what was refused ({percent(refused)} are). The repeats keep the queue full that "
        "refuses them.",
        (
            Number("attempts per request", attempts, "times"),
            Number("refused", refused, "ratio"),
            Number("new requests", originals / seconds, "requests/s"),
            Number("capacity", mu, "requests/s"),
        ),
        "Send a longer Retry-After with more jitter, and have clients bound their retries",
        "policy:retry_after.floor_s",
        "Demand falls to the new requests alone; where those fit, refusals end within a few Retry-After.",
        series=(Series("attempts per request", "times", points),),
    )


def priority_ignored(facts: Facts) -> Finding | None:
    """Tiers are sent with different priorities to engines that serve in order of arrival."""
    ranks = {
        f.tier: f.evidence.engine_priority for f in facts.flows if f.evidence.engine_priority is not None
    }
    if len(set(ranks.values())) < 2:
        return None
    first, last = min(ranks, key=lambda t: ranks[t]), max(ranks, key=lambda t: ranks[t])
    policies = {e.evidence.launch.scheduling_policy for e in facts.engines}
    queueing = [e for e in facts.engines if (e.waiting_share or 0.0) >= 0.15]
    rounds = _queued_rounds(queueing)
    ahead, behind = _ttft_of(facts, first, rounds), _ttft_of(facts, last, rounds)
    urgent_s, patient_s = p(ahead, 0.75), p(behind, 0.75)
    if "priority" in policies or not queueing or ahead is None or behind is None:
        return None
    if urgent_s is None or patient_s is None or min(ahead.count, behind.count) < 40:
        return None
    late = above(ahead, facts.evidence.goals.ttft_s) or 0.0
    if late <= 1 - facts.evidence.goals.attainment_ratio or urgent_s < RATIO_SAME * patient_s:
        return None
    is_known = policies == {"fcfs"}
    engine = max(queueing, key=lambda e: e.waiting_share or 0.0)
    return Finding(
        Cause.PRIORITY_IGNORED,
        0.93 if is_known else 0.6,
        f"engines ignore the priority of tier {first}",
        f"Requests of {first} carry priority {ranks[first]}, those of {last} {ranks[last]}, and inside "
        "the engines "
        f"both wait alike: {urgent_s:.2f} s and {patient_s:.2f} s to the first token at p75. An engine "
        "heeds "
        "`priority` only under --scheduling-policy priority; these run "
        f"{'fcfs' if is_known else 'an unknown one'}.",
        (
            Number(f"first token p75, {first}", urgent_s, "s"),
            Number(f"first token p75, {last}", patient_s, "s"),
            Number("priorities sent", f"{ranks[first]} and {ranks[last]}"),
            Number("rounds with a queue inside engines", engine.waiting_share, "ratio"),
        ),
        "Start engines with --scheduling-policy priority",
        "flag:--scheduling-policy",
        f"{first} overtakes {last} in the engines' queues; {last} waits longer.",
        tuple(e.name for e in queueing),
        (engine.series("waiting", "requests", lambda w: w.waiting),),
        () if is_known else ("scheduling_policy (register it with the pool)",),
    )


def _queued_rounds(engines: list[EngineFacts]) -> set[float]:
    """Return when requests waited in most of `engines`: only then can one overtake another."""
    many: dict[float, int] = {}
    for timed in (t for e in engines for t in e.windows):
        many[timed.ended_at_s] = many.get(timed.ended_at_s, 0) + bool(timed.window.waiting)
    return {at_s for at_s, n in many.items() if n >= len(engines) / 2}


def _ttft_of(facts: Facts, tier: str, rounds: set[float]) -> Histogram | None:
    slices = [s for f in facts.flows if f.tier == tier for s in f.evidence.slices if s.ended_at_s in rounds]
    return merge([s.ttft for s in slices if s.ttft is not None])
