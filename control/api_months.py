"""The calls of the API about months: one month with its checklist, closing it, correcting a closed one.

Amounts are text, so that nobody's float rounds them. A token of scope `months:write` acts in the role
finance and in no other way. Prevents: a month closed by a script that never saw its checklist, and by a
token that was made for something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from control import adjustments, month_close
from control.api_calls import Asked, Body, Call
from control.late_node_time import late_node_time
from control.month_checks import Check, checklist
from control.node_life import correct_node_life
from control.queries_spend import month_spend
from control.roles import Actor, Role
from control.tokens import Scope
from fleet.errors import Unavailable
from fleet.instants import instant_of
from fleet.spend import SpendLine, subtotals

call = partial(Call, reads=Scope.SPEND_READ, writes=Scope.MONTHS_WRITE)
_MONTH = "/api/v1/months/{month}"


class CloseBody(Body):
    """How to close: `accept` waives the items of the checklist that do not stop it."""

    accept: bool = False
    note: str = ""


class NodeTimeBody(Body):
    """Node time that was not seen, or not run: quarter-hours `start` to `end`, as 2026-11-09T06:00Z."""

    node: str
    up: bool
    start: str
    end: str
    reason: str


class CorrectionBody(Body):
    """A correction of a closed month; `amount_usd` is text, negative for less."""

    tenant: str
    amount_usd: str
    reason: str
    tier: str = ""
    model: str = ""
    pool: str = ""


def _finance(asked: Asked) -> Actor:
    return replace(asked.actor, role=Role.FINANCE)


def _key_file(asked: Asked) -> Path:
    if asked.finance_key is None:
        raise Unavailable(
            "this API has no key to sign months with", hint="Set RHODECK_FINANCE_KEY_FILE where it runs"
        )
    return asked.finance_key


def _checks(checks: Sequence[Check]) -> list[dict[str, Any]]:
    return [asdict(check) for check in checks]


def _month(asked: Asked) -> dict[str, Any]:
    """A month's state, parts and, until it is closed, its checklist."""
    spend = month_spend(asked.session, asked.path["month"], zone=asked.zone, now=asked.now)
    is_open = spend.state in ("open", "closing")
    return {
        "month": spend.month.name,
        "state": spend.state,
        "time_zone": spend.month.zone,
        "method": spend.method,
        "is_estimated": spend.is_estimated,
        "total_usd": f"{spend.total_usd:.2f}" if spend.has_records else None,
        "parts": {kind: f"{usd:.2f}" for (kind,), usd in subtotals(spend.lines, "kind").items()},
        "adjustments": [_adjustment(line) for line in spend.lines if line.kind == "adjustment"],
        "late_node_time": [
            each.as_dict()
            for each in (late_node_time(asked.session, spend.month.name) if spend.state == "closed" else ())
        ],
        "checklist": _checks(checklist(asked.session, spend, asked.zone, asked.now)) if is_open else [],
    }


def _adjustment(line: SpendLine) -> dict[str, str]:
    return {
        "adjusts": line.adjusts,
        "tenant": line.tenant,
        "tier": line.tier,
        "model": line.model,
        "pool": line.pool,
        "node_hours": f"{line.node_hours:.6f}",
        "amount_usd": f"{line.amount_usd:.2f}",
        "note": line.note,
    }


def _start(asked: Asked) -> dict[str, Any]:
    name = asked.path["month"]
    checks = month_close.start_closing(
        asked.session, name, zone=asked.zone, actor=_finance(asked), now=asked.now
    )
    return {"month": name, "state": "closing", "checklist": _checks(checks)}


def _stop(asked: Asked) -> dict[str, Any]:
    name = asked.path["month"]
    month_close.stop_closing(asked.session, name, actor=_finance(asked), now=asked.now)
    return {"month": name, "state": "open"}


def _close(asked: Asked) -> dict[str, Any]:
    body: CloseBody = asked.body
    closed = month_close.close_month(
        asked.session,
        asked.path["month"],
        zone=asked.zone,
        actor=_finance(asked),
        now=asked.now,
        key_file=_key_file(asked),
        accept=body.accept,
        note=body.note,
    )
    return month_close.MonthView(closed.name, "closed", is_current=False, closed=closed).as_dict()


def _verify(asked: Asked) -> dict[str, Any]:
    found = month_close.verify(asked.session, asked.path["month"], key_file=asked.finance_key)
    return asdict(found) | {"holds": found.holds}


def _correct(asked: Asked) -> dict[str, Any]:
    body: CorrectionBody = asked.body
    number = adjustments.correct(
        asked.session,
        month=asked.path["month"],
        tenant=body.tenant,
        tier=body.tier,
        model=body.model,
        pool=body.pool,
        amount_usd=body.amount_usd,
        reason=body.reason,
        actor=_finance(asked),
        now=asked.now,
    )
    return {"month": asked.path["month"], "correction": number}


def _node_time(asked: Asked) -> dict[str, Any]:
    body: NodeTimeBody = asked.body
    changed = correct_node_life(
        asked.session,
        node=body.node,
        start=instant_of(body.start, "start"),
        end=instant_of(body.end, "end"),
        was_up=body.up,
        reason=body.reason,
        actor=_finance(asked),
        now=asked.now,
    )
    return {"node": body.node, "changed_node_hours": f"{changed / 3600:.6f}"}


CALLS = (
    call("GET", _MONTH, "A month's state and parts, and its checklist until it is closed", _month),
    call("POST", f"{_MONTH}/closing", "Begin to close a month; answers its checklist", _start),
    call("DELETE", f"{_MONTH}/closing", "Take a month back from closing to open", _stop),
    call("POST", f"{_MONTH}/close", "Close a month that is closing, for good", _close, CloseBody),
    call(
        "GET", f"{_MONTH}/verification", "Whether a closed month's file, lines and signature hold", _verify
    ),
    call(
        "POST",
        f"{_MONTH}/corrections",
        "Correct a closed month by a line of the next one that closes",
        _correct,
        CorrectionBody,
        code=201,
    ),
    call(
        "POST",
        "/api/v1/node-time",
        "Correct a node's life by quarter-hours: it ran though nobody saw it, or it did not",
        _node_time,
        NodeTimeBody,
        code=201,
    ),
)
