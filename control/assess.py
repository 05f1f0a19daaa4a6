"""From a round to verdicts: rho, capacity, saturation and flow of every node, pool and the fleet.

Pure but for the memory of recent rounds. Rates are per second, times Unix seconds. A node without a
fresh sample leaves the sums and is named; nodes that take no new work are judged but are no capacity of
their pool. Prevents: an idle or silent node pulling rho down, and demand measured only at the engines
while the gateways refuse it at the door.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from control.capacity_book import RECENT_S, REFILL, CapacityBook
from control.fleet_facts import FleetFacts, Node
from control.freshness import Freshness, age_s, freshness
from control.scrape import NodeResult, Round
from control.tables import SampleRow
from fleet.health import assess_engine, assess_fleet, assess_pool
from fleet.health_reading import Health, Offered, Scope

FAST_S, SLOW_S = 60.0, 300.0
#: Share of a window each gateway must have covered for its counts to stand for demand.
MIN_GATEWAY_COVERAGE = 0.8
#: Gateways that count less than this share of what the engines saw are being bypassed.
MIN_GATEWAY_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class NodeState:
    """What is known of one node's presence after a round."""

    node: Node
    freshness: Freshness
    age_s: float | None  # of its last sample; None: never seen
    flags: tuple[str, ...]
    reason: str | None  # of this round's failure
    detail: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """One row of `health` to be."""

    scope: str  # "fleet" | "pool" | "node"
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


@dataclass(frozen=True, slots=True)
class _Offer:
    """What one gateway counted in one round."""

    at_s: float
    offered: int
    covered_s: float
    queued: int | None


class Assessor:
    """Judges rounds as they come. Owned by the loop that scrapes; `book.refresh` runs elsewhere."""

    def __init__(self, book: CapacityBook) -> None:
        self.book = book
        self._last_sample_at: dict[str, datetime] = {}
        self._running: dict[str, int | None] = {}
        self._offers: dict[str, deque[_Offer]] = {}

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
        self._take_offers(round_, facts)
        results = {result.node: result for result in round_.nodes}
        states = [self._state(node, results.get(node.name), round_) for node in facts.nodes]
        engines = {state.node.name: self._engines(state, round_, facts) for state in states}
        verdicts = [self._node(state, engines[state.node.name], round_) for state in states]
        working = [state for state in states if state.node.takes_work]
        offered = self._offered(round_, facts, [h for s in working for h in engines[s.node.name]])
        for pool in facts.pools:
            members = [state for state in working if state.node.pool == pool.name]
            parts = [h for state in members for h in engines[state.node.name]]
            counted = offered if len(facts.pools) == 1 else None
            health = assess_pool(pool.name, parts, round_.at.timestamp(), offered=counted)
            verdicts.append(self._sum("pool", pool.name, health, members, counted))
        parts = [h for state in working for h in engines[state.node.name]]
        health = assess_fleet(parts, round_.at.timestamp(), offered=offered)
        verdicts.append(self._sum("fleet", "", health, working, offered))
        return Assessment(round_.at, round_.period_s, tuple(verdicts), tuple(states))

    def _state(self, node: Node, result: NodeResult | None, round_: Round) -> NodeState:
        flags: tuple[str, ...] = ()
        if result is not None and result.samples:
            self._last_sample_at[node.name] = round_.at
            flags = tuple(sorted({flag for sample in result.samples for flag in sample.window.flags}))
            running = [sample.window.running for sample in result.samples]
            self._running[node.name] = _known_sum(running)
        age = age_s(self._last_sample_at.get(node.name), round_.at)
        return NodeState(
            node=node,
            freshness=freshness(age, round_.period_s),
            age_s=age,
            flags=flags,
            reason=result.reason.value if result is not None and result.reason is not None else None,
            detail=result.detail if result is not None else "",
        )

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
                period_s=round_.period_s,
            )
            for key in keys
        ]
        # an engine label that is gone (fewer ranks after a restart) is no missing engine
        return [health for health in found if not health.is_stale] or found[:1]

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
        return Verdict(
            scope,
            name,
            health,
            _known_sum([self._running.get(node) for node in fresh]),
            "engines" if offered is None else "gateways",
            tuple(state.node.name for state in members if state.freshness is not Freshness.FRESH),
        )

    def _take_offers(self, round_: Round, facts: FleetFacts) -> None:
        names = {target.name for target in facts.gateways}
        self._offers = {name: offers for name, offers in self._offers.items() if name in names}
        at_s = round_.at.timestamp()
        for result in round_.gateways:
            offers = self._offers.setdefault(result.gateway, deque[_Offer]())
            while offers and offers[0].at_s <= at_s - RECENT_S:
                offers.popleft()
            flows = result.flows
            if flows is None:
                continue
            # an idle gateway's page has no flows yet: it counted nothing, over a whole round
            covered = max((f.covered_s or 0.0 for f in flows), default=round_.period_s)
            queued = [f.queued_requests for f in flows if f.queued_requests is not None]
            offers.append(
                _Offer(at_s, sum(f.offered or 0 for f in flows), covered, sum(queued) if queued else None)
            )

    def _offered(self, round_: Round, facts: FleetFacts, engines: Sequence[Health]) -> Offered | None:
        """Return demand as the gateways counted it, or None unless all of them did and none is bypassed."""
        at_s, period_s = round_.at.timestamp(), round_.period_s
        fast_s, slow_s = max(FAST_S, 2 * period_s), max(SLOW_S, 4 * period_s)
        fast, slow = self._counted(facts, at_s, fast_s), self._counted(facts, at_s, slow_s)
        if fast is None or slow is None:
            return None
        reached = sum(h.arrivals or 0 for h in engines)
        if fast[0] < MIN_GATEWAY_SHARE * reached - 3.0 * reached**0.5:
            return None
        queued = [offers[-1].queued for offers in self._offers.values() if offers]
        waiting = [n for n in queued if n is not None]
        return Offered(*fast, *slow, waiting=sum(waiting) if waiting else None)

    def _counted(self, facts: FleetFacts, at_s: float, span_s: float) -> tuple[int, float] | None:
        """Return (requests, covered seconds) of all gateways together over the last `span_s`."""
        if not facts.gateways:
            return None
        rate, covered_s = 0.0, 0.0
        wanted_s = MIN_GATEWAY_COVERAGE * min(span_s, FAST_S)
        for target in facts.gateways:
            offers = [o for o in self._offers.get(target.name, ()) if at_s - span_s < o.at_s <= at_s]
            covered = sum(o.covered_s for o in offers)
            if covered < wanted_s:
                return None
            rate += sum(o.offered for o in offers) / covered
            covered_s = max(covered_s, covered)
        return round(rate * covered_s), covered_s


def _known_sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
