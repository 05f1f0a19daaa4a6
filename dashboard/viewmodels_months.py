"""Months in words: their states, what still stops a close, what a closed one was checked for. Pure.

Money is Decimal USD. Prevents: a running month that looks final, and a closed one nobody checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from control.adjustments import LateRecord
from control.late_node_time import LateNodeTime
from control.month_checks import Check
from control.month_close import MonthView, Verified
from control.month_keys import BY_OWN
from control.queries_cost_rules import CommitmentView, RuleView
from dashboard import words
from dashboard.times import Zone
from dashboard.viewmodels import Card
from fleet.spend import MonthSpend, subtotals

KIND_WORDS = {
    "usage": "used by tenants",
    "idle": "idle",
    "burst": "burst (spot beside other nodes)",
    "commitment": "committed, not used",
    "overhead": "platform overhead",
    "adjustment": "adjustments of closed months",
}


#: Values of allocation rules as people say them.
_WORDS = {
    "engine_seconds": "time a request held a place",
    "tokens": "tokens",
    "kv_token_seconds": "KV cache held over time",
    "apart": "stay apart",
    "proportional": "shared by use",
    "even": "shared evenly by tenant",
}
#: What a month's state asks for.
_NEXT: dict[str, str] = {
    "not recorded": "nothing to close",
    "open": "not closed",
    "closing": "to be checked",
    "closed": "for good",
}
BASIS_HELP = "What a tenant's part of a pool's used cost is measured in"
NO_RULE = (
    "No rule is declared: cost is divided by the time requests held a place, and unused parts stay apart."
)
PLATFORM = "the platform itself"


def in_words(value: str) -> str:
    """Return a rule's value as people say it."""
    return _WORDS.get(value, value)


def method_words(method: str) -> str:
    """Return a month's rule, "tokens/1 output x4", as people say it; files carry it as it is."""
    basis, slash, rest = method.partition("/1")
    known = _WORDS.get(basis.replace("-", "_"))
    return f"by {known}{rest}" if slash and known else method


def rule_rows(rules: Sequence[RuleView]) -> dict[str, list[Any]]:
    """Return the rules by column; of one month the newest holds."""
    return {
        "from": [rule.from_month for rule in rules],
        "basis": [in_words(rule.basis) for rule in rules],
        "unused": [in_words(rule.share) for rule in rules],
        "weight": [f"{rule.output_weight:f}" for rule in rules],
        "reason": [rule.reason for rule in rules],
        "who": [rule.created_by for rule in rules],
    }


def commitment_rows(found: Sequence[CommitmentView], zone: Zone) -> dict[str, list[Any]]:
    """Return the commitments by column."""
    return {
        "of": [each.pool or PLATFORM for each in found],
        "nodes": [each.nodes for each in found],
        "hourly": [words.cents(each.usd_per_hour) for each in found],
        "upfront": [words.cents(each.upfront_usd) for each in found],
        "from": [zone.stamp(each.starts_at) for each in found],
        "to": [zone.stamp(each.ends_at) for each in found],
        "source": [each.source for each in found],
        "who": [each.created_by for each in found],
    }


def list_rows(months: Sequence[MonthView], zone: Zone) -> dict[str, list[Any]]:
    """Return every month with its state and, closed, its total and checksum."""
    closed = [month.closed for month in months]
    return {
        "month": [month.name for month in months],
        "state": ["running" if m.is_current and m.state == "open" else m.state for m in months],
        "usd": [None if c is None else words.cents(c.total_usd) for c in closed],
        "rows": [None if c is None else c.rows for c in closed],
        "sha256": [None if c is None else c.sha256[:12] for c in closed],
        "at": [None if c is None else zone.stamp(c.closed_at) for c in closed],
        "by": [None if c is None else c.closed_by for c in closed],
    }


def first_to_close(months: Sequence[MonthView]) -> str:
    """Return the month finance is here for: the oldest that is over and not closed, else the newest."""
    waiting = [m.name for m in months if m.state != "closed" and not m.is_current]
    return waiting[-1] if waiting else months[0].name


