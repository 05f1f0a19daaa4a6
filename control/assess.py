"""From a round to verdicts: rho, capacity, saturation and flow of every node, pool and the fleet.

Pure but for the memory of recent rounds. Rates are per second, times Unix seconds. A node without a
fresh sample leaves the sums and is named; nodes that take no new work are judged but are no capacity of
their pool. Prevents: an idle or silent node pulling rho down, and demand measured only at the engines
while the gateways refuse it at the door.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from control.capacity_book import REFILL, CapacityBook
from control.demand import Demand
from control.fetch import shown_url
from control.fleet_facts import FleetFacts, Node
from control.freshness import Freshness, age_s, freshness, news_period_s
from control.scrape import NodeResult, Round
from control.tables import SampleRow
from fleet.health import assess_engine, assess_fleet, assess_group, assess_pool
from fleet.health_reading import Health, Offered, Scope
from fleet.tier_load import assess_tiers


@dataclass(frozen=True, slots=True)
class NodeState:
    """What is known of one node's presence after a round."""

    node: Node
    freshness: Freshness
    age_s: float | None  # of its last sample; None: never seen
    flags: tuple[str, ...]
    reason: str | None  # of this round's failure
    detail: str
    lost_pages: tuple[str, ...] = ()  # pages of engines of it that gave nothing this round


@dataclass(frozen=True, slots=True)
class Verdict:
    """One row of `health` to be."""

    scope: str  # "node" | "engine" | "pool" | "model" | "tier" | "fleet"
    name: str
    health: Health
    running: int | None
    arrivals_from: str  # "gateways" | "engines"
    missing_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Assessment:
    """Everything one round says."""

    at: datetime
    period_s: float
    verdicts: tuple[Verdict, ...]
    nodes: tuple[NodeState, ...]


