"""What is known of each engine's capacity: recent windows and a learner, kept in memory, refilled at start.

The loop that scrapes adds windows; a worker thread calls `refresh`, the only place where learners are
touched. Times are Unix seconds. Prevents: a fit that holds up a round, two threads in one learner, and
a restart that forgets a day of learning.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import numpy as np
from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from control.fleet_facts import UNLIMITED, FleetFacts, Pool
from control.freshness import DEFAULT_PERIOD_S
from control.sample_store import json_fit, plain_text
from control.scrape import Round
from control.tables import CapacityEstimateRow, RoundRow, SampleRow
from fleet.capacity import UNKNOWN, CapacityEstimate, ConfiguredCapacity
from fleet.capacity_learner import CapacityLearner, Siblings, with_fallback
from fleet.health_reading import TARGET_RHO, TimedWindow
from fleet.readings import EngineWindow, Histogram

#: Windows of all engines together that learners may hold: about 100 MB.
LEARNT_WINDOWS = 400_000
MIN_RING, MAX_RING = 720, 8640
#: What `assess` looks at, with room for late rounds.
RECENT_S = 360.0
REFILL = timedelta(hours=24)
_FLEET_GUESS = 50  # engines assumed before the fleet is known

EngineKey = tuple[str, str]  # node, engine


@dataclass(slots=True)
class _Engine:
    """One engine's windows and learner."""

    pool: str
    learner: CapacityLearner
    recent: deque[TimedWindow] = field(default_factory=deque[TimedWindow])
    pending: list[TimedWindow] = field(default_factory=list[TimedWindow])
    estimate: CapacityEstimate = UNKNOWN


