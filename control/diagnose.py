"""Gathers the evidence of an interval from the database and has it diagnosed.

Reads samples, gateway samples, capacity estimates, launch settings and the policy; writes nothing. Times
are UTC, seconds otherwise. Prevents: a verdict on half the fleet that does not say which half was missing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError
from sqlalchemy import RowMapping, func, select
from sqlalchemy.orm import Session

from control import queries_policy
from control.diagnose_flows import flow_rounds
from control.diagnose_pages import competing
from control.quiet_nodes import quiet_nodes
from control.tables import (
    CapacityEstimateRow,
    HistogramEdgesRow,
    NodeRow,
    PoolRow,
    SampleRow,
)
from fleet.curve_fit import StepCurve
from fleet.diagnosis import diagnose
from fleet.diagnosis_evidence import (
    EngineCapacity,
    EngineEvidence,
    Evidence,
    FlowEvidence,
    FlowSlice,
    Goals,
    Launch,
    Verdict,
)
from fleet.errors import InvalidInput
from fleet.health_reading import TimedWindow
from fleet.histograms import merge
from fleet.outcomes import Tier
from fleet.policy import Policy, parse
from fleet.readings import EngineWindow, Histogram

DEFAULT_SPAN = timedelta(minutes=15)
MIN_SPAN, MAX_SPAN = timedelta(minutes=3), timedelta(hours=6)
#: Samples one diagnosis reads at most: 15 minutes of 1,000 engines, 6 hours of 50.
MAX_SAMPLES = 110_000
#: Histogram -> prefix of its columns and of its sum.
_HISTOGRAMS = {
    "ttft_s": ("ttft", "sum_s"),
    "itl_s": ("itl", "sum_s"),
    "queue_wait_s": ("queue_wait", "sum_s"),
    "e2e_s": ("e2e", "sum_s"),
    "prompt_tokens": ("prompt_len", "sum_tokens"),
    "generation_tokens": ("output_len", "sum_tokens"),
    "iteration_tokens": ("step", "sum_tokens"),
}
_COUNTS = (
    "arrivals", "completed", "errors", "aborted", "prompt_tokens", "prompt_tokens_computed",
    "generation_tokens", "preemptions", "prefix_cache_hits", "prefix_cache_queries", "running", "waiting",
    "waiting_capacity", "kv_used_ratio", "kv_capacity_tokens",
)  # fmt: skip
_UNITS = {"s": 1, "m": 60, "h": 3600}
Edges = Mapping[int, tuple[float, ...]]


def diagnosis(session: Session, now: datetime, span: timedelta = DEFAULT_SPAN) -> Verdict:
    """Return the verdict on the last `span`. Raises InvalidInput when it is too short, long or much."""
    return diagnose(gather(session, now - checked_span(span), now))


def checked_span(span: timedelta) -> timedelta:
    """Return `span` when it can be diagnosed. Raises InvalidInput outside 3 minutes to 6 hours."""
    if not MIN_SPAN <= span <= MAX_SPAN:
        raise InvalidInput(
            f"{span.total_seconds() / 60:.0f} minutes cannot be diagnosed",
            field="since",
            hint=f"Give from {MIN_SPAN.seconds // 60} minutes to {MAX_SPAN.seconds // 3600} hours",
        )
    return span


def span_of(text: str) -> timedelta:
    """Read "90s", "15m" or "2h". Raises InvalidInput for anything else."""
    number, unit = text[:-1], text[-1:]
    if unit in _UNITS and number.isascii() and number.isdigit() and 0 < len(number) < 7:
        return timedelta(seconds=int(number) * _UNITS[unit])
    raise InvalidInput(f"{text!r} is no length of time", field="since", hint="Give it as 15m, 2h or 300s")


def gather(session: Session, since: datetime, until: datetime) -> Evidence:
    """Return the evidence of (since, until]. Nodes in maintenance are left out; a silent node is named."""
    nodes = {
        name: pool
        for name, pool in session.execute(
            select(NodeRow.name, NodeRow.pool).where(NodeRow.state.in_(("active", "draining")))
        )
    }
    edges = {
        id_: tuple(bounds)
        for id_, bounds in session.execute(select(HistogramEdgesRow.id, HistogramEdgesRow.edges))
    }
    windows = _windows(session, nodes, since, until, edges)
    launches = _launches(session)
    capacities = _capacities(session)
    engines = tuple(
        EngineEvidence(
            node,
            engine,
            nodes[node],
            tuple(found),
            launches.get(nodes[node], Launch()),
            capacities.get((node, engine)),
        )
        for (node, engine), found in sorted(windows.items())
    )
    head = queries_policy.head(session)
    policy = None if head is None else _policy(head.document)
    seen = {node for node, _ in windows}
    newest = session.scalar(select(func.max(SampleRow.at)).where(SampleRow.at > until - timedelta(days=2)))
    return Evidence(
        since_s=since.timestamp(),
        until_s=until.timestamp(),
        engines=engines,
        flows=_flows(session, since, until, edges, policy),
        goals=Goals() if policy is None else Goals(policy.slo.ttft_s, policy.slo.attainment_ratio),
        order=None if policy is None else policy.admission.order,
        silent=tuple(sorted(nodes.keys() - seen)),
        quiet=quiet_nodes(session, since, until),
        last_sample_s=None if newest is None else newest.timestamp(),
    )


def _policy(document: dict[str, Any]) -> Policy | None:
    try:
        return parse(document)
    except ValidationError:  # written by a newer version
        return None


def _windows(
    session: Session, nodes: Mapping[str, str], since: datetime, until: datetime, edges: Edges
) -> dict[tuple[str, str], list[TimedWindow]]:
    s = SampleRow
    where = (s.at > since, s.at <= until, s.covered_s.is_not(None), s.node.in_(list(nodes)))
    count = session.scalar(select(func.count()).select_from(s).where(*where)) or 0
    if count > MAX_SAMPLES:
        raise InvalidInput(
            f"{count} samples are too many for one diagnosis ({MAX_SAMPLES})",
            field="since",
            hint="Choose a shorter interval",
        )
    names = [
        "at", "node", "engine", "model", "covered_s", "restarted", "flags",
        "inference_sum_s", "inference_count", *_COUNTS,
        *(f"{name}_{part}" for name, total in _HISTOGRAMS.values() for part in ("edges", "counts", total)),
    ]  # fmt: skip
    columns = [s.__table__.c[name] for name in names]
    rows = session.execute(
        select(*columns).where(*where).order_by(s.node, s.engine, s.at).execution_options(yield_per=2_000)
    )
    found: dict[tuple[str, str], list[TimedWindow]] = defaultdict(list)
    for row in rows.mappings():
        found[row["node"], row["engine"]].append(_window(row, edges))
    return dict(found)


def _window(row: Mapping[Any, Any], edges: Edges) -> TimedWindow:
    histograms: dict[str, Histogram] = {}
    for name, (prefix, total) in _HISTOGRAMS.items():
        kept = _histogram(row, prefix, total, edges)
        if kept is not None:
            histograms[name] = kept
    if row["inference_count"] is not None:
        histograms["inference_s"] = Histogram((), (row["inference_count"],), row["inference_sum_s"])
    counts = {name: row[name] for name in _COUNTS}
    window = EngineWindow(
        engine=row["engine"],
        model=row["model"],
        length_s=row["covered_s"],
        restarted=row["restarted"],
        histograms=histograms,
        flags=tuple(row["flags"]),
        **counts,
    )
    return TimedWindow(row["at"].timestamp(), window)


def _histogram(row: Mapping[Any, Any], prefix: str, total: str, edges: Edges) -> Histogram | None:
    bounds, counts = edges.get(row[f"{prefix}_edges"] or 0), row[f"{prefix}_counts"]
    if bounds is None or counts is None or len(counts) != len(bounds) + 1:
        return None
    return Histogram(bounds, tuple(counts), row[f"{prefix}_{total}"])


def _launches(session: Session) -> dict[str, Launch]:
    p = PoolRow
    rows = session.execute(
        select(p.name, p.max_num_seqs, p.max_num_batched_tokens, p.scheduling_policy, p.chunked_prefill)
    )
    return {name: Launch(seqs, tokens, policy, chunked) for name, seqs, tokens, policy, chunked in rows}


def _capacities(session: Session) -> dict[tuple[str, str], EngineCapacity]:
    """Return learnt capacities; an engine without a curve is absent: its windows are asked instead."""
    found: dict[tuple[str, str], EngineCapacity] = {}
    for row in session.scalars(select(CapacityEstimateRow)):
        curve: dict[str, float] | None = row.detail.get("curve")
        mix: dict[str, float] = row.detail.get("mix", {})
        limits: dict[str, float] = row.detail.get("limits", {})
        if curve is None or row.service_rate is None:
            continue
        batch: float | None = row.detail.get("operating_batch")
        reached = row.reach_ratio * batch if row.reach_ratio is not None and batch is not None else None
        knee, slope = curve.get("knee"), curve["slope_s"]
        extra = curve.get("last_slope_s", slope) - slope if knee is not None else 0.0
        found[row.node, row.engine] = EngineCapacity(
            requests_per_s=row.service_rate,
            low_requests_per_s=row.service_rate_low,
            high_requests_per_s=row.service_rate_high,
            decode_events=mix.get("decode_events"),
            curve=StepCurve(curve["intercept_s"], slope, knee, extra),
            reached=reached,
            kv_batch=limits.get("kv"),
            grade=row.grade or None,
        )
    return found


def _flows(
    session: Session, since: datetime, until: datetime, edges: Edges, policy: Policy | None
) -> tuple[FlowEvidence, ...]:
    rows = flow_rounds(session, since, until, max(map(len, edges.values()), default=0) + 1)
    rounds: dict[tuple[str, str], dict[datetime, list[RowMapping]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        rounds[row["tenant"], row["tier"]][row["at"]].append(row)
    return tuple(
        FlowEvidence(
            tenant,
            tier,
            tuple(_slice(at, parts, edges) for at, parts in sorted(by_round.items())),
            *_standing(policy, tenant, tier),
        )
        for (tenant, tier), by_round in sorted(rounds.items())
    )


def _standing(policy: Policy | None, tenant: str, tier: str) -> tuple[float | None, int | None]:
    """Return (weight of the tenant, priority sent to the engine) as the policy says."""
    if policy is None:
        return None, None
    known = policy.tenant(tenant)
    is_tier = tier in {t.value for t in Tier}
    return (
        None if known is None else float(known.weight),
        policy.tiers[Tier(tier)].engine_priority if is_tier else None,
    )


def _slice(at: datetime, parts: Sequence[RowMapping], edges: Edges) -> FlowSlice:
    """Return one flow's round, all gateways together; a count that one of them lacks is unknown."""

    def total(name: str) -> int | None:
        values = [part[name] for part in parts]
        return None if any(value is None for value in values) else sum(values)

    def merged(prefix: str) -> Histogram | None:
        found = [_histogram(row, prefix, "sum_s", edges) for row in parts]
        return merge([h for h in found if h is not None])

    outcomes: Counter[str] = Counter()
    for row in parts:
        for told in row["outcomes"]:
            outcomes.update({name: int(n) for name, n in told.items()})
    asked = competing(total("offered"), total("repeated"), outcomes)
    return FlowSlice(
        at.timestamp(),
        max(row["covered_s"] or 0.0 for row in parts),
        offered=asked.offered,
        dispatched=total("dispatched"),
        refused=asked.refused,
        originals=asked.originals,
        prompt_tokens=total("prompt_tokens"),
        output_tokens=total("output_tokens"),
        queued=total("queued_requests"),
        in_flight=total("in_flight_requests"),
        queue_wait=merged("queue_wait"),
        ttft=merged("ttft"),
    )