class Assessor:
    """Judges rounds as they come. Owned by the loop that scrapes; `book.refresh` runs elsewhere."""

    def __init__(self, book: CapacityBook) -> None:
        self.book = book
        self._last_sample_at: dict[str, datetime] = {}
        self._running: dict[str, int | None] = {}
        self._interval_s: dict[str, float | None] = {}  # of nodes that another server scrapes
        self._demand = Demand()

    def refill(self, session: Session, facts: FleetFacts, now: datetime) -> int:
        """Learn from the database what earlier processes saw; return the windows taken."""
        newest = session.execute(
            select(SampleRow.node, func.max(SampleRow.at))
            .where(SampleRow.at > now - REFILL)
            .group_by(SampleRow.node)
        )
        self._last_sample_at = {node: at for node, at in newest}
        return self.book.refill(session, facts, now)

    def assess(self, round_: Round, facts: FleetFacts) -> Assessment:
        """Take a round and return its verdicts: nodes, pools, then the fleet."""
        self.book.take(round_)
        self.book.keep_only(node.name for node in facts.nodes)
        self._demand.take(round_, facts)
        results = {result.node: result for result in round_.nodes}
        states = [self._state(node, results.get(node.name), round_) for node in facts.nodes]
        engines = {state.node.name: self._engines(state, round_, facts) for state in states}
        verdicts = [self._node(state, engines[state.node.name], round_) for state in states]
        working = [state for state in states if state.node.takes_work]
        parts = [h for state in working for h in engines[state.node.name]]
        offered = self._demand.offered(round_, facts, sum(h.arrivals or 0 for h in parts))
        for several in engines.values():
            if len(several) > 1:
                verdicts += [Verdict("engine", h.name, h, h.running, "engines") for h in several]
        for pool in facts.pools:
            members = [state for state in working if state.node.pool == pool.name]
            own = [h for state in members for h in engines[state.node.name]]
            counted = offered if len(facts.pools) == 1 else None
            health = assess_pool(pool.name, own, round_.at.timestamp(), offered=counted)
            verdicts.append(self._sum("pool", pool.name, health, members, counted))
        health = assess_fleet(parts, round_.at.timestamp(), offered=offered)
        verdicts += _models(parts, offered, round_)
        if offered is not None:
            verdicts += [
                Verdict("tier", h.name, h, None, "gateways")
                for h in assess_tiers(health, self._demand.tiers(round_, facts), round_.at.timestamp())
            ]
        verdicts.append(self._sum("fleet", "", health, working, offered))
        return Assessment(round_.at, round_.period_s, tuple(verdicts), tuple(states))

    def _state(self, node: Node, result: NodeResult | None, round_: Round) -> NodeState:
        flags: tuple[str, ...] = ()
        if result is not None and (result.samples or result.interval_s is not None):
            self._interval_s[node.name] = result.interval_s
        if result is not None and result.samples:
            self._last_sample_at[node.name] = round_.at
            flags = tuple(sorted({flag for sample in result.samples for flag in sample.window.flags}))
            running = [sample.window.running for sample in result.samples]
            self._running[node.name] = _known_sum(running)
        age = age_s(self._last_sample_at.get(node.name), round_.at)
        return NodeState(
            node=node,
            freshness=freshness(age, self._period_s(node.name, round_)),
            age_s=age,
            flags=flags,
            reason=result.reason.value if result is not None and result.reason is not None else None,
            detail=result.detail if result is not None else "",
            lost_pages=() if result is None else result.lost_pages,
        )

    def _period_s(self, node: str, round_: Round) -> float:
        return news_period_s(round_.period_s, self._interval_s.get(node))

    def _engines(self, state: NodeState, round_: Round, facts: FleetFacts) -> list[Health]:
        """Return the health of a node's engines; one stale part for a node without fresh samples."""
        name, at_s = state.node.name, round_.at.timestamp()
        keys = self.book.engines_of(name)
        if state.freshness is not Freshness.FRESH or not keys:
            return [Health(name, Scope.ENGINE, at_s, is_stale=True, stale=(name,))]
        pool = next((pool for pool in facts.pools if pool.name == state.node.pool), None)
        found = [
            assess_engine(
                name if len(keys) == 1 else f"{name}/{key[1]}",
                self.book.recent(key),
                self.book.estimate(key),
                at_s,
                limits=None if pool is None else pool.limits,
                period_s=self._period_s(name, round_),
            )
            for key in keys
        ]
        # an engine label that is gone (fewer ranks after a restart) is no missing engine; one that stands
        # still says what it runs, and is
        living = [health for health in found if not health.is_stale or health.running is not None] or found[
            :1
        ]
        return living + [
            Health(f"{name} {shown_url(url)}", Scope.ENGINE, at_s, is_stale=True, stale=(name,))
            for url in state.lost_pages  # an engine that cannot be asked still is one
        ]

    def _node(self, state: NodeState, engines: Sequence[Health], round_: Round) -> Verdict:
        name = state.node.name
        health = (
            replace(engines[0], name=name)
            if len(engines) == 1
            else assess_pool(name, engines, round_.at.timestamp())
        )
        fresh = state.freshness is Freshness.FRESH
        missing = () if fresh else (name,)
        return Verdict("node", name, health, self._running.get(name) if fresh else None, "engines", missing)

    def _sum(
        self, scope: str, name: str, health: Health, members: Sequence[NodeState], offered: Offered | None
    ) -> Verdict:
        fresh = [state.node.name for state in members if state.freshness is Freshness.FRESH]
        missing = {state.node.name for state in members} - set(fresh) | set(health.stale)
        return Verdict(
            scope,
            name,
            health,
            _known_sum([self._running.get(node) for node in fresh]),
            "engines" if offered is None else "gateways",
            tuple(state.node.name for state in members if state.node.name in missing),
        )


def _models(parts: Sequence[Health], offered: Offered | None, round_: Round) -> list[Verdict]:
    """Return a verdict for each model that engines name.

    Gateways do not count by model: what they refused is known of a model only where it is the only one.
    """
    names = sorted({part.model for part in parts if part.model})
    counted = offered if len(names) == 1 and all(p.model or p.is_stale for p in parts) else None
    at_s = round_.at.timestamp()
    found: list[Verdict] = []
    for name in names:
        own = [p for p in parts if p.model == name]
        health = assess_group(name, Scope.MODEL, own, at_s, offered=counted)
        found.append(
            Verdict("model", name, health, health.running, "engines" if counted is None else "gateways")
        )
    return found


def _known_sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
