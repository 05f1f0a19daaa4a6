"""Capacity or scheduling? What is wrong with a fleet, why, and which knob to turn.

Pure: evidence of an interval in, a verdict out. Utilization is demand / what the hardware could finish, a
ratio that may exceed 1. A cause is named when its own signature shows; what was not exported is said and
never guessed. Prevents: nodes bought for a queue that a setting makes, and a setting turned under a true
overload.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from fleet.diagnosis_engine_facts import in_buckets
from fleet.diagnosis_engines import frozen, inconsistent, kv_oversubscription, static_batching
from fleet.diagnosis_evidence import (
    Cause,
    Curve,
    Evidence,
    Finding,
    Kind,
    Number,
    Series,
    Verdict,
)
from fleet.diagnosis_facts import Facts, above, p
from fleet.diagnosis_flows import hot_node, priority_ignored, retry_storm, tenant_crowding
from fleet.diagnosis_queue import concurrency_cap, fifo_mixed_sizes, head_of_line, lack_of_capacity
from fleet.diagnosis_quiet import node_silent
from fleet.diagnosis_steps import prefill_interference, token_budget
from fleet.percentages import percent

#: Findings below this confidence are not named.
NAMED = 0.5
#: Utilization under which a bad tail cannot be for lack of hardware.
LOW_UTILIZATION = 0.4
MIN_SPAN_S = 120.0
STALE_S = 120.0
FULL_USE = 0.85  # median utilization from which hardware may be what lacks, whatever else is found
FAULTS = (Cause.NODE_SILENT, Cause.ENGINE_FROZEN, Cause.METRICS_INCONSISTENT)
#: Named first where confidences tie: what, once mended, most likely mends the others.
ORDER = (
    Cause.NODE_SILENT,
    Cause.ENGINE_FROZEN,
    Cause.METRICS_INCONSISTENT,
    Cause.CONCURRENCY_CAP,
    Cause.STATIC_BATCHING,
    Cause.HEAD_OF_LINE,
    Cause.RETRY_STORM,
    Cause.TENANT_CROWDING,
    Cause.HOT_NODE,
    Cause.KV_OVERSUBSCRIPTION,
    Cause.PRIORITY_IGNORED,
    Cause.TOKEN_BUDGET,
    Cause.PREFILL_INTERFERENCE,
    Cause.CAPACITY,
    Cause.FIFO_MIXED_SIZES,
)


def diagnose(evidence: Evidence) -> Verdict:
    """Return the verdict on `evidence`, findings ranked. Never raises for missing data: that is said."""
    facts = Facts(evidence)
    silence = _silence(evidence, facts)
    if silence is not None:
        return silence
    findings = _ranked(_without_echoes(facts, _findings(facts)))
    curve = utilization_curve(facts)
    kind = _kind(facts, findings, curve)
    return Verdict(
        kind,
        _sentence(facts, kind, findings, curve),
        findings,
        curve,
        _numbers(facts),
        _cannot_tell(facts),
    )


def _silence(evidence: Evidence, facts: Facts) -> Verdict | None:
    """Return the verdict of an interval that holds too little, None when it holds enough."""
    newest = evidence.last_sample_s
    ago_s = None if newest is None else evidence.until_s - newest
    if not any(e.windows or e.still for e in facts.engines) or (ago_s is not None and ago_s > STALE_S):
        words = "no sample was ever stored" if ago_s is None else f"no samples for {ago_s / 60:.0f} minutes"
        dead = node_silent(facts)
        if dead is not None:
            return Verdict(Kind.FAULT, f"Something is broken: {dead.title}.", (dead,), cannot_tell=(words,))
        return Verdict(Kind.UNKNOWN, f"Cannot say: {words}.", cannot_tell=(words,))
    covered = max(sum(t.window.length_s for t in e.evidence.windows) for e in facts.engines)
    if covered < MIN_SPAN_S:
        words = f"{math.floor(covered)} s of samples are too few, {MIN_SPAN_S:.0f} s are needed"
        return Verdict(Kind.UNKNOWN, f"Cannot say yet: {words}.", cannot_tell=(words,))
    return None


def _findings(facts: Facts) -> list[Finding]:
    found: list[Finding | None] = [node_silent(facts), frozen(facts), inconsistent(facts)]
    found += [tenant_crowding(facts), retry_storm(facts), priority_ignored(facts), lack_of_capacity(facts)]
    for pool in facts.pools:
        found += [
            concurrency_cap(facts, pool),
            static_batching(facts, pool),
            head_of_line(facts, pool),
            fifo_mixed_sizes(facts, pool),
            kv_oversubscription(facts, pool),
            hot_node(facts, pool),
            token_budget(facts, pool),
            prefill_interference(facts, pool),
        ]
    return [f for f in found if f is not None and f.confidence >= NAMED]


def _without_echoes(facts: Facts, findings: list[Finding]) -> list[Finding]:
    """Drop findings that another one explains, and those about numbers known to be wrong."""
    causes = {f.cause for f in findings}
    dropped: set[Cause] = set()
    if Cause.RETRY_STORM in causes and _fits_without_retries(facts):
        dropped.add(Cause.CAPACITY)
    if causes & {Cause.CONCURRENCY_CAP, Cause.STATIC_BATCHING, Cause.TOKEN_BUDGET} and _has_hardware(facts):
        dropped.add(Cause.CAPACITY)
    if Cause.TOKEN_BUDGET in causes:
        dropped.add(Cause.PREFILL_INTERFERENCE)
    if Cause.STATIC_BATCHING in causes:
        dropped |= {Cause.FIFO_MIXED_SIZES, Cause.CONCURRENCY_CAP}
    if Cause.CAPACITY in causes - dropped:
        dropped |= {Cause.FIFO_MIXED_SIZES}
    return [f for f in findings if f.cause not in dropped]


def _has_hardware(facts: Facts) -> bool:
    demand, hardware = facts.offered_rate, facts.expected_hardware_rate
    return demand is not None and hardware is not None and demand < 0.85 * hardware


def _fits_without_retries(facts: Facts) -> bool:
    originals = [f.total(lambda s: s.originals) for f in facts.flows]
    known, mu, seconds = [n for n in originals if n is not None], facts.service_rate, facts.flow_seconds
    return bool(known) and mu is not None and seconds > 0 and sum(known) / seconds < 0.97 * mu


def _ranked(findings: list[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda f: (-round(f.confidence, 1), ORDER.index(f.cause))))


def utilization_curve(facts: Facts) -> Curve | None:
    """Return p10, p50 and p90 of utilization over engines and minutes, None without any capacity."""
    points = [(at_s, rho) for e in facts.engines for at_s, rho in e.utilization()]
    if not points:
        return None
    values = np.asarray([rho for _, rho in points], np.float64)
    p10, p50, p90 = (float(v) for v in np.quantile(values, (0.1, 0.5, 0.9)))
    minutes = [
        (at_s, float(np.median([rho for _, rho in group]))) for at_s, group in in_buckets(points, _when)
    ]
    return Curve(p10, p50, p90, len(points), Series("utilization, median engine", "ratio", tuple(minutes)))


def _when(point: tuple[float, float]) -> float:
    return point[0]


def _kind(facts: Facts, findings: tuple[Finding, ...], curve: Curve | None) -> Kind:
    causes = {f.cause for f in findings}
    if Cause.CAPACITY in causes:
        return Kind.CAPACITY
    if causes - set(FAULTS):
        return Kind.SCHEDULING
    if causes:
        return Kind.FAULT
    if facts.is_bad is None:
        return Kind.UNKNOWN
    if not facts.is_bad:
        return Kind.HEALTHY
    return Kind.SCHEDULING if curve is not None and curve.p50 < LOW_UTILIZATION else Kind.UNKNOWN


def _sentence(facts: Facts, kind: Kind, findings: tuple[Finding, ...], curve: Curve | None) -> str:
    use = (
        ""
        if curve is None
        else f" The hardware was used at {percent(curve.p50)} (median of engines and minutes)."
    )
    first = findings[0].title if findings else ""
    match kind:
        case Kind.CAPACITY:
            lack = next(f for f in findings if f.cause is Cause.CAPACITY).title
            broken = next((f" Beside it {f.title}." for f in findings if f.cause in FAULTS), "")
            return f"A lack of capacity: {lack}.{broken}{use}"
        case Kind.SCHEDULING if findings:
            return _scheduling(findings, curve) + use
        case Kind.SCHEDULING:
            return f"A scheduling problem whose cause does not show in these numbers.{use}"
        case Kind.FAULT:
            return f"Something is broken: {first}.{use}"
        case Kind.HEALTHY:
            return f"Nothing is wrong: requests start and stream as promised.{use}"
        case Kind.UNKNOWN:
            said = "requests are slow" if facts.is_bad else "no latency was exported"
            return f"Cannot say: {said}, and no cause shows its signature.{use}"


def _scheduling(findings: tuple[Finding, ...], curve: Curve | None) -> str:
    """Return what is scheduled badly; what is broken beside it comes first and is not called scheduling."""
    broken = [f.title for f in findings if f.cause in FAULTS]
    found = next(f.title for f in findings if f.cause not in FAULTS)
    if broken:
        return f"Something is broken: {broken[0]}. Beside it a scheduling problem: {found}."
    # engines in full use are no proof that hardware is not what lacks
    spare = "" if curve is not None and curve.p50 >= FULL_USE else ", not a lack of hardware"
    return f"A scheduling problem{spare}: {found}."


def _numbers(facts: Facts) -> tuple[Number, ...]:
    goals = facts.evidence.goals
    return (
        Number("demand", facts.offered_rate, "requests/s"),
        Number("capacity", facts.service_rate, "requests/s"),
        Number("capacity without settings that bind", facts.hardware_rate, "requests/s"),
        Number("rho", facts.rho, "ratio"),
        Number("first token, p95", p(facts.ttft, 0.95), "s"),
        Number("first token, p99", p(facts.ttft, 0.99), "s"),
        Number("first token, measured at", facts.ttft_at),
        Number("requests later than the goal", above(facts.ttft, goals.ttft_s), "ratio"),
        Number("gap between tokens, p99", p(facts.itl, 0.99), "s"),
        Number("refused", facts.refused_share, "ratio"),
    )


def _cannot_tell(facts: Facts) -> tuple[str, ...]:
    """Say which causes could not be looked for, and what was missing."""
    said: list[str] = []
    engines = facts.engines
    if not facts.flows:
        said.append("tenants, retries and priorities: no gateway counted requests")
    elif all(f.total(lambda s: s.originals) is None for f in facts.flows):
        said.append("retry storm: attempts per request are not exported")
    if all(e.histogram("iteration_tokens") is None for e in engines):
        said.append("token budget and prefill interference: tokens per step are not exported")
    if all(e.histogram("prompt_tokens") is None for e in engines):
        said.append("head-of-line blocking: prompt lengths are not exported")
    if facts.service_rate is None:
        said.append("capacity: too little load, or no time between tokens, to learn it from")
    if all(np.isnan(e.kv).all() for e in engines):
        said.append("KV oversubscription: the use of the KV cache is not exported")
    if facts.evidence.silent:
        said.append(f"anything about {', '.join(facts.evidence.silent)}: nothing was read from there")
    return tuple(said)


def without_series(verdict: Verdict) -> Verdict:
    """Return the verdict without its chart lines, for logs and short answers."""
    curve = None if verdict.utilization is None else replace(verdict.utilization, series=None)
    return replace(
        verdict, utilization=curve, findings=tuple(replace(f, series=()) for f in verdict.findings)
    )
