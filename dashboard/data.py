"""What pages read: each question cached for half a scrape period, answered with its age, never a traceback.

Questions are asked through the read-only connection. While the database is away, the last good answer
stands with its age and the reason. Keys of the cache are plain values. Prevents: fifty browsers asking
fifty times, an outage that empties the page at the worst moment, and an old answer that looks new.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

import streamlit as st

from control import (
    audit,
    database,
    queries_fleet,
    queries_history,
    queries_nodes,
    queries_policy,
    queries_spend,
    queries_traffic_history,
)
from control.audit import BrokenRow
from control.exports import Export
from control.prices import Price, prices
from control.queries_fleet import AlertView, HealthView, RoundView
from control.queries_gateway_traffic import TenantTraffic
from control.queries_history import History
from control.queries_latency import LatencyView, Metric
from control.queries_nodes import NodeDetail, NodeRowView
from control.queries_policy import AuditEntry, GatewayState, Revision, RevisionHead, Rollout, TenantKey
from control.queries_spend import MonthName
from control.queries_traffic_history import Traffic
from dashboard.deps import Deps, deps
from fleet.errors import Conflict, FleetError, NotFound, Unavailable
from fleet.spend import MonthSpend

T = TypeVar("T")
#: Half the default scrape period: a tick never shows what is older than one round and a half.
TTL_S = 5.0
TTL_SHORT_S = 1.5  # while a rollout is watched
TTL_LONG_S = 30.0  # of what takes seconds to work out of a large fleet's rows
RECENT = timedelta(minutes=10)
ROUNDS_SHOWN = timedelta(hours=1)  # single rounds of a node: scatter, remarks, preemptions
CHANGES_READ = 60  # rows of the record behind the list of recent changes and the marks on charts


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """An answer and how old it is. `problem` set: the question failed now; `value` is the last good one."""

    value: T | None
    as_of: datetime | None
    problem: FleetError | None = None


@dataclass(frozen=True, slots=True)
class FleetNow:
    """Everything the fleet page shows of the present, read in one transaction."""

    health: HealthView | None
    nodes: tuple[NodeRowView, ...]
    alerts: tuple[AlertView, ...]
    gateways: tuple[GatewayState, ...]
    rounds: tuple[RoundView, ...]
    changes: tuple[AuditEntry, ...]
    latency: dict[Metric, LatencyView]
    traffic: tuple[TenantTraffic, ...]  # of the last ten minutes, without latencies
    door_ttft: LatencyView | None = None  # as the gateways measured it
    rollout: Rollout | None = None


@dataclass(frozen=True, slots=True)
class Pulse:
    """When the newest scrape round was, and how often one comes."""

    at: datetime | None
    period_s: float


@dataclass(frozen=True, slots=True)
class PolicyNow:
    """The newest revision and what came before it."""

    head: Revision | None
    history: tuple[RevisionHead, ...]


@dataclass(frozen=True, slots=True)
class RolloutNow:
    """How far the newest revision has come."""

    rollout: Rollout | None
    gateways: tuple[GatewayState, ...]
    head: RevisionHead | None


@dataclass(frozen=True, slots=True)
class MonthExport:
    """A month's export as it would be downloaded now, or why it cannot be."""

    export: Export | None
    refused: Conflict | None


# ---- questions: (session, process, now, arguments) -> answer --------------------------------------------


def _pulse(session: Any, _of: Deps, _now: datetime) -> Pulse:
    rounds = queries_fleet.recent_rounds(session, limit=1)
    return Pulse(rounds[0].at if rounds else None, queries_fleet.scrape_period_s(session))


def _fleet(session: Any, _of: Deps, now: datetime) -> FleetNow:
    return FleetNow(
        health=queries_fleet.fleet_health(session, now),
        nodes=tuple(queries_nodes.node_table(session, now)),
        alerts=tuple(queries_fleet.open_alerts(session, now)),
        gateways=tuple(queries_policy.gateway_states(session, now)),
        rounds=tuple(queries_fleet.recent_rounds(session, limit=1)),
        changes=tuple(queries_policy.audit_page(session, limit=CHANGES_READ)),
        latency=queries_history.latency_history(session, "fleet", "", now - RECENT, now),
        traffic=queries_traffic_history.traffic_history(
            session, now - RECENT, now, has_latency=False
        ).flows,
        door_ttft=queries_traffic_history.door_ttft(session, now - RECENT, now),
        rollout=queries_policy.current_rollout(session),
    )


