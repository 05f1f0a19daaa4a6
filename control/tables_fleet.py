"""Tables of what there is and what was observed: pools, nodes, gateways, rounds, samples, health, alerts.

Increments and covered seconds are stored, not rates, so that windows, nodes and quantiles add up.
Prevents: an average of percentiles, and a missing sample read as zero.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Identity, Index, Integer, SmallInteger, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from control.tables_base import Base

#: What panels of many nodes read of a sample: carried in its index, for a whole row is 1.6 KB.
PANEL_COLUMNS = [
    "engine",
    "covered_s",
    "running",
    "waiting",
    "kv_used_ratio",
    "arrivals",
    "completed",
    "prompt_tokens",
    "generation_tokens",
    "preemptions",
]


class PoolRow(Base):
    """Nodes that serve the same models under the same launch configuration."""

    __tablename__ = "pool"
    name: Mapped[str] = mapped_column(primary_key=True)
    models: Mapped[list[str]]
    max_num_seqs: Mapped[int | None]  # launch arguments; not in the engine's metrics
    max_num_batched_tokens: Mapped[int | None]
    scheduling_policy: Mapped[str | None]  # "fcfs" | "priority"
    chunked_prefill: Mapped[bool | None]
    configured_service_rate: Mapped[float | None]  # requests/s a node, typed by an operator
    configured_source: Mapped[str | None]
    configured_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    role: Mapped[str | None]  # "prefill" | "decode"; None: both phases of each request
    __table_args__ = (CheckConstraint("role IN ('prefill', 'decode')", name="role"),)


class NodeRow(Base):
    """One 8-GPU host serving vLLM. Drained nodes take no new work; removed ones keep their history."""

    __tablename__ = "node"
    name: Mapped[str] = mapped_column(primary_key=True)
    pool: Mapped[str] = mapped_column(ForeignKey("pool.name"))
    base_url: Mapped[str]
    metrics_path: Mapped[str] = mapped_column(server_default="/metrics")
    price_class: Mapped[str]
    state: Mapped[str]
    created_at: Mapped[datetime]
    removed_at: Mapped[datetime | None]
    __table_args__ = (
        CheckConstraint("price_class IN ('on_demand', 'reserved', 'spot')", name="price_class"),
        CheckConstraint("state IN ('active', 'draining', 'maintenance', 'removed')", name="state"),
    )


class GatewayRow(Base):
    """One admission gateway that the controller keeps converged."""

    __tablename__ = "gateway"
    name: Mapped[str] = mapped_column(primary_key=True)
    base_url: Mapped[str] = mapped_column(unique=True)
    state: Mapped[str]
    created_at: Mapped[datetime]
    removed_at: Mapped[datetime | None]
    process_group: Mapped[str | None]  # the gateway it is one of several processes of
    __table_args__ = (CheckConstraint("state IN ('active', 'removed')", name="state"),)


class RoundRow(Base):
    """One scrape round: every sample of it carries this timestamp."""

    __tablename__ = "round"
    at: Mapped[datetime] = mapped_column(primary_key=True)
    period_s: Mapped[float]
    duration_s: Mapped[float]
    lag_s: Mapped[float]  # started this much after it was due
    nodes_total: Mapped[int] = mapped_column(Integer)
    nodes_sampled: Mapped[int] = mapped_column(Integer)


class SampleRow(Base):
    """What one engine of one node did in one round: increments, end-of-window gauges, histograms.

    Rows without `covered_s` are first sights: gauges are known, increments are not. Histogram columns
    hold non-cumulative increments against `histogram_edges`; the last count is above the last edge.
    """

    __tablename__ = "sample"
    at: Mapped[datetime] = mapped_column(primary_key=True)
    node: Mapped[str] = mapped_column(primary_key=True)
    engine: Mapped[str] = mapped_column(primary_key=True)
    model: Mapped[str | None]
    counted_in: Mapped[str | None]  # the pool whose sums it is part of; "" while the node rests
    covered_s: Mapped[float | None]
    restarted: Mapped[bool] = mapped_column(server_default=text("false"))
    fetch_s: Mapped[float | None]
    arrivals: Mapped[int | None]
    completed: Mapped[int | None]
    errors: Mapped[int | None]
    aborted: Mapped[int | None]
    prompt_tokens: Mapped[int | None]
    prompt_tokens_computed: Mapped[int | None]
    generation_tokens: Mapped[int | None]
    preemptions: Mapped[int | None]
    prefix_cache_hits: Mapped[int | None]
    prefix_cache_queries: Mapped[int | None]
    running: Mapped[int | None] = mapped_column(Integer)
    waiting: Mapped[int | None] = mapped_column(Integer)
    waiting_capacity: Mapped[int | None] = mapped_column(Integer)
    kv_used_ratio: Mapped[float | None]
    kv_capacity_tokens: Mapped[int | None]
    ttft_edges: Mapped[int | None] = mapped_column(SmallInteger)  # histogram_edges.id
    ttft_counts: Mapped[list[int] | None]
    ttft_sum_s: Mapped[float | None]
    itl_edges: Mapped[int | None] = mapped_column(SmallInteger)
    itl_counts: Mapped[list[int] | None]
    itl_sum_s: Mapped[float | None]
    queue_wait_edges: Mapped[int | None] = mapped_column(SmallInteger)
    queue_wait_counts: Mapped[list[int] | None]
    queue_wait_sum_s: Mapped[float | None]
    e2e_edges: Mapped[int | None] = mapped_column(SmallInteger)
    e2e_counts: Mapped[list[int] | None]
    e2e_sum_s: Mapped[float | None]
    inference_sum_s: Mapped[float | None]
    inference_count: Mapped[int | None]
    prefill_sum_s: Mapped[float | None]
    prefill_count: Mapped[int | None]
    decode_sum_s: Mapped[float | None]
    decode_count: Mapped[int | None]
    prompt_len_edges: Mapped[int | None] = mapped_column(SmallInteger)  # of finished requests, tokens
    prompt_len_counts: Mapped[list[int] | None]
    prompt_len_sum_tokens: Mapped[float | None]
    output_len_edges: Mapped[int | None] = mapped_column(SmallInteger)
    output_len_counts: Mapped[list[int] | None]
    output_len_sum_tokens: Mapped[float | None]
    step_edges: Mapped[int | None] = mapped_column(SmallInteger)  # tokens an engine step carried
    step_counts: Mapped[list[int] | None]
    step_sum_tokens: Mapped[float | None]
    flags: Mapped[list[str]] = mapped_column(server_default=text("'{}'"))
    __table_args__ = (
        Index("ix_sample_at_brin", "at", postgresql_using="brin"),
        Index("ix_sample_node_at", "node", "at", postgresql_include=PANEL_COLUMNS),
        Index("ix_sample_restarted", "at", postgresql_where=text("restarted")),
        {"postgresql_partition_by": "RANGE (at)"},
    )


class ScrapeFailureRow(Base):
    """Why a node has no sample in a round."""

    __tablename__ = "scrape_failure"
    at: Mapped[datetime] = mapped_column(primary_key=True)
    node: Mapped[str] = mapped_column(primary_key=True)
    reason: Mapped[str]
    detail: Mapped[str]
    fetch_s: Mapped[float | None]


class HistogramEdgesRow(Base):
    """A set of finite upper bucket bounds, stored once."""

    __tablename__ = "histogram_edges"
    id: Mapped[int] = mapped_column(SmallInteger, Identity(), primary_key=True)
    edges: Mapped[list[float]] = mapped_column(unique=True)


class GatewaySampleRow(Base):
    """What one gateway did for one tenant and tier in one round: increments and end-of-window gauges."""

    __tablename__ = "gateway_sample"
    at: Mapped[datetime] = mapped_column(primary_key=True)
    gateway: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str] = mapped_column(primary_key=True)
    tier: Mapped[str] = mapped_column(primary_key=True)
    covered_s: Mapped[float | None]
    offered: Mapped[int | None]  # requests at the door, refused included
    repeated: Mapped[int | None]  # of them, tries of a request that was refused or failed before
    dispatched: Mapped[int | None]
    outcomes: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))  # outcome -> requests
    #: Limiter in shadow -> requests it let through.
    would_refuse: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    prompt_tokens: Mapped[int | None]
    output_tokens: Mapped[int | None]
    queued_requests: Mapped[int | None] = mapped_column(Integer)
    in_flight_requests: Mapped[int | None] = mapped_column(Integer)
    in_flight_tokens: Mapped[int | None]
    queue_wait_edges: Mapped[int | None] = mapped_column(SmallInteger)
    queue_wait_counts: Mapped[list[int] | None]
    queue_wait_sum_s: Mapped[float | None]
    ttft_edges: Mapped[int | None] = mapped_column(SmallInteger)
    ttft_counts: Mapped[list[int] | None]
    ttft_sum_s: Mapped[float | None]
    __table_args__ = (
        Index("ix_gateway_sample_at_brin", "at", postgresql_using="brin"),
        {"postgresql_partition_by": "RANGE (at)"},
    )


class HealthRow(Base):
    """One verdict per round and subject: fleet, pool, node. Unknown parts are NULL."""

    __tablename__ = "health"
    at: Mapped[datetime] = mapped_column(primary_key=True)
    scope: Mapped[str] = mapped_column(primary_key=True)  # "fleet" | "pool" | "node" | ...; see the check
    name: Mapped[str] = mapped_column(primary_key=True)  # "" for the fleet
    rho: Mapped[float | None]
    rho_low: Mapped[float | None]
    rho_high: Mapped[float | None]
    grade: Mapped[str | None]
    method: Mapped[str | None]
    binding: Mapped[str | None]
    service_rate: Mapped[float | None]
    service_rate_low: Mapped[float | None]
    service_rate_high: Mapped[float | None]
    output_tokens_rate: Mapped[float | None]
    arrival_rate: Mapped[float | None]
    throughput: Mapped[float | None]
    flow_balance: Mapped[float | None]
    flow_balance_z: Mapped[float | None]
    saturated: Mapped[bool | None]
    headroom_rps: Mapped[float | None]
    running: Mapped[int | None] = mapped_column(Integer)
    waiting: Mapped[int | None] = mapped_column(Integer)
    kv_used_ratio: Mapped[float | None]
    partial: Mapped[bool] = mapped_column(server_default=text("false"))
    detail: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))  # explanation, stale nodes
    __table_args__ = (
        CheckConstraint("scope IN ('fleet', 'pool', 'node', 'engine', 'model', 'tier')", name="scope"),
        Index("ix_health_scope_name_at", "scope", "name", "at"),
        Index("ix_health_at_brin", "at", postgresql_using="brin"),
        {"postgresql_partition_by": "RANGE (at)"},
    )


class CapacityEstimateRow(Base):
    """The newest capacity estimate of one engine."""

    __tablename__ = "capacity_estimate"
    node: Mapped[str] = mapped_column(primary_key=True)
    engine: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[datetime]
    service_rate: Mapped[float | None]
    service_rate_low: Mapped[float | None]
    service_rate_high: Mapped[float | None]
    grade: Mapped[str]
    method: Mapped[str]
    binding: Mapped[str | None]
    reach_ratio: Mapped[float | None]
    detail: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))


class AlertRow(Base):
    """One breach from opening to resolution. At most one unresolved row per rule and subject."""

    __tablename__ = "alert"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    rule: Mapped[str]
    scope: Mapped[str]
    subject: Mapped[str]
    state: Mapped[str]
    severity: Mapped[str]
    opened_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    acknowledged_at: Mapped[datetime | None]
    acknowledged_by: Mapped[str | None]
    resolved_at: Mapped[datetime | None]
    value: Mapped[float | None]
    threshold: Mapped[float | None]
    summary: Mapped[str]
    detail: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))
    pool: Mapped[str | None]  # of a node; NULL where there is none
    notified_at: Mapped[datetime | None]  # when people were first told that it is open
    resolved_notified_at: Mapped[datetime | None]  # when those were told that it is over
    __table_args__ = (
        CheckConstraint("state IN ('open', 'stale', 'acknowledged', 'resolved')", name="state"),
        Index(
            "uq_alert_unresolved",
            "rule",
            "scope",
            "subject",
            unique=True,
            postgresql_where=text("state <> 'resolved'"),
        ),
        Index(
            "ix_alert_to_tell",
            "rule",
            postgresql_where=text("notified_at IS NOT NULL AND resolved_notified_at IS NULL"),
        ),
        Index("ix_alert_opened_at", "opened_at"),
    )


class AlertTimerRow(Base):
    """The state machine of one rule and subject, so that a restart of the controller forgets nothing."""

    __tablename__ = "alert_timer"
    rule: Mapped[str] = mapped_column(primary_key=True)
    scope: Mapped[str] = mapped_column(primary_key=True)
    subject: Mapped[str] = mapped_column(primary_key=True)
    machine: Mapped[dict[str, Any]]
    updated_at: Mapped[datetime]
