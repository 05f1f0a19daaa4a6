"""The node page in words: why its rho reads as it does, its rates, its latencies, its capacity.

Pure. Prevents: a quantile quoted beyond what the histogram can say, and a capacity without its method.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from control.freshness import Freshness
from control.queries_fleet import HealthPoint
from control.queries_latency import METRICS, LatencyView, Metric
from control.queries_nodes import BatchPoint, CapacityView, NodeDetail
from dashboard import charts, theme, words
from dashboard.charts import Figure, Line
from dashboard.times import UNKNOWN, Zone, age
from dashboard.viewmodels import Card, freshness_tone
from dashboard.viewmodels_fleet import GRADES, KV_ACT, KV_WATCH, RHO_HELP, rho_tone
from fleet.capacity_limits import latency_rise_at
from fleet.curve_fit import StepCurve
from fleet.health_reading import TARGET_RHO
from fleet.histograms import Quantile

LATENCY_NAMES: dict[Metric, str] = {
    "ttft_s": "Time to first token",
    "itl_s": "Between tokens",
    "queue_wait_s": "Wait in the engine's queue",
    "e2e_s": "End to end",
}
#: What a data-quality remark means to who reads it.
FLAGS: dict[str, str] = {
    "frozen": "the page has not moved although requests run: the engine may hang",
    "stalled": "requests run and nothing is finished",
    "restart": "the engine restarted in this round; increments count from its start",
    "page_lost": "another engine's page of this node gave nothing: sums are of the others only",
    "gauges_only": "the page counts no completions and tokens: no arrivals, no capacity",
}
METHODS: dict[str, str] = {
    "observed_saturation": "seen at saturation",
    "curve": "fitted: inter-token latency against batch",
    "configured": "configured by an operator",
    "sibling": "taken from a node of the same pool",
    "peak_seen": "only a lower bound: the most seen so far",
}


def cards(detail: NodeDetail) -> list[Card]:
    """Return the node's numbers. What a node that is not fresh said last is not shown as present."""
    row = detail.row
    is_fresh = row.freshness is Freshness.FRESH
    seen = "never seen" if row.age_s is None else f"last sample {age(row.age_s)} ago"
    state = Card("State", row.freshness.value, row.state, freshness_tone(row.freshness), seen)
    if is_fresh and "frozen" in row.flags:
        state = Card("State", "frozen", "nothing moves", "act", f"requests run; {seen}")
        is_fresh = False
    tone, word = rho_tone(row.rho, row.rho_low)
    notes = [words.interval(row.rho_low, row.rho_high)]
    notes += [f"grade {row.grade}, {GRADES.get(row.grade, '')}"] if row.grade else []
    notes += [f"bound by {row.binding}"] if row.binding else []
    rho = Card("rho", words.ratio(row.rho), word, tone, "; ".join(n for n in notes if n), RHO_HELP)
    running, waiting = (row.running, row.waiting) if is_fresh else (None, None)
    requests = Card(
        "Running / waiting",
        f"{words.count(running)} / {words.count(waiting)}",
        "requests" if is_fresh else "not known",
        "plain" if is_fresh else "unknown",
        f"{words.plural(row.engines, 'engine')} on this node",
    )
    return [state, rho, requests, _kv(row.kv_used_ratio if is_fresh else None, row), _preemptions(detail)]


def _kv(used: float | None, row: Any) -> Card:
    if used is None:
        return Card("KV cache used", UNKNOWN, "not known", "unknown")
    tone = "act" if used >= KV_ACT else "watch" if used >= KV_WATCH else "good"
    word = {"act": "nearly full", "watch": "high", "good": "has room"}[tone]
    note = (
        f"{words.count(row.kv_used_tokens)} of {words.count(row.kv_capacity_tokens)} tokens"
        if row.kv_capacity_tokens
        else ""
    )
    return Card("KV cache used", words.percent(used, 0), word, tone, note)  # type: ignore[arg-type]


def _preemptions(detail: NodeDetail) -> Card:
    known = [p.preemptions for p in detail.points if p.preemptions is not None]
    label, help_ = (
        "Preemptions",
        "Requests thrown out of the batch for want of KV blocks and computed again.",
    )
    if not known:
        return Card(label, UNKNOWN, "not known", "unknown", "in the chosen range, at most an hour", help_)
    total = sum(known)
    return Card(
        label,
        words.count(total),
        "KV short" if total else "none",
        "watch" if total else "good",
        "in the chosen range, at most an hour",
        help_,
    )


