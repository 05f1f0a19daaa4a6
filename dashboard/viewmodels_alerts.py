"""Alerts in words: what is open, who has it, who is told, what was told, and the rules behind it. Pure.

Prevents: a silenced alert that looks as if it were solved, and an alert without the way to its cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from control.alert_rule_store import RuleView
from control.alert_silences import Silence
from control.queries_alerts import AlertBook, AlertCount, AlertEntry, NoticeView, WebhookView
from dashboard import state, words
from dashboard.times import UNKNOWN, Zone, age
from dashboard.viewmodels import FLEET_PAGE, NODE_PAGE, ROLLOUT_PAGE, SIGNS, Card
from dashboard.words import Tone
from fleet.alert_rules import RULES, YES_NO, AlertRule

FLOW_PAGE = "app_pages/flow.py"
BUDGETS_PAGE = "app_pages/budgets.py"
SPEND_PAGE = "app_pages/spend.py"
#: Alerts of one group that are shown as one line.
FOLDED_FROM = 3
#: Where the cause of an alert shows, for what is about no node.
CAUSE_PAGES: dict[str, tuple[str, str]] = {
    "policy_drift": (ROLLOUT_PAGE, "Rollout"),
    "budget_half": (BUDGETS_PAGE, "Budgets"),
    "budget": (BUDGETS_PAGE, "Budgets"),
    "budget_spent": (BUDGETS_PAGE, "Budgets"),
    "export_failing": (SPEND_PAGE, "Spend"),
    "unstable": (FLOW_PAGE, "Flow"),
    "starvation": (FLOW_PAGE, "Flow"),
    "unfairness": (FLOW_PAGE, "Flow"),
    "burst": (FLOW_PAGE, "Flow"),
    "retry_storm": (FLOW_PAGE, "Flow"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One alert as the page draws it."""

    id: int
    tone: Tone
    word: str
    title: str
    text: str
    since: str
    page: str
    link: str
    query: dict[str, str]
    rule: str
    can_acknowledge: bool
    can_silence: bool
    lines: tuple[str, ...] = field(default=())  # the numbers behind it


@dataclass(frozen=True, slots=True)
class Watch:
    """Whether anybody judges alerts now, and whether anybody is told of them."""

    has_webhooks: bool = True
    unknown_since: datetime | None = None


def watch(book: AlertBook) -> Watch:
    """Return what every alert of a book is to be read with."""
    return Watch(bool(book.webhooks), book.unknown_since)


def stopped_text(since: datetime, at: datetime, zone: Zone) -> str:
    """Return that nobody judges alerts, and since when."""
    return (
        f"Nobody has judged an alert since {zone.since(since, at)}: no scrape round is stored. What is "
        "shown as open was open then and may be over, and what began since is not shown. Is "
        "`rhodeck control` running?"
    )


def badge(found: AlertCount | None) -> str:
    """Return what the frame says: "2 alerts"; `badge_help` says how many are critical."""
    if found is None:
        return "alerts: unknown"
    count = words.plural(found.unresolved, "alert") if found.unresolved else "no alerts"
    return count if found.unknown_since is None else f"{count}, stale"


def badge_help(found: AlertCount | None) -> str:
    """Return what stands behind the count."""
    if found is None:
        return "The database did not say how many alerts are open"
    if found.unknown_since is not None:
        return f"Nobody judges alerts since {found.unknown_since:%Y-%m-%d %H:%M} UTC: unknown since then"
    return f"{words.plural(found.critical, 'critical alert')} nobody has acknowledged or silenced"


def badge_icon(found: AlertCount | None) -> str:
    """Return the sign beside the count."""
    if found is None or found.unknown_since is not None:
        return ":material/help:"
    if found.critical:
        return ":material/error:"
    return ":material/notifications_active:" if found.unresolved else ":material/notifications:"


