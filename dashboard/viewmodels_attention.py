"""What of the fleet wants attention, worst first: alerts, lost nodes, gateways that do not converge. Pure.

Prevents: nodes blamed while nobody asks them, and an alert shown as present while nobody judges it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from control.freshness import Freshness, stale_after_s
from control.queries_fleet import AlertView
from control.queries_gateway_traffic import TenantTraffic
from control.queries_nodes import NodeRowView
from control.queries_policy import GatewayState
from dashboard import words
from dashboard.data import FleetNow
from dashboard.times import Zone, age
from dashboard.viewmodels import (
    ALERTS_PAGE,
    CONDITION_LOOKS,
    NODE_PAGE,
    POLICY_PAGE,
    ROLLOUT_PAGE,
    Notice,
)
from dashboard.viewmodels_fleet import ALERTS_SHOWN, REFUSED_ACT, refused_share, why_refused
from dashboard.words import Tone


def attention(now: FleetNow, at: datetime, zone: Zone) -> list[Notice]:
    """Return what wants attention, worst first: alerts, silent and stale nodes, gateways not converged."""
    found = _alerts(now.alerts, at, zone)
    stopped = controller_stopped(now, at, zone)
    if stopped is not None:  # then nodes and gateways are not to blame for being out of date
        last = f"unknown since {zone.since(now.rounds[0].at, at)}"
        return [
            stopped,
            *(
                replace(n, tone="unknown", word=f"{n.word}, then", since=f"{n.since}; {last}")
                for n in found
            ),
        ]
    covered = {a.subject for a in now.alerts if a.rule == "node_silent"}
    found += [
        _lost_node(n, at, zone)
        for n in now.nodes
        if n.state == "active" and n.freshness is not Freshness.FRESH and n.name not in covered
    ]
    found += [_gateway(g) for g in now.gateways if g.condition != "converged"]
    found += _refusing(now.traffic)
    return sorted(found, key=_severity)


def _alerts(alerts: Sequence[AlertView], at: datetime, zone: Zone) -> list[Notice]:
    """Return the worst alerts, and one line for the rest of them."""
    found = sorted((_alert(a, at, zone) for a in alerts), key=_severity)
    more = len(found) - ALERTS_SHOWN
    if more <= 1:
        return found
    text = f"{more} more alerts are open, acknowledged or stale"
    return [
        *found[:ALERTS_SHOWN],
        Notice("watch", "more", text, "worst first above", ALERTS_PAGE, "Alerts"),
    ]


def _refusing(traffic: Sequence[TenantTraffic]) -> list[Notice]:
    """Return that many requests are refused, and whose most of them are; nothing below the limit."""
    share = refused_share(traffic)
    if share is None or share[0] < REFUSED_ACT * max(1, share[1]):
        return []
    most = max(traffic, key=lambda t: t.refused_total)
    text = f"{words.percent(share[0] / share[1])} of requests are refused, most of them of {most.tenant}"
    return [Notice("watch", "refusing", text, f"in 10 min: {why_refused(most)}", POLICY_PAGE, "Policy")]


def _severity(notice: Notice) -> int:
    order: tuple[Tone, ...] = ("act", "watch", "unknown", "plain", "good")
    return order.index(notice.tone)


def controller_stopped(now: FleetNow, at: datetime, zone: Zone) -> Notice | None:
    """Return that nobody scrapes, if the newest round is too old; None before the first round."""
    if not now.rounds:
        return None
    newest = now.rounds[0]
    silent_s = (at - newest.at).total_seconds()
    if silent_s < stale_after_s(newest.period_s):
        return None
    behind = [n for n in now.nodes if n.freshness is not Freshness.FRESH]
    asked = [g for g in now.gateways if g.condition == "unknown"]
    return Notice(
        "act",
        "stopped",
        f"No scrape round for {age(silent_s)}: is `rhodeck control` running? "
        f"{words.plural(len(behind), 'node')} and {words.plural(len(asked), 'gateway')} are out of date.",
        f"newest round {zone.since(newest.at, at)}",
    )


def _alert(a: AlertView, at: datetime, zone: Zone) -> Notice:
    tone: Tone = "act" if a.severity == "critical" else "watch"
    word = a.state if a.state != "open" else a.severity
    if a.state == "acknowledged":
        tone = "watch"
    by = f", acknowledged by {a.acknowledged_by}" if a.acknowledged_by else ""
    if a.silenced_until is not None:
        tone, word, by = "plain", "silenced", f"{by}, nobody is told until {zone.clock(a.silenced_until)}"
    is_node = a.scope == "node"
    return Notice(
        tone,
        word,
        a.summary,
        f"since {zone.since(a.opened_at, at)}{by}",
        NODE_PAGE if is_node else ALERTS_PAGE,
        a.subject if is_node else "Runbook",
        {"node": a.subject} if is_node else {"runbook": a.rule},
        alert=a.id if a.acknowledged_at is None else None,
    )


def _lost_node(n: NodeRowView, at: datetime, zone: Zone) -> Notice:
    said = (n.last_failure_detail or "").partition(": [Errno")[0]
    detail = f", {said}" if said else ""
    why = (
        f"does not answer: {n.last_failure_reason}{detail}"
        if n.last_failure_reason
        else "has no fresh sample"
    )
    return Notice(
        "act" if n.freshness is Freshness.SILENT else "watch",
        n.freshness.value,
        f"Node {n.name} {why}",
        "never seen" if n.seen_at is None else f"last sample {zone.since(n.seen_at, at)}",
        NODE_PAGE,
        n.name,
        {"node": n.name},
    )


def _gateway(g: GatewayState) -> Notice:
    tone, word = CONDITION_LOOKS[g.condition]
    heard = "never heard" if g.age_s is None else f"heard {age(g.age_s)} ago"
    return Notice(tone, word, f"Gateway {g.name}: {g.message or word}", heard, ROLLOUT_PAGE, "Rollout")