def why(detail: NodeDetail) -> list[str]:
    """Return why rho reads as it does, each formula with its values, as plain lines."""
    if detail.row.freshness is not Freshness.FRESH:
        seen = age(detail.row.age_s) if detail.row.age_s is not None else ""
        said = f"its last sample is {seen} old" if seen else "it was never seen"
        return [f"rho is unknown: {said}. Its capacity and load are in no sum until it answers."]
    if detail.health is None:
        return ["There is no verdict about this node in the last hour."]
    lines = [str(line) for line in detail.health.detail.get("explanation", ())]
    if detail.health.is_stale:
        lines.insert(0, f"This verdict is {age(detail.health.age_s)} old.")
    return lines or ["The verdict came without an explanation."]


def quality(detail: NodeDetail, at: datetime, zone: Zone) -> list[str]:
    """Return remarks about the data: flags in words, and the last failed scrape with its reason."""
    row = detail.row
    lines = [f"{flag}: {FLAGS.get(flag, 'see docs/metrics.md')}" for flag in row.flags]
    failed = [p for p in detail.points if p.failure is not None]
    if failed:
        lines.append(
            f"{words.plural(len(failed), 'round')} without a sample in the chosen range, at most an hour"
        )
    if row.last_failure_at is not None:
        said = f" ({row.last_failure_detail})" if row.last_failure_detail else ""
        lines.append(
            f"last failed scrape {zone.since(row.last_failure_at, at)}: {row.last_failure_reason}{said}"
        )
    if row.freshness is not Freshness.FRESH and row.age_s is not None:
        lines.insert(0, f"No sample for {age(row.age_s)}: nothing is known of the node since.")
    return lines or ["Nothing to remark: every round of the chosen range, at most an hour, has a sample."]


def latency_rows(views: dict[Metric, LatencyView]) -> dict[str, list[Any]]:
    """Return the latency table by column, with how far each row can be trusted."""
    rows = [views[m] for m in METRICS if m in views]
    return {
        "latency": [LATENCY_NAMES[v.metric] for v in rows],
        "p50": [words.quantile(v.p50) for v in rows],
        "p95": [words.quantile(v.p95) for v in rows],
        "p99": [words.quantile(v.p99) for v in rows],
        "p99.9": [words.quantile(v.p999) for v in rows],
        "mean": [words.seconds(v.mean_s) for v in rows],
        "requests": [v.count for v in rows],
        "note": [_trust(v) for v in rows],
    }


def _trust(view: LatencyView) -> str:
    if view.count == 0:
        return "edges of sources differ: not added up" if view.edges_differ else "no observations"
    named: list[tuple[str, Quantile | None]] = [
        ("p50", view.p50),
        ("p95", view.p95),
        ("p99", view.p99),
        ("p99.9", view.p999),
    ]
    few = [name for name, q in named if q is not None and q.too_few]
    above = [name for name, q in named if q is not None and q.is_censored]
    said = [f"too few observations for {', '.join(few)}"] if few else []
    said += [f"{', '.join(above)} above the last bucket"] if above else []
    return "; ".join(said) or "enough observations"


def rates_figure(points: Sequence[HealthPoint], zone: Zone) -> Figure:
    """Return lambda, mu and X of the node over time."""
    return charts.timeline(
        [p.at for p in points],
        [
            Line("capacity mu", [p.service_rate for p in points], theme.ORANGE, "dash"),
            Line("arrivals lambda", [p.arrival_rate for p in points], theme.BLUE),
            Line("finished X", [p.throughput for p in points], theme.GREEN, "dot"),
        ],
        zone,
        title="Arrivals, capacity, completions",
        unit="req/s",
        summary="arrival rate, service capacity and throughput of the node over time",
    )


def rho_figure(points: Sequence[HealthPoint], zone: Zone) -> Figure:
    """Return rho of the node over time with its interval."""
    return charts.timeline(
        [p.at for p in points],
        [Line("rho", [p.rho for p in points], theme.BLUE)],
        zone,
        title="rho",
        unit="ratio",
        summary="rho of the node over time",
        limit=(TARGET_RHO, f"{TARGET_RHO:g}, alert after 2 min"),
        band=([p.rho_low for p in points], [p.rho_high for p in points]),
    )


