"""What of the fleet wants attention, worst first: alerts, lost nodes, gateways that do not converge. Pure.

Prevents: nodes blamed while nobody asks them, an alert shown as present while nobody judges it, and a dead
node pushed out of sight by one overload that five queues report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from control.freshness import Freshness, stale_after_s
from control.queries_fleet import AlertView
from control.queries_gateway_traffic import TenantTraffic
from control.queries_nodes import NodeRowView
from control.queries_policy import GatewayState, Rollout
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
from dashboard.viewmodels_ejected import ejected, notices
from dashboard.viewmodels_fleet import ALERTS_SHOWN, REFUSED_ACT, refused_share, why_refused
from dashboard.viewmodels_overload import overload
from dashboard.words import Tone
from fleet.alert_rules import NODE_SILENT

#: How many alerts of one rule are named in its line.
NAMED = 4


def attention(now: FleetNow, at: datetime, zone: Zone) -> list[Notice]:
    """Return what wants attention, worst first; of what is as bad, causes before what they cause."""
    alerts = _alerts(now.alerts, at, zone)
    stopped = controller_stopped(now, at, zone)
    if stopped is not None:  # then nodes and gateways are not to blame for being out of date
        last = f"unknown since {zone.since(now.rounds[0].at, at)}"
        return [
            stopped,
            *(
                replace(n, tone="unknown", word=f"{n.word}, then", since=f"{n.since}; {last}")
                for n in alerts
            ),
        ]
    asked = overload(now)
    found = [] if asked is None else [asked]
    found += [_gateway(g) for g in now.gateways if g.condition != "converged"]
    found += alerts
    covered = {a.subject for a in now.alerts if a.rule == NODE_SILENT}
    found += [
        _lost_node(n, at, zone)
        for n in now.nodes
        if n.state == "active" and n.freshness is not Freshness.FRESH and n.name not in covered
    ]
    found += notices(ejected(now.gateways, at), at, zone)
    found += _paused(now.rollout, at, zone)
    found += _refusing(now.traffic)
    return sorted(found, key=_severity)


def _alerts(alerts: Sequence[AlertView], at: datetime, zone: Zone) -> list[Notice]:
    """Return the worst alerts and those of dead nodes, a line a rule, and one for the rest of them."""
    groups: dict[tuple[str, str, Tone], list[tuple[AlertView, Notice]]] = {}
    for a in sorted(alerts, key=lambda a: a.scope != "fleet"):  # the fleet's speaks for its parts
        drawn = _alert(a, at, zone)
        groups.setdefault((a.rule, drawn.word, drawn.tone), []).append((a, drawn))
    found = sorted(groups.values(), key=lambda group: _severity(group[0][1]))
    kept = len(found) if len(found) <= ALERTS_SHOWN + 1 else ALERTS_SHOWN
    shown = [g for n, g in enumerate(found) if n < kept or g[0][0].rule == NODE_SILENT]
    lines = [_folded(group) for group in shown]
    more = len(alerts) - sum(map(len, shown))
    if more:
        text = f"{words.plural(more, 'more alert')} of other kinds: open, acknowledged or stale"
        lines.append(Notice("watch", "more", text, "worst first above", ALERTS_PAGE, "Alerts"))
    return lines


def _folded(group: Sequence[tuple[AlertView, Notice]]) -> Notice:
    """Return one line for alerts of one rule: the first in full, the names of the next, how many more."""
    first = group[0][1]
    if len(group) == 1:
        return first
    names = ", ".join(words.tier_or_name(a.scope, a.subject) or "the fleet" for a, _ in group[1:NAMED])
    more = f" and {len(group) - NAMED} more" if len(group) > NAMED else ""
    text = f"{first.text}; the same of {names}{more}"
    return replace(first, text=text, page=ALERTS_PAGE, link=f"{len(group)} alerts", query={}, alert=None)


def _refusing(traffic: Sequence[TenantTraffic]) -> list[Notice]:
    """Return that many requests are refused, and whose most of them are; nothing below the limit."""
    share = refused_share(traffic)
    if share is None or share[0] < REFUSED_ACT * max(1, share[1]):
        return []
    most = max(traffic, key=lambda t: t.refused_total)
    text = f"{words.percent(share[0] / share[1])} of requests are refused, most of them of {most.tenant}"
    return [Notice("watch", "refusing", text, f"in 10 min: {why_refused(most)}", POLICY_PAGE, "Policy")]


def _paused(rollout: Rollout | None, at: datetime, zone: Zone) -> list[Notice]:
    """Return that a rollout waits for somebody's word; nothing where it goes on by itself."""
    if rollout is None or rollout.state != "paused":
        return []
    first = rollout.first_gateway or "its first gateway"
    text = f"Revision {rollout.revision} is paused at {first}: resume, promote or abort it"
    since = f"since {zone.since(rollout.updated_at, at)}: {rollout.reason}"
    return [Notice("watch", "paused", text, since, ROLLOUT_PAGE, "Rollout")]


def nothing(now: FleetNow) -> str:
    """Return what it means that nothing wants attention: all is well only where somebody looked."""
    if not now.nodes and not now.gateways:
        return "Nothing is watched yet: no node and no gateway is registered."
    if not now.rounds:
        return "Nobody has looked yet: no scrape round is stored."
    nodes = "every active node is fresh" if now.nodes else "no node is registered"
    gateways = "every gateway converged" if now.gateways else "no gateway is registered"
    return f"Nothing: no alert is open, {nodes}, {gateways}."


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
        words.tier(a.summary),
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
