"""What the gateways' own metrics pages say: per tenant and tier, between two pages.

Counts are requests and tokens, times seconds. Pure: pages in, increments out. A gateway's restart makes
increments the new values; a flow that was not on the page before counts from 0. Prevents: negative
traffic after a gateway's restart, and demand that leaves out what was refused at the door.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from fleet.counters import increment
from fleet.exposition import Caps, Families, read_families
from fleet.histograms import from_cumulative
from fleet.limiters import Limiter
from fleet.readings import Histogram

PREFIX = "rhodeck_gateway_"
#: A thousand tenants in three tiers with two histograms each are 190,000 series.
CAPS = Caps(body_bytes=64 * 1024 * 1024, series=400_000, family_series=200_000)
#: Rows of one gateway and round: more are made-up tenants, for a gateway counts only those of its policy.
FLOWS_MAX = 6_000

Flow = tuple[str, str]  # tenant, tier
_COUNTERS = {
    "offered": PREFIX + "offered_total",
    "dispatched": PREFIX + "dispatched_total",
    "repeated": PREFIX + "repeated_total",
}
_GAUGES = {
    "queued_requests": PREFIX + "queued_requests",
    "in_flight_requests": PREFIX + "in_flight_requests",
    "in_flight_tokens": PREFIX + "in_flight_tokens",
}
_HISTOGRAMS = {"queue_wait_s": PREFIX + "queue_wait_seconds", "ttft_s": PREFIX + "ttft_seconds"}
_OUTCOMES = PREFIX + "requests_total"
_WOULD_REFUSE = PREFIX + "would_refuse_total"
_TOKENS = PREFIX + "tokens_total"
_LIMITERS = frozenset(limiter.value for limiter in Limiter)
_OLDEST_WAIT = PREFIX + "oldest_wait_seconds"
#: Longer waits are no waits: no tier allows an hour.
MAX_WAIT_S = 86_400.0


@dataclass(frozen=True, slots=True)
class FlowReading:
    """Cumulative counters and present gauges of one tenant in one tier at one gateway.

    Keys are our short names; a key that is missing was not on the page.
    """

    counters: dict[str, int] = field(default_factory=dict[str, int])  # offered, dispatched, tokens by kind
    gauges: dict[str, int] = field(default_factory=dict[str, int])
    outcomes: dict[str, int] = field(default_factory=dict[str, int])
    histograms: dict[str, Histogram] = field(default_factory=dict[str, Histogram])
    would_refuse: dict[str, int] = field(default_factory=dict[str, int])  # by limiter in shadow


@dataclass(frozen=True, slots=True)
class GatewayPage:
    """One page of one gateway."""

    flows: dict[Flow, FlowReading]
    process_start_time_s: float | None
    dropped: tuple[str, ...] = ()  # what was left out and why
    oldest_wait_s: dict[str, float] = field(default_factory=dict[str, float])  # by tier; of who waits now
    counts_shadow: bool = False  # it says what limits in shadow let through


@dataclass(frozen=True, slots=True)
class FlowWindow:
    """What one tenant did in one tier at one gateway between two pages. None: unknown."""

    tenant: str
    tier: str
    covered_s: float | None  # None at the first sight of the gateway: gauges only
    offered: int | None = None
    dispatched: int | None = None
    repeated: int | None = None  # of the offered, tries of one that was refused or failed before
    outcomes: dict[str, int] = field(default_factory=dict[str, int])
    would_refuse: dict[str, int] | None = None  # by limiter in shadow
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    queued_requests: int | None = None
    in_flight_requests: int | None = None
    in_flight_tokens: int | None = None
    histograms: dict[str, Histogram] = field(default_factory=dict[str, Histogram])


_NOTHING = FlowWindow(tenant="", tier="", covered_s=None)


def read_gateway_page(body: bytes) -> GatewayPage | None:
    """Return what a gateway's page says, or None if it is no gateway's page. Never raises."""
    families = read_families(body, prefixes=(PREFIX, "process_start_time_seconds"), caps=CAPS)
    is_gateway = any(name.startswith(PREFIX) for name in (*families.samples, *families.declared))
    if families.too_large or not is_gateway:
        return None
    flows = _flows(families)
    started = families.samples.get("process_start_time_seconds")
    oldest = {
        labels["tier"]: value
        for labels, value in families.samples.get(_OLDEST_WAIT, ())
        if "tier" in labels and 0 <= value < MAX_WAIT_S
    }
    if _COUNTERS["repeated"] in families.declared:  # a flow without repetitions has no series of them
        for reading in flows.values():
            reading.counters.setdefault("repeated", 0)
    flows, remarks = _kept(flows, families.remarks())
    counts_shadow = _WOULD_REFUSE in families.declared
    return GatewayPage(flows, started[0][1] if started else None, remarks, oldest, counts_shadow)


def _flows(families: Families) -> dict[Flow, FlowReading]:
    flows: dict[Flow, FlowReading] = defaultdict(FlowReading)
    for name, family in _COUNTERS.items():
        for flow, _, value in _samples(families, family):
            flows[flow].counters[name] = value
    for flow, labels, value in _samples(families, _TOKENS):
        flows[flow].counters[labels.get("kind", "")] = value
    for flow, labels, value in _samples(families, _OUTCOMES):
        flows[flow].outcomes[labels.get("outcome", "")] = value
    for flow, labels, value in _samples(families, _WOULD_REFUSE):
        if labels.get("limiter") in _LIMITERS:
            flows[flow].would_refuse[labels["limiter"]] = value
    for name, family in _GAUGES.items():
        for flow, _, value in _samples(families, family):
            flows[flow].gauges[name] = value
    for name, family in _HISTOGRAMS.items():
        for flow, histogram in _histograms(families, family):
            flows[flow].histograms[name] = histogram
    return dict(flows)


def _kept(
    flows: dict[Flow, FlowReading], remarks: tuple[str, ...]
) -> tuple[dict[Flow, FlowReading], tuple[str, ...]]:
    if len(flows) <= FLOWS_MAX:
        return flows, remarks
    said = f"the page has {len(flows)} tenants and tiers; {FLOWS_MAX} were kept"
    return {flow: flows[flow] for flow in sorted(flows)[:FLOWS_MAX]}, (*remarks, said)


def _samples(families: Families, name: str) -> Iterator[tuple[Flow, Mapping[str, str], int]]:
    """Yield (flow, labels, count) of samples that have a tenant and a tier and are not negative."""
    for labels, value in families.samples.get(name, ()):
        if "tenant" in labels and "tier" in labels and 0 <= value < 2**53:
            yield (labels["tenant"], labels["tier"]), labels, round(value)


def _histograms(families: Families, name: str) -> Iterator[tuple[Flow, Histogram]]:
    buckets: dict[Flow, dict[float, int]] = {}
    for flow, labels, value in _samples(families, f"{name}_bucket"):
        try:
            edge = float(labels.get("le", ""))
        except ValueError:
            continue
        buckets.setdefault(flow, {})[edge] = value
    sums = {
        (labels.get("tenant"), labels.get("tier")): value
        for labels, value in families.samples.get(f"{name}_sum", ())
    }
    for flow, cumulative in buckets.items():
        if inf in cumulative and len(cumulative) > 1:
            bounds = sorted(cumulative)
            histogram = from_cumulative(bounds, [cumulative[b] for b in bounds], sums.get(flow))
            if histogram is not None:
                yield flow, histogram


def gateway_window(before: GatewayPage | None, after: GatewayPage, seconds: float) -> list[FlowWindow]:
    """Return what each flow of `after` did since `before`, read `seconds` (> 0) earlier; None: first sight.

    The gateway restarted when its process start time changed or any of its counters fell: one process,
    one life.
    """
    if before is None:
        return [_gauges_only(flow, reading) for flow, reading in sorted(after.flows.items())]
    restarted = _restarted(before, after)
    nothing = FlowReading()
    return [
        _flow_window(
            flow,
            nothing if restarted else before.flows.get(flow, nothing),
            reading,
            seconds,
            counts_shadow=after.counts_shadow,
        )
        for flow, reading in sorted(after.flows.items())
    ]


def _gauges_only(flow: Flow, reading: FlowReading) -> FlowWindow:
    return replace(_NOTHING, tenant=flow[0], tier=flow[1], **reading.gauges)


def _restarted(before: GatewayPage, after: GatewayPage) -> bool:
    old, new = before.process_start_time_s, after.process_start_time_s
    if old is not None and new is not None and old != new:
        return True
    for flow, reading in before.flows.items():
        now = after.flows.get(flow)
        if now is None:
            return True  # a counter once written stays for the life of the process
        falls = [now.counters.get(name, 0) < value for name, value in reading.counters.items()]
        falls += [now.outcomes.get(name, 0) < value for name, value in reading.outcomes.items()]
        if any(falls):
            return True
    return False


def _flow_window(
    flow: Flow, before: FlowReading, after: FlowReading, seconds: float, *, counts_shadow: bool
) -> FlowWindow:
    def grown(name: str) -> int | None:
        value = after.counters.get(name)
        return None if value is None else int(increment(before.counters.get(name, 0), value))

    has_requests = bool(after.counters or after.outcomes)
    return replace(
        _gauges_only(flow, after),
        covered_s=seconds,
        offered=grown("offered"),
        # a flow whose requests were all refused has no dispatched series yet
        dispatched=grown("dispatched") if "dispatched" in after.counters else 0 if has_requests else None,
        repeated=grown("repeated"),
        outcomes=_grown(before.outcomes, after.outcomes),
        would_refuse=_grown(before.would_refuse, after.would_refuse) if counts_shadow else None,
        prompt_tokens=grown("prompt"),
        output_tokens=grown("output"),
        histograms={
            name: grown_histogram
            for name, histogram in after.histograms.items()
            if (grown_histogram := _histogram_growth(before.histograms.get(name), histogram)) is not None
        },
    )


def _grown(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {
        name: count
        for name, value in after.items()
        if (count := int(increment(before.get(name, 0), value)))
    }


def _histogram_growth(before: Histogram | None, after: Histogram) -> Histogram | None:
    """Return the increments; None where the buckets changed or one of them fell."""
    if before is None:
        return after
    if before.edges != after.edges:
        return None
    counts = tuple(b - a for a, b in zip(before.counts, after.counts, strict=True))
    if min(counts) < 0:
        return None
    total = None if before.sum is None or after.sum is None else after.sum - before.sum
    return Histogram(after.edges, counts, total)