def cards(book: AlertBook) -> list[Card]:
    """Return how many alerts are in which state, and whether people hear of them."""
    groups = by_state(book)
    opened, have, hidden = groups["Open"], groups["Acknowledged"], groups["Silenced"]
    is_old = book.unknown_since is not None
    critical = sum(1 for entry in opened if entry.severity == "critical")
    tone: Tone = "act" if critical else "watch" if opened else "good"
    word = f"{critical} critical" if critical else "no critical one" if opened else "none"
    if is_old:
        tone, word = "unknown", "as of the last round"
    dead = sum(hook.dead for hook in book.webhooks)
    waiting = sum(hook.pending for hook in book.webhooks)
    told: tuple[Tone, str] = ("good", "delivered")
    if not book.webhooks:
        told = ("watch", "nobody is told")
    elif dead:
        told = ("act", f"{dead} given up")
    elif waiting:
        told = ("watch", f"{waiting} on the way")
    untended = "nobody has said that they look after it" if opened else ""
    return [
        Card("Open", words.count(len(opened)), word, tone, untended),
        Card("Acknowledged", words.count(len(have)), "somebody has it" if have else "none", "plain"),
        Card("Silenced", words.count(len(hidden)), "nobody is told" if hidden else "none", "plain"),
        Card("Webhooks", words.count(len(book.webhooks)), told[1], told[0], "where notices go"),
    ]


def by_state(book: AlertBook) -> dict[str, list[AlertEntry]]:
    """Return unresolved alerts under the headings of the page. Stale ones are among the others."""
    found: dict[str, list[AlertEntry]] = {"Open": [], "Acknowledged": [], "Silenced": []}
    for entry in book.unresolved:
        if entry.acknowledged_at is not None:
            found["Acknowledged"].append(entry)
        elif entry.silence is not None:
            found["Silenced"].append(entry)
        else:
            found["Open"].append(entry)
    return found


def grouped(entries: Sequence[AlertEntry]) -> list[list[AlertEntry]]:
    """Return alerts in the groups people are told of them in: one rule, scope and pool, in their order."""
    groups: dict[tuple[str, str, str | None], list[AlertEntry]] = {}
    for entry in entries:
        groups.setdefault((entry.rule, entry.scope, entry.pool), []).append(entry)
    return list(groups.values())


def group_text(entries: Sequence[AlertEntry]) -> str:
    """Return a group in one line: "40 x Node gives no metrics: n0, n1, n2 and 37 more"."""
    first, names = (
        entries[0],
        [words.tier_or_name(entry.scope, entry.subject) or "the fleet" for entry in entries],
    )
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    pool = f" of pool {first.pool}" if first.pool else ""
    return f"{len(entries)} x {_title(first)}{pool}: {', '.join(names[:3])}{more}"


def row(entry: AlertEntry, at: datetime, zone: Zone, how: Watch = Watch()) -> Row:  # frozen
    """Return one alert as the page draws it; while nobody judges, what it says is no present."""
    tone: Tone = "act" if entry.severity == "critical" else "watch"
    if entry.acknowledged_at is not None or entry.silence is not None:
        tone = "plain"
    word = "stale" if entry.state == "stale" else entry.severity
    if how.unknown_since is not None and entry.state != "resolved":
        tone, word = "unknown", f"{entry.severity}, unknown now"
    page, link, query = cause(entry, at)
    rule = RULES.get(entry.rule)
    return Row(
        entry.id,
        tone,
        word,
        entry.rule if rule is None else rule.title,
        entry.summary,
        _since(entry, at, zone, how),
        page,
        link,
        query,
        entry.rule,
        entry.acknowledged_at is None and entry.state != "resolved",
        entry.silence is None and entry.state != "resolved",
        _lines(entry, rule),
    )


