"""A small fleet in the real tables, so that pages can be shown full, old or empty.

Three nodes (two answer, one never did), one gateway that refuses one request in twenty, a policy of two
revisions, prices and a month's use. All instants hang on `now`; `age_s` makes everything older.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import update
from sqlalchemy.orm import Session

from control import accounts, commands_fleet, commands_policy, prices, tenant_keys
from control.gateway_registry import add_gateway
from control.partitions import make_partitions
from control.roles import Actor, Role
from control.rollup_due import mark_rounds
from control.tables import (
    AlertRow,
    AssignmentRow,
    CapacityEstimateRow,
    GatewayObservedRow,
    GatewaySampleRow,
    HealthRow,
    HistogramEdgesRow,
    NodeQuarterRow,
    RolloutRow,
    RoundRow,
    SampleRow,
    ScrapeFailureRow,
    UsageQuarterRow,
)
from fleet.messages import PromptFit, QueueState
from fleet.months import quarter_of
from fleet.outcomes import Tier
from fleet.policy import default_policy
from tests.gateway_status import gateway_status

ADMIN = Actor("ana", Role.ADMIN, "cli")
PERIOD_S = 10.0
ROUNDS = 30
EDGES = (0.1, 0.5, 1.0)
PASSWORD = "correct horse battery"


def policy_document(tokens_per_minute: int = 60_000) -> dict[str, Any]:
    document = default_policy().as_document()
    document["tenants"] = {
        "acme": {
            "tier": "interactive",
            "allowed_tiers": ["interactive"],
            "tokens_per_minute": tokens_per_minute,
            "burst_tokens": 10_000,
            "max_in_flight_tokens": 50_000,
            "max_concurrent_requests": 50,
        }
    }
    return document


def fill(session: Session, now: datetime, *, age_s: float = 0.0) -> None:
    """Write everything in the caller's transaction. The newest round is `age_s` old."""
    last = now - timedelta(seconds=age_s)
    make_partitions(session, now)
    _register(session, last)
    edges = HistogramEdgesRow(edges=list(EDGES))
    session.add(edges)
    session.flush()
    for number in range(ROUNDS):
        at = last - timedelta(seconds=PERIOD_S * number)
        _round(session, at, edges.id)
        mark_rounds(session, [at], PERIOD_S)
    _capacity_and_alert(session, last)
    _gateway(session, last)
    _money(session, now)


def add_accounts(session: Session, now: datetime) -> None:
    """Make an account for every role, named like it. Each password takes a moment to hash."""
    for role in Role:
        accounts.create_account(
            session, name=role.value, password=PASSWORD, role=role, actor=ADMIN, now=now
        )


def _register(session: Session, at: datetime) -> None:
    commands_fleet.add_pool(session, ADMIN, name="main", models=["llama"], now=at, max_num_seqs=64)
    for name in ("n1", "n2", "n3"):
        commands_fleet.add_node(
            session, ADMIN, name=name, url=f"http://10.0.0.{name[1]}:8000", pool="main", now=at
        )
    add_gateway(session, name="gw-1", url="http://10.0.1.1:8400", actor=ADMIN, now=at)
    tenant_keys.create_tenant_key(session, tenant="acme", label="web", actor=ADMIN, now=at)
    commands_policy.ensure_first_revision(session, author=ADMIN, now=at, document=policy_document(50_000))
    commands_policy.publish(
        session,
        document=policy_document(),
        parent=1,
        author=ADMIN,
        note="more for acme",
        now=at,
        strategy="all_at_once",
    )
    session.execute(update(RolloutRow).where(RolloutRow.revision == 2).values(state="live"))