def requests_figure(points: Sequence[HealthPoint], zone: Zone) -> Figure:
    """Return running and waiting requests over time."""
    return charts.timeline(
        [p.at for p in points],
        [
            Line("running", [p.running for p in points], theme.BLUE),
            Line("waiting", [p.waiting for p in points], theme.RED),
        ],
        zone,
        title="Running and waiting",
        unit="requests",
        summary="running and waiting requests of the node over time",
    )


def kv_figure(points: Sequence[HealthPoint], zone: Zone) -> Figure:
    """Return the KV cache in use over time, percent."""
    return charts.timeline(
        [p.at for p in points],
        [
            Line(
                "KV used",
                [None if p.kv_used_ratio is None else 100 * p.kv_used_ratio for p in points],
                theme.PURPLE,
            )
        ],
        zone,
        title="KV cache used",
        unit="%",
        summary="share of KV blocks in use over time",
        limit=(100 * KV_WATCH, "admission's target"),
    )


def capacity_lines(views: Sequence[CapacityView]) -> list[str]:
    """Return each engine's capacity as a sentence: value, interval, method, grade."""
    return [
        f"Engine {v.engine}: {_mu(v)}, {METHODS.get(v.method, v.method)}"
        + (f", grade {v.grade}" if v.grade else "")
        + (f", bound by {v.binding}" if v.binding else "")
        + (
            f"; largest batch seen is {words.percent(v.reach_ratio, 0)} of the operating batch"
            if v.reach_ratio
            else ""
        )
        + _rise(v)
        + f" ({age(v.age_s)} old)"
        for v in views
    ] or ["No capacity estimate yet: it needs some minutes of load, or a configured rate for the pool."]


def _mu(view: CapacityView) -> str:
    if view.service_rate is None:
        return "capacity not known"
    low, high = view.service_rate_low, view.service_rate_high
    band = f" ({words.number(low)} to {words.number(high)})" if low is not None and high is not None else ""
    return f"{words.rate(view.service_rate)}{band}"


def capacity_figure(scatter: Sequence[BatchPoint], views: Sequence[CapacityView]) -> Figure:
    """Return the windows' (batch, inter-token latency) and the first engine's fitted curve, if any."""
    fit = None
    reach = max((p.batch for p in scatter), default=0.0)
    for view in views:
        curve = _curve(view)
        if curve is not None and scatter:
            operating = float(view.detail.get("operating_batch") or reach)
            fit = _fit(curve, max(reach, operating))
            break
    return charts.capacity_scatter(
        [p.batch for p in scatter],
        [p.itl_s for p in scatter],
        fit,
        summary=f"{len(scatter)} windows of inter-token latency against batch"
        + (", with the fitted curve" if fit else ", no fit yet"),
    )


def _curve(view: CapacityView) -> StepCurve | None:
    """Return an engine's fitted step time, None without one."""
    kept: dict[str, Any] | None = view.detail.get("curve")
    if not kept:
        return None
    slope = float(kept["slope_s"])
    return StepCurve(float(kept["intercept_s"]), slope, kept["knee"], float(kept["last_slope_s"]) - slope)


def _rise(view: CapacityView) -> str:
    """Return how much slower tokens come at the target than alone, as part of a sentence; "" if unknown."""
    curve, operating = _curve(view), view.detail.get("operating_batch")
    rise = None if curve is None or operating is None else latency_rise_at(curve, operating, TARGET_RHO)
    return (
        "" if rise is None else f"; at rho {TARGET_RHO:g} a token takes {rise:.1f} times as long as alone"
    )


def _fit(known: StepCurve, to: float) -> tuple[list[float], list[float]]:
    batches = [to * i / 20 for i in range(21)]
    return batches, [known.step_time_s(b) for b in batches]


def place(detail: NodeDetail) -> str:
    """Return where the node stands: pool, price class, models, address, and who scrapes it if we do not."""
    row = detail.row
    models = ", ".join(row.models) or "model not known"
    said = words.plain(f"pool {row.pool}; {row.price_class.replace('_', ' ')}; {models}; ")
    read = "" if row.source == "direct" else words.plain(f", read from {row.source}")
    return f"{said} `{row.base_url.replace('`', '')}`{read}"