def ring_of(engines: int) -> int:
    """Return how many windows each of so many engines may hold."""
    return min(MAX_RING, max(MIN_RING, LEARNT_WINDOWS // max(_FLEET_GUESS, engines)))


class CapacityBook:
    """Windows and capacity of every engine seen. `take` and reads on the loop, `refresh` in one thread."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._engines: dict[EngineKey, _Engine] = {}
        self._of_node: dict[str, list[EngineKey]] = {}
        self._refreshing = threading.Lock()
        self._expected = 0  # engines there will be: the first ones must not take the room of all

    def engines_of(self, node: str) -> list[EngineKey]:
        """Return the engines seen on a node, in order."""
        return self._of_node.get(node, [])

    def recent(self, key: EngineKey) -> list[TimedWindow]:
        """Return the windows of the last minutes, oldest first."""
        return list(self._engines[key].recent)

    def estimate(self, key: EngineKey) -> CapacityEstimate:
        """Return the newest estimate; `UNKNOWN` before the first."""
        return self._engines[key].estimate

    def take(self, round_: Round) -> None:
        """Add a round's windows. First sights have none."""
        at_s = round_.at.timestamp()
        self._expected = max(len(round_.nodes), len(self._engines))
        for result in round_.nodes:
            for sample in result.samples:
                if sample.covered_s is not None:
                    window = TimedWindow(at_s, sample.window)
                    engine = self._engine((result.node, sample.engine), result.pool)
                    engine.recent.append(window)
                    engine.pending.append(window)
                    while engine.recent[0].ended_at_s <= at_s - RECENT_S:
                        engine.recent.popleft()

    def _engine(self, key: EngineKey, pool: str) -> _Engine:
        engine = self._engines.get(key)
        if engine is None:
            ring = ring_of(max(self._expected, len(self._engines) + 1))
            engine = self._engines[key] = _Engine(pool, CapacityLearner(UNLIMITED, ring_windows=ring))
            self._of_node[key[0]] = sorted([*self._of_node.get(key[0], []), key])
        engine.pool = pool
        return engine

    def keep_only(self, nodes: Iterable[str]) -> None:
        """Forget engines of nodes that are gone."""
        names = set(nodes)
        if self._of_node.keys() - names:
            self._engines = {key: e for key, e in self._engines.items() if key[0] in names}
            self._of_node = {node: keys for node, keys in self._of_node.items() if node in names}

    def refresh(self, facts: FleetFacts, now_s: float) -> dict[EngineKey, CapacityEstimate]:
        """Feed the learners and return every engine's estimate. Call it in a worker thread.

        A pool's configured capacity is a node's: each of its engines has an equal part.
        """
        with self._refreshing:
            pools = {pool.name: pool for pool in facts.pools}
            engines = dict(self._engines)
            for engine in engines.values():
                self._feed(engine, pools.get(engine.pool))
            learned = {key: e.learner.learned(now_s, self._rng) for key, e in engines.items()}
            of_pool: dict[str, list[CapacityEstimate]] = {}
            for key, engine in engines.items():
                of_pool.setdefault(engine.pool, []).append(learned[key])
            # one that learned nothing is not among those it borrows from: one summary serves the pool
            lent = {pool: Siblings.of(estimates) for pool, estimates in of_pool.items()}
            for key, engine in engines.items():
                pool, per_node = pools.get(engine.pool), len(self._of_node.get(key[0], [key]))
                engine.estimate = with_fallback(learned[key], _part(pool, per_node), lent[engine.pool])
            return {key: engine.estimate for key, engine in engines.items()}

    def _feed(self, engine: _Engine, pool: Pool | None) -> None:
        if pool is not None:
            engine.learner.register(pool.limits)
        pending, engine.pending = engine.pending, []
        for timed in pending:
            engine.learner.add(timed.ended_at_s, timed.window)

    @staticmethod
    def _reach(session: Session, now: datetime) -> timedelta:
        """Return how far back the rings of the engines that were seen lately go, at most a day."""
        s = SampleRow
        seen = select(s.node, s.engine).where(s.at > now - REFILL / 24, s.at <= now).distinct().subquery()
        engines = session.scalar(select(func.count()).select_from(seen)) or 0
        period_s = session.scalar(
            select(func.max(RoundRow.period_s)).where(RoundRow.at > now - REFILL / 24)
        )
        return min(REFILL, timedelta(seconds=ring_of(engines) * (period_s or DEFAULT_PERIOD_S)))

    def refill(self, session: Session, facts: FleetFacts, now: datetime) -> int:
        """Learn from the last day's samples, as far back as the rings reach; return how many were read.

        For the start of a leader, before the first round. A window goes into its learner as it is read:
        a day of a thousand engines is eight million rows.
        """
        s = SampleRow
        pools = {pool.name: pool for pool in facts.pools}
        pool_of = {node.name: node.pool for node in facts.nodes}
        self._expected = max(len(facts.nodes), len(self._engines))
        since = now - self._reach(session, now)
        events = (
            select(func.sum(func.unnest(s.itl_counts).column_valued("n"))).scalar_subquery().label("events")
        )
        rows = session.execute(
            select(
                s.at, s.node, s.engine, s.model, s.covered_s, s.restarted, s.arrivals, s.completed,
                s.prompt_tokens, s.prompt_tokens_computed, s.generation_tokens, s.preemptions,
                s.running, s.waiting, s.waiting_capacity, s.kv_used_ratio, s.kv_capacity_tokens,
                s.itl_sum_s, s.flags, events,
            )
            .where(s.at > since, s.at <= now, s.covered_s.is_not(None), s.node.in_(list(pool_of)))
            .order_by(s.at)
            .execution_options(yield_per=5_000)
        )  # fmt: skip
        count = 0
        for row in rows.mappings():
            at: datetime = row["at"]
            histograms: dict[str, Histogram] = {}
            if row["events"] is not None:
                histograms["itl_s"] = Histogram((), (int(row["events"]),), row["itl_sum_s"])
            timed = TimedWindow(
                at.timestamp(),
                EngineWindow(
                    engine=row["engine"],
                    model=row["model"],
                    length_s=row["covered_s"],
                    restarted=row["restarted"],
                    arrivals=row["arrivals"],
                    completed=row["completed"],
                    errors=None,
                    aborted=None,
                    prompt_tokens=row["prompt_tokens"],
                    prompt_tokens_computed=row["prompt_tokens_computed"],
                    generation_tokens=row["generation_tokens"],
                    preemptions=row["preemptions"],
                    prefix_cache_hits=None,
                    prefix_cache_queries=None,
                    running=row["running"],
                    waiting=row["waiting"],
                    waiting_capacity=row["waiting_capacity"],
                    kv_used_ratio=row["kv_used_ratio"],
                    kv_capacity_tokens=row["kv_capacity_tokens"],
                    histograms=histograms,
                    flags=tuple(row["flags"]),
                ),
            )
            key = (row["node"], row["engine"])
            is_new = key not in self._engines
            engine = self._engine(key, pool_of[row["node"]])
            if is_new and engine.pool in pools:
                engine.learner.register(pools[engine.pool].limits)
            engine.learner.add(timed.ended_at_s, timed.window)
            is_newer = not engine.recent or engine.recent[-1].ended_at_s < timed.ended_at_s
            if is_newer and timed.ended_at_s > now.timestamp() - RECENT_S:
                engine.recent.append(timed)
            count += 1
        return count


def _part(pool: Pool | None, engines: int) -> ConfiguredCapacity | None:
    if pool is None or pool.configured is None:
        return None
    rate, tokens = pool.configured.requests_per_s, pool.configured.output_tokens_per_s
    return replace(
        pool.configured,
        requests_per_s=None if rate is None else rate / engines,
        output_tokens_per_s=None if tokens is None else tokens / engines,
    )


def write_estimates(session: Session, at: datetime, estimates: dict[EngineKey, CapacityEstimate]) -> None:
    """Store the newest estimate of each engine in the caller's transaction: one statement for them all."""
    rows = [
        {
            "node": node,
            "engine": plain_text(engine),
            "at": at,
            "service_rate": e.requests_per_s,
            "service_rate_low": e.low_requests_per_s,
            "service_rate_high": e.high_requests_per_s,
            "grade": e.grade.value if e.grade is not None else "",
            "method": e.method.value,
            "binding": e.binding,
            "reach_ratio": e.reach,
            "detail": json_fit(estimate_detail(e)),
        }
        for (node, engine), e in estimates.items()
    ]
    if not rows:
        return
    statement = insert(CapacityEstimateRow)
    keys = (CapacityEstimateRow.node, CapacityEstimateRow.engine)
    newer = {name: statement.excluded[name] for name in rows[0] if name not in ("node", "engine")}
    session.connection().execute(
        statement.on_conflict_do_update(index_elements=keys, set_=newer),
        list({(row["node"], row["engine"]): row for row in rows}.values()),  # cut names may meet
    )


def estimate_detail(e: CapacityEstimate) -> dict[str, object]:
    """Return the parts of an estimate a page needs to explain and draw it. Seconds, tokens, rates."""
    curve = None
    if e.curve is not None:
        curve = {
            "intercept_s": e.curve.intercept_s,
            "slope_s": e.curve.slope_s,
            "knee": e.curve.knee,
            "last_slope_s": e.curve.last_slope_s,
        }
    detail: dict[str, object] = {
        "tokens_per_s": e.tokens_per_s,
        "low_tokens_per_s": e.low_tokens_per_s,
        "high_tokens_per_s": e.high_tokens_per_s,
        "operating_batch": e.operating_batch,
        "limits": dict(e.limits),
        "rates_by_limit": {
            r.name: {"value": r.value, "low": r.low, "high": r.high} for r in e.rates_by_limit
        },
        "slots": e.slots,
        "batch_expected_ratio": e.occupancy_at(TARGET_RHO),
        "stale_since_s": e.stale_since_s,
        "curve": curve,
        "windows": e.windows,
        "fitted_at_s": e.fitted_at_s,
        "peak_seen_tokens_per_s": e.peak_seen_tokens_per_s,
        "drift": e.drift,
        "advised_batch": e.advised_batch,
        "flags": list(e.flags),
        "source": e.source,
    }
    if e.mix is not None:
        detail["mix"] = {
            "completions": e.mix.completions,
            "decode_events": e.mix.decode_events,
            "prompt_tokens": e.mix.prompt_tokens,
            "prompt_tokens_computed": e.mix.prompt_tokens_computed,
            "kv_ratio_per_sequence": e.mix.kv_ratio_per_sequence,
        }
    return {name: value for name, value in detail.items() if value is not None}