def _timeline(session: Any, _of: Deps, now: datetime, scope: Any, name: str, s: int) -> History:
    return queries_history.health_history(session, scope, name, now - timedelta(seconds=s), now)


def _traffic(session: Any, _of: Deps, now: datetime, s: int) -> Traffic:
    return queries_traffic_history.traffic_history(session, now - timedelta(seconds=s), now)


def _node(session: Any, _of: Deps, now: datetime, name: str, s: int) -> NodeDetail:
    window = min(timedelta(seconds=s), ROUNDS_SHOWN)
    return queries_nodes.node_detail(session, name, now, window=window)


def _node_latency(session: Any, _of: Deps, now: datetime, name: str, s: int) -> dict[Metric, LatencyView]:
    return queries_history.latency_history(session, "node", name, now - timedelta(seconds=s), now)


def _node_names(session: Any, _of: Deps, _now: datetime) -> list[str]:
    return queries_nodes.node_names(session)


def _policy(session: Any, _of: Deps, _now: datetime) -> PolicyNow:
    return PolicyNow(queries_policy.head(session), tuple(queries_policy.history(session, limit=50)))


def _revision(session: Any, _of: Deps, _now: datetime, number: int) -> Revision:
    found = queries_policy.revision(session, number)
    if found is None:
        raise NotFound(f"there is no revision {number}", hint="Pick one from the history")
    return found


def _tenant_keys(session: Any, _of: Deps, _now: datetime) -> list[TenantKey]:
    return queries_policy.tenant_keys(session)


def _rollout(session: Any, _of: Deps, now: datetime) -> RolloutNow:
    newest = queries_policy.history(session, limit=1)
    return RolloutNow(
        queries_policy.current_rollout(session),
        tuple(queries_policy.gateway_states(session, now)),
        newest[0] if newest else None,
    )


def _months(session: Any, of: Deps, now: datetime) -> list[MonthName]:
    return queries_spend.months_with_data(session, zone=of.zone, now=now)


def _spend(session: Any, of: Deps, now: datetime, month: str) -> MonthSpend:
    return queries_spend.month_spend(session, month, zone=of.zone, now=now)


def _export(session: Any, of: Deps, now: datetime, month: str) -> MonthExport:
    try:
        return MonthExport(queries_spend.month_file(session, month, zone=of.zone, now=now), None)
    except Conflict as refused:
        return MonthExport(None, refused)


def _prices(session: Any, _of: Deps, _now: datetime) -> list[Price]:
    return prices(session)


def _audit(session: Any, _of: Deps, _now: datetime, before: int | None, limit: int) -> list[AuditEntry]:
    return queries_policy.audit_page(session, before=before, limit=limit)


def _verified(session: Any, _of: Deps, _now: datetime) -> tuple[BrokenRow | None, int]:
    return audit.verify(session), audit.tail(session)[0]


QUESTIONS: dict[str, Callable[..., Any]] = {
    "pulse": _pulse,
    "fleet": _fleet,
    "timeline": _timeline,
    "traffic": _traffic,
    "node": _node,
    "node_latency": _node_latency,
    "node_names": _node_names,
    "policy": _policy,
    "revision": _revision,
    "tenant_keys": _tenant_keys,
    "rollout": _rollout,
    "months": _months,
    "spend": _spend,
    "export": _export,
    "prices": _prices,
    "audit": _audit,
    "verified": _verified,
}


#: Questions that take seconds -> what is made of their rows once the transaction is over.
LONG: dict[str, Callable[[Any], Any]] = {}


def _answer(question: str, arguments: tuple[Any, ...]) -> tuple[Any, datetime]:
    of = deps()
    now = of.clock.now()

    def asked() -> Any:
        with database.session_scope(of.reader) as session:
            found = QUESTIONS[question](session, of, now, *arguments)
        return LONG[question](found) if question in LONG else found

    return (of.long_patience if question in LONG else of.patience).ask(asked), now


@st.cache_data(ttl=TTL_S, show_spinner=False, max_entries=400)
def _cached(question: str, arguments: tuple[Any, ...]) -> tuple[Any, datetime]:
    return _answer(question, arguments)