def _round(session: Session, at: datetime, edges: int) -> None:
    session.add(
        RoundRow(at=at, period_s=PERIOD_S, duration_s=0.2, lag_s=0.0, nodes_total=3, nodes_sampled=2)
    )
    session.add(ScrapeFailureRow(at=at, node="n3", reason="refused", detail="connection refused"))
    for name in ("n1", "n2"):
        session.add(
            SampleRow(
                at=at,
                node=name,
                engine="0",
                model="llama",
                covered_s=PERIOD_S,
                arrivals=20,
                completed=20,
                generation_tokens=6_000,
                prompt_tokens=10_000,
                preemptions=0,
                running=8,
                waiting=1,
                kv_used_ratio=0.5 if name == "n1" else 0.9,
                kv_capacity_tokens=100_000,
                ttft_edges=edges,
                ttft_counts=[10, 10, 0, 0],
                ttft_sum_s=5.0,
                itl_edges=edges,
                itl_counts=[6_000, 0, 0, 0],
                itl_sum_s=180.0,
                flags=[],
            )
        )
    verdict = {
        "rho": 0.62,
        "rho_low": 0.55,
        "rho_high": 0.7,
        "grade": "B",
        "method": "curve",
        "binding": "slots",
        "service_rate": 6.45,
        "arrival_rate": 4.0,
        "throughput": 4.0,
        "flow_balance": 1.0,
        "running": 16,
        "waiting": 2,
        "kv_used_ratio": 0.7,
    }
    explained = {"explanation": ["rho = lambda / mu = 4 / 6.45 = 0.62"], "missing_nodes": ["n3"]}
    session.add(HealthRow(at=at, scope="fleet", name="", partial=True, detail=explained, **verdict))
    session.add(HealthRow(at=at, scope="node", name="n1", partial=False, detail=explained, **verdict))
    session.add(
        GatewaySampleRow(
            at=at,
            gateway="gw-1",
            tenant="acme",
            tier="interactive",
            covered_s=PERIOD_S,
            offered=40,
            dispatched=38,
            outcomes={"completed": 38, "rejected_quota_rate": 2},
            prompt_tokens=20_000,
            output_tokens=12_000,
            queued_requests=3,
            in_flight_requests=16,
            in_flight_tokens=9_000,
        )
    )


def _capacity_and_alert(session: Session, at: datetime) -> None:
    session.add(
        CapacityEstimateRow(
            node="n1",
            engine="0",
            at=at,
            service_rate=3.2,
            service_rate_low=3.0,
            service_rate_high=3.5,
            grade="B",
            method="curve",
            binding="slots",
            reach_ratio=0.4,
            detail={
                "curve": {"intercept_s": 0.01, "slope_s": 0.001, "knee": None, "last_slope_s": 0.001},
                "operating_batch": 64.0,
            },
        )
    )
    session.add(
        AlertRow(
            rule="rho_high",
            scope="pool",
            subject="main",
            state="open",
            severity="critical",
            opened_at=at - timedelta(minutes=5),
            updated_at=at,
            value=0.93,
            threshold=0.85,
            summary="rho of pool main is 0.93",
        )
    )


def _gateway(session: Session, at: datetime) -> None:
    status = gateway_status(
        boot_id="boot",
        generation=4,
        revision=2,
        digest="d",
        in_flight_requests=16,
        in_flight_tokens=9_000,
        queues={tier: QueueState(requests=1, tokens=500, oldest_wait_s=0.2) for tier in Tier},
        prompts={"m-70b": PromptFit(bytes_per_token=3.9, error_ratio=0.04)},
        nodes_usable=2,
        nodes_total=3,
        usage_last_seq=1,
        clock_at_s=at.timestamp(),
        started_at_s=at.timestamp(),
    )
    session.add(
        AssignmentRow(gateway="gw-1", generation=4, revision=2, digest="d", document={}, updated_at=at)
    )
    session.add(
        GatewayObservedRow(
            gateway="gw-1",
            seen_at=at,
            tried_at=at,
            boot_id="boot",
            epoch=1,
            generation=4,
            revision=2,
            digest="d",
            acked_at=at,
            condition="converged",
            message="",
            status=status.model_dump(mode="json", by_alias=True),
        )
    )


def _money(session: Session, now: datetime) -> None:
    """One node up for a quarter-hour at 28 USD/h: 7.00 USD. acme held 16 of 64 slots: 1.75 of it."""
    quarter = quarter_of(now)
    prices.add_price(
        session,
        price_class="on_demand",
        usd_per_node_hour="28",
        effective_from=quarter - timedelta(days=40),
        source="list 2026-05",
        actor=ADMIN,
        now=now,
    )
    session.add(
        NodeQuarterRow(
            node="n1",
            quarter=quarter,
            pool="main",
            price_class="on_demand",
            up_s=Decimal(900),
            last_seen_at=now,
        )
    )
    session.add(
        UsageQuarterRow(
            quarter=quarter,
            tenant="acme",
            tier="interactive",
            model="llama",
            pool="main",
            requests=100,
            prompt_tokens=50_000,
            output_tokens=30_000,
            engine_s=Decimal(900 * 16),
        )
    )