def _since(entry: AlertEntry, at: datetime, zone: Zone, how: Watch) -> str:
    parts = [f"since {zone.since(entry.opened_at, at)}"]
    if entry.state == "stale":
        parts.append("no data: nobody knows whether it is over")
    if how.unknown_since is not None and entry.state != "resolved":
        parts.append(f"unknown since {zone.since(how.unknown_since, at)}, when the last round was judged")
    if entry.acknowledged_by:
        parts.append(f"{entry.acknowledged_by} has it since {zone.clock(entry.acknowledged_at)}")
    if entry.silence is not None:
        parts.append(
            f"silenced until {zone.stamp(entry.silence.expires_at)} by {entry.silence.created_by}: "
            f"{entry.silence.reason}"
        )
    elif entry.is_inhibited:
        parts.append("told with the fleet's alert of the same rule")
    elif entry.notified_at is None:
        parts.append("not told yet" if how.has_webhooks else "nobody is told: no webhook is registered")
    return "; ".join(parts)


def _lines(entry: AlertEntry, rule: AlertRule | None) -> tuple[str, ...]:
    unit = "" if rule is None or rule.unit == YES_NO else f" {rule.unit}"
    lines: list[str] = []
    if unit:
        lines.append(f"Value {words.number(entry.value)}{unit}, opened at {words.number(entry.threshold)}")
    lines += [str(line) for line in entry.detail.get("explanation", ())]
    if entry.detail.get("detail"):
        lines.append(str(entry.detail["detail"]))
    return tuple(lines)


def cause(entry: AlertEntry, at: datetime) -> tuple[str, str, dict[str, str]]:
    """Return where the cause shows (page, label, query), in a range that holds the alert's beginning."""
    query = {"range": range_holding((at - entry.opened_at).total_seconds()), "mark": str(entry.id)}
    if entry.scope == "node":
        return NODE_PAGE, entry.subject, {"node": entry.subject} | query
    page, link = CAUSE_PAGES.get(entry.rule, (FLEET_PAGE, "Fleet"))
    return page, link, query


def range_holding(age_s: float) -> str:
    """Return the shortest range of the strip that shows the time `age_s` ago with some room before it."""
    fitting = [name for name, span_s in state.RANGES.items() if span_s >= 1.2 * age_s]
    return fitting[0] if fitting else list(state.RANGES)[-1]


def over_rows(entries: Sequence[AlertEntry], at: datetime, zone: Zone) -> dict[str, list[Any]]:
    """Return resolved alerts by column."""
    return {
        "what": [_title(entry) for entry in entries],
        "subject": [words.tier_or_name(e.scope, e.subject) or "the fleet" for e in entries],
        "lasted": [_lasted(entry) for entry in entries],
        "ended": [zone.since(entry.resolved_at, at) for entry in entries],
        "why": [str(entry.detail.get("resolved", UNKNOWN)) for entry in entries],
        "told": ["told" if entry.notified_at else "nobody" for entry in entries],
        "severity": [entry.severity for entry in entries],
        "by": [entry.acknowledged_by or UNKNOWN for entry in entries],
        "opened": [zone.stamp(entry.opened_at) for entry in entries],
        "said": [entry.summary for entry in entries],
    }


def _title(entry: AlertEntry) -> str:
    rule = RULES.get(entry.rule)
    return entry.rule if rule is None else rule.title


def _lasted(entry: AlertEntry) -> str:
    if entry.resolved_at is None:
        return UNKNOWN
    return age((entry.resolved_at - entry.opened_at).total_seconds())


def rule_rows(views: Sequence[RuleView]) -> dict[str, list[Any]]:
    """Return the rules in force by column."""
    rules = [view.rule for view in views]
    return {
        "rule": [f"/alerts?runbook={rule.name}" for rule in rules],
        "what": [rule.title for rule in rules],
        "state": [
            f"{SIGNS['good']} on" if rule.is_enabled else f"{SIGNS['unknown']} off" for rule in rules
        ],
        "opens": [rule.opens_words for rule in rules],
        "resolves": [rule.resolves_words for rule in rules],
        "severity": [rule.severity_words for rule in rules],
        "about": [", ".join(rule.scopes) for rule in rules],
        "by": [view.updated_by if view.changes else "as delivered" for view in views],
    }


