"""The fleet page in words: five numbers, what needs attention, what changed, the node table, traffic.

Pure. Ratios are 0..1. A number some part of which is not known says so; it is never made up. Prevents: a
fleet called healthy because its silent nodes were left out, and rho read without its grade.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from control.freshness import Freshness
from control.queries_fleet import HealthView
from control.queries_gateway_traffic import TenantTraffic
from control.queries_nodes import NodeRowView
from dashboard import words
from dashboard.data import FleetNow, Traffic
from dashboard.times import UNKNOWN, age
from dashboard.viewmodels import (
    NOT_HEARD,
    Card,
    last_known,
    node_state_text,
)
from dashboard.words import Tone
from fleet.health_reading import TARGET_RHO
from fleet.load import OWN_LIMITS

#: Shares of refused requests and of KV memory from which a number is worth a look, or action.
REFUSED_WATCH, REFUSED_ACT = 0.01, 0.10
KV_WATCH, KV_ACT = 0.85, 0.95
RHO_LIMITED_SHOWN = 0.01  # what refusals by tenants' own limits would add to rho
ALERTS_SHOWN = 6  # of them, among what needs attention; the Alerts page has all
TTFT_GOOD_S = 0.5  # the default objective: p95 under 500 ms

#: Why a node gave no sample, as people say it.
FAILURES: dict[str, str] = {
    "refused": "refused the connection",
    "timeout": "did not answer in time",
    "too_large": "sent too large a page",
    "not_metrics": "sent something else than metrics",
    "no_engine_series": "had no engine on its page",
    "router": "turned out to be a router",
    "http_error": "answered with an HTTP error",
    "unreachable": "could not be reached",
    "blocked": "has an address that may not be asked",
    "source_down": "could not be read: its Prometheus does not answer",
    "not_in_source": "is unknown to its Prometheus",
    "target_down": "cannot be scraped by its Prometheus",
}
GRADES: dict[str, str] = {
    "A": "well measured",
    "B": "measured",
    "C": "estimated from little load",
    "D": "not identifiable",
}
#: What rho rests on where nobody measured it, so that there is no grade.
UNGRADED: dict[str, str] = {
    "configured": "on a configured capacity, not a measured one",
    "sibling": "on the capacity of nodes like these",
    "mixed": "on capacities that were not all measured",
}
RHO_HELP = (
    "rho = arrival rate / service capacity. Capacity is what busy nodes could finish at the present mix, "
    f"not what they finished. Above {TARGET_RHO:g} for two minutes an alert opens."
)


def cards(now: FleetNow, *, is_last_known: bool = False) -> list[Card]:
    """Return the five numbers of the first row; without a verdict if they are only the last known ones."""
    found = _cards(now)
    return last_known(found) if is_last_known else found


def _cards(now: FleetNow) -> list[Card]:
    stopped_s = now.health.age_s if now.health is not None and now.health.is_stale else None
    return [
        rho_card(now.health, has_gateways=bool(now.gateways)),
        _ended(_ttft(now), stopped_s),
        _ended(_refused(now.traffic), stopped_s),
        _queued(now),
        _kv(now.nodes),
    ]


def _ended(card: Card, stopped_s: float | None) -> Card:
    """Return a card over ten minutes; without new rounds it is no verdict about the present."""
    if stopped_s is None or card.value == UNKNOWN:
        return card
    return replace(
        card, tone="unknown", word="stale", note=f"{card.note}, none for {age(stopped_s)}".lstrip(", ")
    )


def rho_tone(rho: float | None, low: float | None) -> tuple[Tone, str]:
    """Return how a rho looks and its word; where only the interval passes the target it is a watch."""
    if rho is None:
        return "unknown", "not known"
    if rho > 1:
        return "act", "overloaded"
    if rho > TARGET_RHO:
        return ("act", "past 0.85") if low is not None and low > TARGET_RHO else ("watch", "past 0.85")
    return "good", "has room"


def rho_card(health: HealthView | None, *, has_gateways: bool = False) -> Card:
    """Return the fleet's rho with its interval, its grade, and what it leaves out.

    Where there are gateways and none was counted, it is what reached engines: a lower bound, never room.
    """
    if health is None:
        return Card("Fleet rho", UNKNOWN, "no verdict yet", "unknown", help=RHO_HELP)
    if health.is_stale:
        note = f"last known {words.ratio(health.rho)}, {age(health.age_s)} ago"
        return Card("Fleet rho", UNKNOWN, "stale", "unknown", note, RHO_HELP)
    tone, word = rho_tone(health.rho, health.rho_low)
    notes = [words.interval(health.rho_low, health.rho_high)]
    if health.grade:
        notes.append(f"grade {health.grade}, {GRADES.get(health.grade, '')}")
    elif health.rho is not None:
        notes.append(UNGRADED.get(health.method or "", ""))
    is_floor = has_gateways and health.rho is not None and health.detail.get("arrivals_from") == "engines"
    if is_floor:
        notes.append("gateways not counted: without what they refuse and hold")
        tone, word = ("unknown", "at least") if tone == "good" else (tone, word)
    silence = silence_note(health)
    if silence is not None:
        tone, word = rho_tone(rho_heard(health), None)
        tone, word = ("unknown", "at least") if tone != "act" else (tone, word)
        notes[0] = silence
    added = health.detail.get("rho_limited")
    if added is not None and added >= RHO_LIMITED_SHOWN:
        notes.append(f"without {added:.2f} that tenants' own limits refused")
    if health.rho is None:
        notes.append("capacity is learned from some minutes of load")
    if health.partial and health.missing_nodes:
        notes.append("partial: " + _some(health.missing_nodes))
    elif health.partial and silence is None and health.rho is not None:
        notes.append("partial: some nodes unknown")
    shown = ("\u2265 " if is_floor or silence is not None else "") + words.ratio(rho_heard(health))
    return Card("Fleet rho", shown, word, tone, "; ".join(n for n in notes if n), RHO_HELP)


def rho_heard(health: HealthView) -> float | None:
    """Return rho by the demand that gateways told: all of it, or what the ones not silent make sure."""
    least = health.detail.get("rho_heard")
    return health.rho if least is None else float(least)


def silence_note(health: HealthView) -> str | None:
    """Return which gateways count in a rho as they were when last heard; None where all were heard."""
    silent: dict[str, float] = health.detail.get("silent_gateways", {})
    if not silent or health.rho is None or health.detail.get("rho_heard") is None:
        return None
    named = _some([f"{name} silent for {age(age_s)}" for name, age_s in silent.items()])
    return f"{named}: {words.ratio(health.rho)} with what was told last"


def _some(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")


def _ttft(now: FleetNow) -> Card:
    """Return what users waited for a first token: at the gateways where they say, else at engines."""
    help_ = (
        "95th percentile, all requests together. At the gateways it holds their queues and the way to the "
        "engine and back; at the engines it does not."
    )
    engines, door = now.latency.get("ttft_s"), now.door_ttft
    at_door = door is not None and door.p95 is not None
    view = door if at_door else engines
    label = "TTFT p95 at gateways, 10 min" if at_door else "TTFT p95 at engines, 10 min"
    if view is None or view.p95 is None:
        return Card(label, UNKNOWN, "no requests", "unknown", "nothing measured in 10 min", help_)
    tone: Tone = "good" if not view.p95.is_censored and view.p95.estimate <= TTFT_GOOD_S else "watch"
    word = "within 500 ms" if tone == "good" else "over 500 ms"
    note = f"of {words.count(view.count)} requests"
    if at_door and engines is not None and engines.p95 is not None:
        note += f"; at the engines {words.quantile(engines.p95)}"
    if view.p95.too_few:
        tone, word = "unknown", "too few to say"
    return Card(label, words.quantile(view.p95).removesuffix(" (few)"), word, tone, note, help_)


def refused_share(traffic: Sequence[TenantTraffic]) -> tuple[int, int] | None:
    """Return (refused, offered) requests; None where a part of what was offered is not known."""
    known = [t.offered for t in traffic if t.offered is not None]
    if not known or len(known) < len(traffic):
        return None
    return sum(t.refused_total for t in traffic), sum(known)


def _refused(traffic: Sequence[TenantTraffic]) -> Card:
    help_ = "Requests the gateways refused or evicted, of all that came to the door."
    label, share = "Refused, 10 min", refused_share(traffic)
    if share is None:
        return Card(label, UNKNOWN, "not counted", "unknown", "no gateway was read", help_)
    refused, offered = share
    if offered == 0:
        return Card(label, UNKNOWN, "no requests", "unknown", "nothing was offered", help_)
    part = refused / offered
    tone: Tone = "act" if part >= REFUSED_ACT else "watch" if part >= REFUSED_WATCH else "good"
    word = {"act": "many", "watch": "some", "good": "few or none"}[tone]
    note = f"{words.count(refused)} of {words.count(offered)} requests{_own_limits(traffic, refused)}"
    return Card(label, words.percent(part), word, tone, note, help_)


def _own_limits(traffic: Sequence[TenantTraffic], refused: int) -> str:
    """Return how many of the refused no capacity would have served; "" where there are none."""
    own = sum(n for t in traffic for outcome, n in t.refused.items() if outcome in OWN_LIMITS)
    many = "all" if own == refused else f"{words.count(own)} of them"
    return f", {many} by tenants' own limits" if own else ""


def _queued(now: FleetNow) -> Card:
    gates = [
        sum(q.requests for q in g.queues.values())
        for g in now.gateways
        if g.queues is not None and g.condition not in NOT_HEARD
    ]
    engines = _waiting_in_engines(now.nodes)
    is_whole = engines is not None and len(gates) == len(now.gateways)
    if not gates and engines is None:
        return Card("Queued now", UNKNOWN, "not known", "unknown", "neither gateways nor engines said")
    total = sum(gates) + (engines or 0)
    missing = len(now.gateways) - len(gates)
    at_gates = (
        f"{words.count(sum(gates))}{f' and {missing} unknown' if missing else ''}" if gates else "unknown"
    )
    note = f"gateways {at_gates}, engines {'unknown' if engines is None else words.count(engines)}"
    tone, word = ("good", "empty") if total == 0 else ("plain", "waiting")
    if not is_whole:
        tone, word = "unknown", "partial"
    return Card("Queued now", ("" if is_whole else "\u2265 ") + words.count(total), word, tone, note)


def _waiting_in_engines(nodes: Sequence[NodeRowView]) -> int | None:
    """Return what waits in the engines of fresh nodes; None unless there are some and each said it.

    The fleet's own figure will not do: it holds the gateways' queues as well.
    """
    said = [n.waiting for n in nodes if n.freshness is Freshness.FRESH]
    known = [waiting for waiting in said if waiting is not None]
    return sum(known) if said and len(known) == len(said) else None


def _kv(nodes: Sequence[NodeRowView]) -> Card:
    label, help_ = "Fullest KV cache", "Highest share of KV blocks in use on a fresh node."
    known = [
        (n.kv_used_ratio, n.name)
        for n in nodes
        if n.freshness is Freshness.FRESH and n.kv_used_ratio is not None
    ]
    if not known:
        return Card(label, UNKNOWN, "not known", "unknown", "no fresh node said", help_)
    worst, name = max(known)
    tone: Tone = "act" if worst >= KV_ACT else "watch" if worst >= KV_WATCH else "good"
    word = {"act": "nearly full", "watch": "high", "good": "has room"}[tone]
    return Card(label, words.percent(worst, 0), word, tone, f"on {name}", help_)


def node_rows(
    nodes: Sequence[NodeRowView], ejected: Mapping[str, str] = MappingProxyType({})
) -> dict[str, list[Any]]:
    """Return the node table by column: lost nodes, nodes with remarks, the others.

    `ejected`: remarks on those that gateways took out.

    A node that is not fresh has no values.
    """
    order = {Freshness.SILENT: 0, Freshness.STALE: 1, Freshness.FRESH: 2}
    rows = sorted(nodes, key=lambda n: (order[n.freshness], n.name not in ejected, not n.flags, n.name))
    fresh = [n.freshness is Freshness.FRESH for n in rows]

    def kept(values: list[Any]) -> list[Any]:
        return [value if is_fresh else None for value, is_fresh in zip(values, fresh, strict=True)]

    kv = kept([None if n.kv_used_ratio is None else 100 * n.kv_used_ratio for n in rows])
    return {
        "node": [f"/node?node={n.name}" for n in rows],
        "state": [
            node_state_text(n.freshness, n.age_s, n.state, n.flags, is_ejected=n.name in ejected)
            for n in rows
        ],
        "rho": kept([n.rho for n in rows]),
        "rho bar": kept([n.rho for n in rows]),
        "kv": kv,
        "waiting": kept([n.waiting for n in rows]),
        "why": [_explained_at(n) for n in rows],
        "running": kept([n.running for n in rows]),
        "arrivals": kept([n.arrival_rate for n in rows]),
        "interval": kept([words.interval(n.rho_low, n.rho_high) or None for n in rows]),
        "grade": kept([n.grade for n in rows]),
        "kv bar": kv,
        "flags": [", ".join([*([ejected[n.name]] if n.name in ejected else []), *n.flags]) for n in rows],
        "last problem": [n.last_failure_reason for n in rows],
        "pool": [n.pool for n in rows],
    }


def _explained_at(n: NodeRowView) -> str | None:
    """Return where what is unknown of a node is explained; None where nothing is."""
    shown = (n.rho, n.arrival_rate, n.running, n.waiting, n.kv_used_ratio)
    is_whole = n.freshness is Freshness.FRESH and not n.flags and None not in shown
    return None if is_whole else f"/data_quality?source={quote(n.name, safe='')}"


def coverage(now: FleetNow, at: datetime) -> str:
    """Return how complete the newest round was."""
    if not now.rounds:
        return "No scrape round yet. Start the controller with `rhodeck control`."
    newest = now.rounds[0]
    failed = ", ".join(
        f"{words.plural(count, 'node')} {FAILURES.get(reason, f'gave no sample ({reason})')}"
        for reason, count in sorted(newest.failures.items())
    )
    return (
        f"Newest round {age((at - newest.at).total_seconds())} ago: {newest.nodes_sampled} of "
        f"{newest.nodes_total} nodes answered, each {newest.period_s:g} s"
        + (f"; {failed}." if failed else ".")
    )


def traffic_rows(found: Traffic) -> dict[str, list[Any]]:
    """Return the traffic table by column: what each tenant offered, got, and had refused, and why.

    Tokens/s are over the time that was counted, not over the whole range.
    """
    traffic = found.flows
    return {
        "tenant": [t.tenant for t in traffic],
        "tier": [words.tier(t.tier) for t in traffic],
        "offered": [t.offered for t in traffic],
        "refused %": [100 * t.refused_total / t.offered if t.offered else None for t in traffic],
        "wait p95": [words.quantile(t.queue_wait.p95) for t in traffic],
        "TTFT p95": [words.quantile(t.ttft.p95) for t in traffic],
        "admitted": [t.dispatched for t in traffic],
        "refused": [t.refused_total if t.offered is not None else None for t in traffic],
        "tokens/s": [_tokens_per_s(t, found.covered_s) for t in traffic],
        "why": [why_refused(t) for t in traffic],
    }


def _tokens_per_s(t: TenantTraffic, covered_s: dict[tuple[str, str], float]) -> float | None:
    covered = covered_s.get((t.tenant, t.tier), 0.0)
    return round(t.output_tokens / covered) if t.output_tokens is not None and covered > 0 else None


def why_refused(t: TenantTraffic) -> str:
    """Return why requests of a flow were refused, the most frequent reason first."""
    reasons = sorted(((count, name) for name, count in t.refused.items() if count), reverse=True)
    return ", ".join(
        f"{name.removeprefix('rejected_').replace('_', ' ')} {count:,}" for count, name in reasons
    )