def cards(spend: MonthSpend, checks: Sequence[Check]) -> list[Card]:
    """Return the month's total, its state and how many items of the checklist stand."""
    failed = [check for check in checks if not check.is_met]
    stops = sum(check.is_blocking for check in failed)
    tone = "good" if spend.state == "closed" else "watch"
    shown = [
        Card("State", spend.state, _NEXT[spend.state], tone, f"month of {spend.month.zone}"),
        Card("Total", words.cents(_total(spend)), _certainty(spend), tone, method_words(spend.method)),
    ]
    if checks:
        said = f"{stops} stop it" if stops else "nothing stops it"
        items = words.plural(len(failed), "open item")
        shown.append(Card("Checklist", items, said, "act" if stops else "good", "the rest can be accepted"))
    return shown


def _total(spend: MonthSpend) -> Decimal | None:
    return spend.total_usd if spend.has_records else None


def _certainty(spend: MonthSpend) -> str:
    if not spend.has_records:
        return "nothing recorded"
    if spend.state == "closed":
        return "final"
    return "estimated" if spend.is_estimated else "not closed yet"


def kind_rows(spend: MonthSpend) -> dict[str, list[Any]]:
    """Return the total by kind of line; the parts equal the whole."""
    sums = subtotals(spend.lines, "kind")
    kinds = [kind for kind in KIND_WORDS if (kind,) in sums]
    return {
        "of": [*(KIND_WORDS[kind] for kind in kinds), "total"],
        "usd": [*(words.cents(sums[kind,]) for kind in kinds), words.cents(_total(spend))],
    }


def check_rows(checks: Sequence[Check]) -> dict[str, list[Any]]:
    """Return the checklist."""
    return {
        "item": [check.name for check in checks],
        "is": [
            "\u2713 met"
            if c.is_met
            else ("\u2715 stops the close" if c.is_blocking else "! can be accepted")
            for c in checks
        ],
        "found": [check.found for check in checks],
    }


def to_accept(checks: Sequence[Check]) -> list[str]:
    """Return the items that are not met and may be accepted, each with what was found."""
    return [f"{c.name}: {c.found}" for c in checks if not c.is_met and not c.is_blocking]


def adjustment_rows(spend: MonthSpend) -> dict[str, list[Any]]:
    """Return the adjustments the month carries."""
    lines = [line for line in spend.lines if line.kind == "adjustment"]
    return {
        "month": [line.adjusts for line in lines],
        "tenant": [line.tenant or "nobody's" for line in lines],
        "why": [line.note for line in lines],
        "requests": [line.requests for line in lines],
        "hours": [f"{line.node_hours:,.2f}" if line.node_hours else None for line in lines],
        "usd": [words.cents(line.amount_usd) for line in lines],
    }


def verified_text(found: Verified) -> tuple[words.Tone, str]:
    """Return whether a closed month is what was closed."""
    if found.is_file_whole and found.are_lines_whole and found.is_signed is False:
        return "act", words.plain(
            f"The signature of {found.month} does not hold ({found.signature_by}): "
            "restore the key or the database's backup"
        )
    if not found.is_file_whole or not found.are_lines_whole:
        part = "lines" if found.is_file_whole else "file"
        return "act", f"The {part} of {found.month} is not what was closed: restore the database's backup"
    if found.is_signed is None:
        return "watch", "File and lines hold; the signature was not checked: its key is not on this machine"
    by_whom = "" if found.signature_by == BY_OWN else f", {found.signature_by}"
    return "good", words.plain(f"File, lines and signature hold{by_whom}")


def late_text(late: Sequence[LateRecord], late_time: Sequence[LateNodeTime], zone: Zone) -> str:
    """Return what came after the close."""
    if not late and not late_time:
        return "Neither use nor node time came late."
    parts: list[str] = []
    if late:
        newest = late[-1].received_at
        parts.append(
            f"{words.plural(len(late), 'usage record')} came late, the newest {zone.stamp(newest)}"
        )
    if late_time:
        hours = sum((each.change_s for each in late_time), Decimal(0)) / 3600
        nodes = ", ".join(dict.fromkeys(each.node for each in late_time[:3]))
        more = f" and {len(late_time) - 3} more" if len(late_time) > 3 else ""
        parts.append(f"{hours:+,.2f} node-hours came late, of {nodes}{more}")
    return words.plain("; ".join(parts) + "; a later month carries the adjustment.")