def silence_text(silence: Silence, zone: Zone) -> str:
    """Return a silence as a sentence."""
    until = zone.stamp(silence.expires_at)
    return f"{silence.matcher}, until {until}, by {silence.created_by}: {silence.reason}"


def webhook_rows(views: Sequence[WebhookView], at: datetime, zone: Zone) -> dict[str, list[Any]]:
    """Return webhooks by column."""
    return {
        "webhook": [view.name for view in views],
        "state": [_webhook_state(view) for view in views],
        "taken": [zone.since(view.last_ok_at, at) for view in views],
        "pending": [view.pending for view in views],
        "dead": [view.dead for view in views],
        "url": [view.url for view in views],
        "kind": [view.kind for view in views],
        "failed": [
            f"{zone.since(view.last_error_at, at)}: {view.last_error}" if view.last_error else UNKNOWN
            for view in views
        ],
    }


def _webhook_state(view: WebhookView) -> str:
    if view.dead:
        return f"{SIGNS['act']} given up {view.dead}"
    is_failing = view.last_error_at is not None and (
        view.last_ok_at is None or view.last_error_at > view.last_ok_at
    )
    if is_failing:
        return f"{SIGNS['watch']} failing"
    return f"{SIGNS['good']} taking" if view.last_ok_at else f"{SIGNS['unknown']} not used yet"


def notice_rows(views: Sequence[NoticeView], at: datetime, zone: Zone) -> dict[str, list[Any]]:
    """Return what people were told by column."""
    return {
        "at": [zone.since(view.at, at) for view in views],
        "kind": [view.kind for view in views],
        "said": [view.summary for view in views],
        "to": [
            ", ".join(f"{name}: {_delivery(*how)}" for name, how in view.deliveries.items()) or "nobody"
            for view in views
        ],
        "rule": [view.rule for view in views],
    }


def _delivery(state_: str, attempts: int, error: str | None) -> str:
    tried = f" after {attempts} calls" if attempts > 1 else ""
    why = f" ({error})" if error and state_ != "delivered" else ""
    return {"dead": "given up", "pending": "on the way"}.get(state_, state_) + tried + why


def silence_choices(entry: AlertEntry) -> dict[str, dict[str, str | None]]:
    """Return what can be silenced from one alert: label -> matchers, the narrowest first."""
    who = words.tier_or_name(entry.scope, entry.subject) or "the fleet"
    found: dict[str, dict[str, str | None]] = {
        f"{entry.rule} of {who}": {"rule": entry.rule, "scope": entry.scope, "subject": entry.subject}
    }
    if entry.pool:
        found[f"{entry.rule} in pool {entry.pool}"] = {"rule": entry.rule, "pool": entry.pool}
    if entry.subject:
        found[f"everything about {who}"] = {"scope": entry.scope, "subject": entry.subject}
    found[f"{entry.rule} everywhere"] = {"rule": entry.rule}
    return found


def chosen(book: AlertBook, number: str) -> AlertEntry | None:
    """Return the alert an address names; None if it is not of the last week."""
    listed = [*book.unresolved, *book.resolved]
    return next((entry for entry in listed if str(entry.id) == number), None)


def over_text(entries: Sequence[AlertEntry]) -> str:
    """Return what the list of resolved alerts covers."""
    return (
        "Resolved in the last seven days." if entries else "No alert was resolved in the last seven days."
    )


def notices_text(book: AlertBook) -> str:
    """Return what is to be said below webhooks and notices."""
    webhooks = "" if book.webhooks else "No webhook is registered: nobody is told but whoever looks here. "
    notices = "" if book.notices else "Nobody was told anything yet. "
    return f"{webhooks}{notices}A notice is about one rule, scope and pool; the newest 100 are shown."
