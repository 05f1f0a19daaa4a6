"""Rounds on their way to Postgres: a bounded buffer, and one short transaction a round.

A round is written with its verdicts, alerts and capacity, or not at all, in the order of time and under
the leader's lease. Prevents: a slow database that stops the scraping, memory that grows while it is
away, half a round, and a loss nobody counted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg.types.json import Jsonb
from sqlalchemy import Engine
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.orm import Session

from control import alerts, lease, quality_store
from control.alerts import Change, Observation
from control.assess import Assessment, Verdict
from control.capacity_book import EngineKey, write_estimates
from control.database import session_scope
from control.flow_book import FlowRound
from control.flow_store import write_flow
from control.own_metrics import ControlMetrics
from control.page_store import PageStore
from control.quality import RoundQuality
from control.round_buffer import RoundBuffer
from control.sample_store import EdgeIds, RowRefused, copy_rows, edges_of, json_fit, write_round
from control.scrape import Round
from fleet.capacity import CapacityEstimate
from fleet.errors import Unavailable
from fleet.health_reading import Interval

log = logging.getLogger(__name__)

#: Bytes of rounds that may wait: hours of a hundred nodes, about an hour of a thousand.
MAX_BYTES = 256 * 1024 * 1024

_HEALTH_TYPES: dict[str, str] = {
    "at": "timestamptz",
    "scope": "text",
    "name": "text",
    "rho": "float8",
    "rho_low": "float8",
    "rho_high": "float8",
    "grade": "text",
    "method": "text",
    "binding": "text",
    "service_rate": "float8",
    "service_rate_low": "float8",
    "service_rate_high": "float8",
    "output_tokens_rate": "float8",
    "arrival_rate": "float8",
    "throughput": "float8",
    "flow_balance": "float8",
    "flow_balance_z": "float8",
    "saturated": "bool",
    "headroom_rps": "float8",
    "running": "int4",
    "waiting": "int4",
    "kv_used_ratio": "float8",
    "partial": "bool",
    "detail": "jsonb",
}


@dataclass(frozen=True, slots=True)
class Recorded:
    """Everything one round leaves behind."""

    round: Round
    assessment: Assessment
    observations: Sequence[Observation]
    estimates: dict[EngineKey, CapacityEstimate] = field(default_factory=dict[EngineKey, CapacityEstimate])
    quality: RoundQuality | None = None
    flow: FlowRound | None = None

    @property
    def rows(self) -> int:
        nodes = sum(max(1, len(result.samples)) for result in self.round.nodes)
        return nodes + sum(len(result.flows or ()) for result in self.round.gateways)


class RoundWriter:
    """The buffer and the writing. `offer` on the loop, `flush` in a thread, one at a time."""

    def __init__(
        self,
        engine: Engine,
        metrics: ControlMetrics,
        *,
        role: str = "controller",
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._engine = engine
        self._metrics = metrics
        self._role = role
        self._ids = EdgeIds()
        self._pages = PageStore()
        self._waiting: RoundBuffer[Recorded] = RoundBuffer(max_bytes)
        self.dropped = 0  # rounds lost for good: buffer full, refused by the database, or failed
        self._lock = threading.Lock()
        self._writing = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def offer(self, recorded: Recorded) -> None:
        """Put a round in line. Over the bound the oldest rounds are dropped, counted and logged.

        While many wait it takes as long as packing a round does: call it in a thread.
        """
        with self._lock:
            dropped = self._waiting.append(recorded, recorded.rows)
            self._show_waiting()
        if dropped:
            self.dropped += dropped
            self._metrics.rounds_dropped.labels(why="buffer_full").inc(dropped)
            log.warning("rounds dropped", extra={"rounds": dropped, "why": "buffer_full"})

    def _show_waiting(self) -> None:
        self._metrics.rounds_buffered.set(len(self._waiting))
        self._metrics.buffer_bytes.set(self._waiting.bytes)

    def discard(self, why: str) -> int:
        """Drop what waits, for example because another controller leads and writes its own rounds."""
        with self._lock:
            dropped = self._waiting.clear()
            self._show_waiting()
        if dropped:
            self._metrics.rounds_dropped.labels(why=why).inc(dropped)
            log.warning("rounds dropped", extra={"rounds": dropped, "why": why})
        return dropped

    def lose(self, why: str) -> None:
        """Count a round that was begun and never came to be put in line."""
        self.dropped += 1
        self._metrics.rounds_dropped.labels(why=why).inc()
        log.warning("round lost", extra={"why": why})

    def flush(self, epoch: int) -> list[Change]:
        """Write what waits, oldest first; return how alerts changed.

        Raises Unavailable or OperationalError when the database is away or slow (the rest stays in line)
        and LeaseLost when `epoch` does not lead any more. A round the database refuses for what is in it
        is dropped, counted and logged.
        """
        if not self._writing.acquire(blocking=False):
            return []  # an earlier call is still at it
        try:
            changes: list[Change] = []
            while self._waiting:
                changes += self._write_first(epoch)
            return changes
        finally:
            self._writing.release()

    def _write_first(self, epoch: int) -> list[Change]:
        with self._lock:
            first = self._waiting.first()
        if first is None:
            return []
        number, recorded = first
        changes: list[Change] = []
        try:
            self._ids.learn(self._engine, edges_of(recorded.round))
            with session_scope(self._engine) as session:
                lease.require(session, epoch, role=self._role)
                changes = self._write(session, recorded)
        except Unavailable:
            self._ids.forget()
            raise
        except (DataError, IntegrityError, RowRefused) as problem:
            self.dropped += 1
            self._metrics.rounds_dropped.labels(why="refused").inc()
            log.error(
                "round refused",
                extra={"round_at": recorded.round.at.isoformat(), "reason": str(problem)[:500]},
            )
        with self._lock:
            self._waiting.done(number)
            self._show_waiting()
        return changes

    def _write(self, session: Session, recorded: Recorded) -> list[Change]:
        if not write_round(session, recorded.round, self._ids):
            self._metrics.rounds_dropped.labels(why="stamp_taken").inc()
            return []  # written before, by us (an answer got lost) or by another leader
        assessment = recorded.assessment
        copy_rows(
            session, "health", _HEALTH_TYPES, [health_row(assessment, v) for v in assessment.verdicts]
        )
        write_estimates(session, assessment.at, recorded.estimates)
        self._pages.write(session, recorded.round)
        if recorded.quality is not None:
            quality_store.apply(session, recorded.quality)
        if recorded.flow is not None:
            write_flow(session, recorded.flow)
        changes = alerts.apply(session, assessment.at, assessment.period_s, recorded.observations)
        self._metrics.alerts_open.set(alerts.count_unresolved(session))
        self._metrics.rounds_stored.inc()
        return changes


def health_row(assessment: Assessment, verdict: Verdict) -> dict[str, Any]:
    """Return the `health` row of one verdict. What is unknown is NULL."""
    health = verdict.health
    rho, mu = health.rho, health.mu
    return {
        "at": assessment.at,
        "scope": verdict.scope,
        "name": verdict.name,
        "rho": rho.value,
        "rho_low": rho.low,
        "rho_high": rho.high,
        "grade": None if rho.grade is None else rho.grade.value,
        "method": rho.method,
        "binding": rho.binding,
        "service_rate": mu.value,
        "service_rate_low": mu.low,
        "service_rate_high": mu.high,
        "output_tokens_rate": health.mu_tokens.value,
        "arrival_rate": health.arrival_rate,
        "throughput": health.throughput,
        "flow_balance": health.flow_balance,
        "flow_balance_z": health.flow_z,
        "saturated": health.saturated,
        "headroom_rps": health.headroom,
        "running": verdict.running,
        "waiting": health.waiting,
        "kv_used_ratio": health.kv_used_ratio,
        "partial": health.is_partial or bool(verdict.missing_nodes),
        "detail": Jsonb(json_fit(_detail(verdict))),
    }


def _detail(verdict: Verdict) -> dict[str, object]:
    health = verdict.health
    detail: dict[str, object | None] = {
        "explanation": list(health.explanation),
        "missing_nodes": list(verdict.missing_nodes),
        "unmeasured": list(health.unmeasured),
        "arrivals_from": verdict.arrivals_from,
        "rho_slow": health.rho.slow,
        "rho_slow_low": health.rho.slow_low,
        "rho_slow_high": health.rho.slow_high,
        "rho_backlog": health.rho_backlog,
        "rho_backlog_low": health.rho_backlog_low,
        "rho_backlog_high": health.rho_backlog_high,
        "rho_by_limit": {name: ends(rho) for name, rho in health.rho_by_limit} or None,
        "mu_by_limit": {name: ends(mu) for name, mu in health.mu_by_limit} or None,
        "rho_with_higher": ends(health.rho_with_higher) or None,
        "demand_share": health.demand_share,
        "arrival_rate_slow": health.arrival_rate_slow,
        "competing_rate": health.competing_rate,
        "limited_rate": health.limited_rate,
        "repeated_rate": health.repeated_rate,
        "rho_limited": health.rho_limited,
        "rho_heard": health.rho_heard,
        "silent_gateways": dict(health.silent_gateways) or None,
        "output_tokens_rate_low": health.mu_tokens.low,
        "output_tokens_rate_high": health.mu_tokens.high,
        "headroom_tokens": health.headroom_tokens,
        "headroom_prompt_tokens": health.headroom_prompt_tokens,
        "headroom_engine_s": health.headroom_engine_s,
        "prompt_tokens": health.prompt_tokens,
        "output_tokens": health.output_tokens,
        "time_to_saturation_s": health.time_to_saturation_s,
        "time_to_drain_s": health.time_to_drain_s,
        "batch": health.batch,
        "free_batch": health.free_batch,
        "batch_used_ratio": health.batch_used_ratio,
        "batch_expected_ratio": health.batch_expected_ratio,
        "slots_used_ratio": health.slots_used_ratio,
        "worst": health.worst,
        "worst_rho": health.worst_rho,
        "worst_rho_low": health.worst_rho_low,
        "worst_rho_high": health.worst_rho_high,
        "imbalance": health.imbalance,
        "parts": health.parts,
    }
    return {name: value for name, value in detail.items() if value is not None}


def ends(interval: Interval) -> dict[str, float]:
    """Return the known of value, low and high by name; {} when nothing is."""
    held = {"value": interval.value, "low": interval.low, "high": interval.high}
    return {name: value for name, value in held.items() if value is not None}
