"""The calls of the API about flow: is each queue in balance now, and how did one of them get there.

Times are ISO 8601, ranges whole minutes. Prevents: a script that reads an old balance as the present one,
and a range that reads a table to its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from control.api_calls import Asked, Call
from control.flow_report import as_dict, point_as_dict
from control.flow_store import FLOW_DAYS, FlowNow, flow_now, flow_timeline
from control.freshness import stale_after_s
from control.queries_fleet import scrape_period_s
from control.tokens import Scope
from fleet.errors import InvalidInput, NotFound

MAX_MINUTES = FLOW_DAYS * 1_440
_SCOPES = ("fleet", "pool", "tier")


def _now(asked: Asked) -> dict[str, Any]:
    """Every queue's present state, or those of one scope and name."""
    scope, name = _subject(asked.query)
    stale_s = stale_after_s(scrape_period_s(asked.session))
    states = [s for s in flow_now(asked.session) if scope is None or (s.scope, s.name) == (scope, name)]
    return {"queues": [as_dict(state, asked.now, stale_s) for state in states]}


def _timeline(asked: Asked) -> dict[str, Any]:
    """The minutes of one queue, in equal buckets."""
    scope, name = _subject(asked.query)
    scope = scope or "fleet"
    known = _find(flow_now(asked.session), scope, name)
    if known is None:
        said = "the fleet" if scope == "fleet" else f"{scope} {name[:80]!r}"
        raise NotFound(
            f"no minutes are known of {said}", hint="GET /api/v1/flow lists the queues", field="name"
        )
    since = asked.now - timedelta(minutes=_minutes(asked.query.get("minutes", "60")))
    points = flow_timeline(asked.session, scope, name, since, asked.now)
    return {"scope": scope, "name": name, "points": [point_as_dict(point) for point in points]}


def _find(states: list[FlowNow], scope: str, name: str) -> FlowNow | None:
    return next((s for s in states if (s.scope, s.name) == (scope, name)), None)


def _subject(query: Mapping[str, str]) -> tuple[str | None, str]:
    """Return (scope, name); scope None where nothing was asked for. Raises InvalidInput."""
    scope, name = query.get("scope"), query.get("name", "")
    if scope is None and not name:
        return None, ""
    if scope not in _SCOPES:
        raise InvalidInput(
            f"scope is {(scope or '')[:20]!r}", hint=f"Send one of {', '.join(_SCOPES)}", field="scope"
        )
    if (scope == "fleet") != (name == ""):
        raise InvalidInput(
            "a pool or tier is asked for by its name, the fleet without one",
            field="name",
            hint="See /openapi.json",
        )
    return scope, name


def _minutes(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 7 and 1 <= int(text) <= MAX_MINUTES:
        return int(text)
    raise InvalidInput(
        f"minutes is {text[:20]!r}", hint=f"Send a whole number from 1 to {MAX_MINUTES}", field="minutes"
    )


_ASKS = {"scope": "fleet, pool or tier; without: every queue", "name": "Of the pool or tier"}
CALLS = (
    Call(
        "GET",
        "/api/v1/flow",
        "Whether queues are in balance: signals, Little's law by stage, tails, rho beside it",
        _now,
        reads=Scope.STATUS_READ,
        query=_ASKS,
    ),
    Call(
        "GET",
        "/api/v1/flow/timeline",
        "One queue's arrivals, departures, places and latencies over time",
        _timeline,
        reads=Scope.STATUS_READ,
        query={
            "scope": "fleet (unless said), pool or tier",
            "name": "Of the pool or tier",
            "minutes": f"How far back: 1 to {MAX_MINUTES}, 60 unless said; at most 720 points",
        },
    ),
)