@st.cache_data(ttl=TTL_LONG_S, show_spinner=False, max_entries=50)
def _cached_long(question: str, arguments: tuple[Any, ...]) -> tuple[Any, datetime]:
    return _answer(question, arguments)


@st.cache_data(ttl=TTL_SHORT_S, show_spinner=False, max_entries=50)
def _cached_briefly(question: str, arguments: tuple[Any, ...]) -> tuple[Any, datetime]:
    return _answer(question, arguments)


@st.cache_resource(show_spinner=False)
def _last_good() -> dict[tuple[Any, ...], tuple[Any, datetime]]:
    return {}


def ask(question: str, *arguments: Any, is_brief: bool = False) -> Reading[Any]:
    """Return the answer to one of QUESTIONS, or the last good one with the reason why there is no newer.

    Modules beside this one (`data_*`) add their questions to QUESTIONS when they are imported.
    """
    key, kept = (question, *arguments), _last_good()
    cached = _cached_long if question in LONG else _cached_briefly if is_brief else _cached
    try:
        value, as_of = cached(question, arguments)
    except FleetError as problem:
        return Reading(*kept.get(key, (None, None)), problem)
    except database.DBAPIError as exc:  # a query that took too long, or a schema of another release
        problem = Unavailable(
            f"the database did not answer {question!r}: {type(exc.orig).__name__}",
            hint="Try a shorter range; `rhodeck db check` says whether the schema fits",
        )
        return Reading(*kept.get(key, (None, None)), problem)
    if len(kept) > 500:
        kept.clear()
    kept[key] = (value, as_of)
    return Reading(value, as_of)


def forget() -> None:
    """Ask the database again at the next question: something was just changed."""
    _cached.clear()
    _cached_long.clear()
    _cached_briefly.clear()


def now() -> datetime:
    """Return the wall time ages are counted from."""
    return deps().clock.now()


# ---- what pages call ------------------------------------------------------------------------------------


def pulse() -> Reading[Pulse]:
    """When the newest round was."""
    return ask("pulse")


def fleet_now() -> Reading[FleetNow]:
    """The present of the whole fleet."""
    return ask("fleet")


def timeline(scope: str, name: str, span_s: int) -> Reading[History]:
    """Verdicts of the last `span_s` seconds of the fleet, a pool or a node."""
    return ask("timeline", scope, name, span_s)


def traffic(span_s: int) -> Reading[Traffic]:
    """What tenants did in the last `span_s` seconds."""
    return ask("traffic", span_s)


def node(name: str, span_s: int) -> Reading[NodeDetail]:
    """One node's page. `problem` is NotFound for a name nobody registered."""
    return ask("node", name, span_s)


def node_latency(name: str, span_s: int) -> Reading[dict[Metric, LatencyView]]:
    """One node's latency quantiles over the last `span_s` seconds."""
    return ask("node_latency", name, span_s)


def node_names() -> Reading[list[str]]:
    """Names of nodes that are not removed."""
    return ask("node_names")


def policy() -> Reading[PolicyNow]:
    """The newest revision and the history."""
    return ask("policy", is_brief=True)


def revision(number: int) -> Reading[Revision]:
    """One revision with its document."""
    return ask("revision", number)


def tenant_keys() -> Reading[list[TenantKey]]:
    """Every tenant's keys, without the keys."""
    return ask("tenant_keys", is_brief=True)


def rollout() -> Reading[RolloutNow]:
    """How far the newest revision has come, gateway by gateway."""
    return ask("rollout", is_brief=True)


def months() -> Reading[list[MonthName]]:
    """Months with data, newest first."""
    return ask("months")


def spend(month: str) -> Reading[MonthSpend]:
    """A month's lines."""
    return ask("spend", month)


def export(month: str) -> Reading[MonthExport]:
    """A month's export as it would be downloaded now."""
    return ask("export", month)


def price_list() -> Reading[list[Price]]:
    """Every price ever set, newest first."""
    return ask("prices", is_brief=True)


def audit_page(before: int | None, limit: int) -> Reading[list[AuditEntry]]:
    """A page of the record, newest first."""
    return ask("audit", before, limit, is_brief=True)


def audit_verified() -> Reading[tuple[BrokenRow | None, int]]:
    """The first row that cannot be trusted (None: all hold), and the number of the last row."""
    return ask("verified", is_brief=True)
