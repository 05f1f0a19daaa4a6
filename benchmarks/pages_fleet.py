"""A fleet for the benchmark of pages: 200 nodes in four pools, four gateways, 100 tenants, a month.

Rows are those the controller writes: each round a sample and a verdict a node, a row a gateway and tenant
for what it did; minutes and hours as the roller makes them. All of a round is a function of node, tenant
and second, so every run holds the same numbers, shifted to the present. `Feed` goes on writing rounds and
rolling them up, so that pages show a fleet that lives. Prevents: a dashboard that is
fast because its nodes are stale.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import Engine, text, update
from sqlalchemy.orm import Session

from benchmarks.pages_rounds import (
    AT,
    EDGES,
    FLOW,
    GATEWAYS,
    NODE,
    PERIOD_S,
    POOL,
    POOLS,
    SAMPLE,
    TENANT,
    TIER,
    TIERS,
    VERDICT,
)
from control import commands_fleet, commands_policy, prices, tenant_keys
from control.database import session_scope
from control.flow_book import FlowRound, FlowState
from control.flow_store import write_flow
from control.gateway_registry import add_gateway
from control.partitions import make_partition, make_partitions
from control.roles import Actor, Role
from control.rollup import Roller
from control.rollup_due import mark_rounds
from control.tables import AssignmentRow, GatewayObservedRow, RolloutRow
from control.tables_rollup import ENGINE, GATEWAY, HEALTH, Family, Level
from fleet.clock import Clock
from fleet.equilibrium import assess_equilibrium
from fleet.flow_signals import FlowRule, FlowSignal
from fleet.messages import GatewayStatus, PromptFit, QueueState
from fleet.outcomes import Tier
from fleet.policy import default_policy
from fleet.slo import Objective
from fleet.slo_windows import PAIRS, GoodCount, burn
from tests.pages.flow_rows import minutes

OPERATOR = Actor("ana", Role.ADMIN, "cli")


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything there is."""

    nodes: int = 200
    tenants: int = 100
    raw_h: float = 6.0
    days: int = 30


def fill(engine: Engine, size: Size, now: datetime) -> None:
    """Write the whole history until `now`."""
    first_s = _aligned(now) - int(size.raw_h * 3600)
    since = now - timedelta(days=size.days)
    with _unbounded(engine) as session:
        _register(session, size, now)
        make_partitions(session, now)
        for family in (ENGINE, HEALTH, GATEWAY):
            make_partition(session, family.raw, datetime.fromtimestamp(first_s, UTC), now)
            for level in family.levels:
                make_partition(session, family.table(level), since, now + timedelta(days=2))
    for part_s in range(first_s, _aligned(now) + 1, 1800):
        with _unbounded(engine) as session:
            add_rounds(session, size, part_s, min(part_s + 1800 - PERIOD_S, _aligned(now)))
    with _unbounded(engine) as session:
        _rollups(session, size, first_s, since, now)
        _money(session, size, now)
        _flow(session, size, now)
        observe(session, size, now)
        _mark(session, _aligned(now) - 60, _aligned(now))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("SET statement_timeout = 0"))
        connection.execute(text("VACUUM (ANALYZE)"))  # as autovacuum has done by then


def add_rounds(session: Session, size: Size, first_s: int, last_s: int) -> None:
    """Write the rounds of seconds `first_s` to `last_s`, both included."""
    given = {"first": first_s, "last": last_s, "period": PERIOD_S}
    every = "FROM generate_series(CAST(:first AS bigint), :last, :period) AS t"
    session.execute(
        text(f"INSERT INTO round SELECT {AT}, :period, 1.1, 0, {size.nodes}, {size.nodes} {every}"), given
    )
    nodes = f"generate_series(0, {size.nodes - 1}) AS n"
    _insert(session, "sample", {"at": AT} | SAMPLE, f"{every}, {nodes}", given)
    for scope, name, count in (
        ("node", NODE, size.nodes),
        ("pool", "'pool-' || n", POOLS),
        ("fleet", "''", 1),
        ("tier", f"(ARRAY{list(TIERS)})[1 + n]", len(TIERS)),
    ):
        row = {"at": AT, "scope": f"'{scope}'", "name": name} | VERDICT
        _insert(session, "health", row, f"{every}, generate_series(0, {count - 1}) AS n", given)
    tenants = f"generate_series(0, {size.tenants - 1}) AS n, generate_series(1, {GATEWAYS}) AS g"
    _insert(
        session, "gateway_sample", {"at": AT, "gateway": "'gw-' || g"} | FLOW, f"{every}, {tenants}", given
    )


def observe(session: Session, size: Size, now: datetime) -> None:
    """Have every gateway just heard, and every engine's capacity just learnt."""
    for number in range(1, GATEWAYS + 1):
        status = GatewayStatus(
            gateway=f"gw-{number}", boot_id="boot", version="1", ready=True, epoch=1, generation=4,
            revision=2, digest="d", from_disk=False, in_flight_requests=900, in_flight_tokens=900_000,
            queues={tier: QueueState(requests=9, tokens=9_000, oldest_wait_s=0.2) for tier in Tier},
            prompts={f"model-{n}": PromptFit(bytes_per_token=3.9, error_ratio=0.04) for n in range(POOLS)},
            nodes_usable=size.nodes, nodes_total=size.nodes, usage_spool="s", usage_last_seq=1,
            clock_at_s=now.timestamp(), started_at_s=now.timestamp() - 9_000,
        )  # fmt: skip
        session.merge(
            AssignmentRow(
                gateway=f"gw-{number}", generation=4, revision=2, digest="d", document={}, updated_at=now
            )
        )
        session.merge(
            GatewayObservedRow(
                gateway=f"gw-{number}", seen_at=now, tried_at=now, boot_id="boot", epoch=1, generation=4,
                revision=2, digest="d", acked_at=now, condition="converged", message="",
                status=status.model_dump(mode="json", by_alias=True),
            )
        )  # fmt: skip
    line = {"intercept_s": 0.01, "slope_s": 0.001, "knee": None, "last_slope_s": 0.001}
    curve = json.dumps({"curve": line, "operating_batch": 64.0})
    row = {
        "node": NODE, "engine": "'0'", "at": ":now", "service_rate": "4.2", "service_rate_low": "4.0",
        "service_rate_high": "4.5", "grade": "'B'", "method": "'curve'", "binding": "'slots'",
        "reach_ratio": "0.7", "detail": "CAST(:curve AS jsonb)",
    }  # fmt: skip
    session.execute(text("DELETE FROM capacity_estimate"))
    source = f"FROM generate_series(0, {size.nodes - 1}) AS n"
    _insert(session, "capacity_estimate", row, source, {"now": now, "curve": curve})


class Feed:
    """Writes a round each ten seconds, as the controller does, until it is closed."""

    def __init__(self, engine: Engine, size: Size, clock: Clock) -> None:
        self._engine, self._size, self._clock = engine, size, clock
        self._roller = Roller(engine, clock)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed")

    def __enter__(self) -> Feed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        with session_scope(self._engine) as session:
            last = session.execute(text("SELECT max(at) FROM round")).scalar_one()
        written_s = int(last.timestamp())
        while True:
            now = self._clock.now()
            if _aligned(now) > written_s:
                with _unbounded(self._engine) as session:
                    add_rounds(session, self._size, written_s + PERIOD_S, _aligned(now))
                    _mark(session, written_s + PERIOD_S, _aligned(now))
                    observe(session, self._size, now)
                    session.execute(text("UPDATE flow_now SET at = :now"), {"now": now})
                written_s = _aligned(now)
                self._roller.run(now, budget_s=5.0)
            if self._ended.wait(1.0):
                return


def _mark(session: Session, first_s: int, last_s: int) -> None:
    """Have the roller make the minutes of these rounds, and their hours."""
    stamps = [datetime.fromtimestamp(s, UTC) for s in range(first_s, last_s + 1, PERIOD_S)]
    mark_rounds(session, stamps, PERIOD_S)


def _aligned(now: datetime) -> int:
    return int(now.timestamp()) // PERIOD_S * PERIOD_S


@contextmanager
def _unbounded(engine: Engine) -> Generator[Session]:
    with session_scope(engine) as session:
        session.execute(text("SET LOCAL statement_timeout = 0"))
        yield session


def _insert(session: Session, table: str, row: dict[str, str], source: str, given: dict[str, Any]) -> None:
    columns, values = ", ".join(row), ", ".join(row.values())
    session.execute(text(f"INSERT INTO {table} ({columns}) SELECT {values} {source}"), given)


def _policy(size: Size, tokens_per_minute: int) -> dict[str, Any]:
    document = default_policy().as_document()
    document["tenants"] = {
        f"tenant-{n:03}": {
            "tier": TIERS[n % len(TIERS)],
            "allowed_tiers": [TIERS[n % len(TIERS)]],
            "tokens_per_minute": tokens_per_minute + 1_000 * n,
            "burst_tokens": 10_000,
            "max_in_flight_tokens": 50_000,
            "max_concurrent_requests": 50,
            "monthly_budget_usd": "90000.00",
        }
        for n in range(size.tenants)
    }
    return document


def _register(session: Session, size: Size, now: datetime) -> None:
    began = now - timedelta(days=size.days)
    for number in range(POOLS):
        commands_fleet.add_pool(
            session, OPERATOR, name=f"pool-{number}", models=[f"model-{number}"], now=began, max_num_seqs=64
        )
    row = {
        "name": NODE, "pool": POOL, "base_url": "'http://10.0.' || n / 250 || '.' || 1 + n % 250",
        "price_class": "(ARRAY['on_demand', 'reserved', 'spot'])[1 + n % 3]", "state": "'active'",
        "created_at": ":at",
    }  # fmt: skip
    _insert(session, "node", row, f"FROM generate_series(0, {size.nodes - 1}) AS n", {"at": began})
    for number in range(1, GATEWAYS + 1):
        add_gateway(
            session, name=f"gw-{number}", url=f"http://10.0.9.{number}:8400", actor=OPERATOR, now=began
        )
    session.execute(text("INSERT INTO histogram_edges (edges) VALUES (:edges)"), {"edges": EDGES})
    commands_policy.ensure_first_revision(
        session, author=OPERATOR, now=began, document=_policy(size, 500_000)
    )
    commands_policy.publish(
        session, document=_policy(size, 600_000), parent=1, author=OPERATOR, note="more for everybody",
        now=now - timedelta(hours=5), strategy="all_at_once",
    )  # fmt: skip
    session.execute(update(RolloutRow).where(RolloutRow.revision == 2).values(state="live"))
    for number in range(size.tenants):
        tenant_keys.create_tenant_key(
            session, tenant=f"tenant-{number:03}", label="web", actor=OPERATOR, now=began
        )


def _rolled(family: Family, level: Level, rounds: int) -> dict[str, str]:
    """Return what a roll-up of `rounds` such rounds holds, column by column, but for keys and time."""
    raw = {ENGINE.name: SAMPLE, HEALTH.name: VERDICT, GATEWAY.name: FLOW}[family.name]
    row = {f"{prefix}_edges": "1" for prefix in family.histograms}
    for measure in family.measures:
        name = measure.name
        stem, _, last = name.rpartition("_")
        if name == "rounds":
            value = str(rounds)
        elif name in ("covered_s", "counted_s"):
            value = f"{rounds * PERIOD_S}::float8"
        elif last == "counts":
            value = f"(SELECT array_agg(c * {rounds}) FROM unnest({raw[name]}) AS c)"
        elif name == "outcomes":
            value = f"""'{{"completed": {11 * rounds}, "rejected_quota_rate": {rounds}}}'::jsonb"""
        elif last == "n" and stem in raw:
            value = str(rounds)
        elif last in ("min", "max", "last") and stem in raw:
            value = raw[stem]
        elif last == "sum" and stem in raw:
            value = f"{rounds} * ({raw[stem]})"
        elif name in ("saturated", "partial", "restarts", "flagged"):
            value = "0"
        elif name in raw and measure.merge.value in ("add", "add_if_all"):
            value = f"{rounds} * ({raw[name]})"
        elif name in raw:
            value = raw[name]
        else:
            continue  # *_unseen_s: everything was seen
        row[name] = value
    return row | {"at": AT, "last_at": f"to_timestamp(t + {rounds * PERIOD_S - PERIOD_S})"}


def _rollups(session: Session, size: Size, first_s: int, since: datetime, now: datetime) -> None:
    month_s = int(since.timestamp())
    for level, step_s, begun_s in (
        (Level.MINUTE, 60, first_s),
        (Level.HOUR, 3600, month_s),
        (Level.DAY, 86_400, month_s),
    ):
        # what is not over has no row
        given = {
            "first": begun_s // step_s * step_s,
            "last": int(now.timestamp()) // step_s * step_s - step_s,
            "step": step_s,
        }
        every = "FROM generate_series(CAST(:first AS bigint), :last, :step) AS t"
        engines, verdicts, flows = (
            _rolled(f, level, step_s // PERIOD_S) for f in (ENGINE, HEALTH, GATEWAY)
        )
        subjects = (("node", NODE, size.nodes), ("pool", "'pool-' || n", POOLS), ("fleet", "''", 1))
        for scope, name, count in subjects if level in ENGINE.levels else ():
            source = f"{every}, generate_series(0, {count - 1}) AS n"
            keys = {"scope": f"'{scope}'", "name": name}
            _insert(session, HEALTH.table(level), keys | verdicts, source, given)
            of_engine = {"scope": "'engine'", "engine": "'0'"} if scope == "node" else {"engine": "''"}
            _insert(session, ENGINE.table(level), keys | of_engine | engines, source, given)
        source = f"{every}, generate_series(0, {size.tenants - 1}) AS n"
        for gateway in ("", *(f"gw-{number}" for number in range(1, GATEWAYS + 1))):
            keys = {"gateway": f"'{gateway}'", "tenant": TENANT, "tier": TIER}
            _insert(session, GATEWAY.table(level), keys | flows, source, given)


def _money(session: Session, size: Size, now: datetime) -> None:
    for price_class, usd in (("on_demand", "28"), ("reserved", "17"), ("spot", "9")):
        prices.add_price(
            session, price_class=price_class, usd_per_node_hour=usd, actor=OPERATOR, now=now,
            effective_from=now - timedelta(days=size.days + 40), source="list",
        )  # fmt: skip
    last_s = int(now.timestamp()) // 900 * 900
    given = {"first": last_s - size.days * 86_400, "last": last_s, "step": 900, "up": Decimal(900)}
    every = "FROM generate_series(CAST(:first AS bigint), :last, :step) AS t"
    row = {
        "node": NODE, "quarter": AT, "pool": POOL,
        "price_class": "(ARRAY['on_demand', 'reserved', 'spot'])[1 + n % 3]",
        "up_s": ":up", "last_seen_at": "to_timestamp(t + 899)",
    }  # fmt: skip
    _insert(session, "node_quarter", row, f"{every}, generate_series(0, {size.nodes - 1}) AS n", given)
    row = {
        "quarter": AT, "tenant": TENANT, "tier": TIER, "model": f"'model-' || n % {POOLS}", "pool": POOL,
        "requests": "1000 + n", "prompt_tokens": "500000 + n", "output_tokens": "300000 + n",
        "engine_s": "3000 + 10 * n",
    }  # fmt: skip
    _insert(session, "usage_quarter", row, f"{every}, generate_series(0, {size.tenants - 1}) AS n", given)


def _flow(session: Session, size: Size, now: datetime) -> None:
    """Write six hours of balance: the fleet, its pools and tiers."""
    kept = minutes(now, int(size.raw_h * 60))
    state = assess_equilibrium([m.minute for m in kept[-60:]], waiting=3, longest_wait_s=10.0, mu=12.0)
    hour = GoodCount(37_200, 34_920, 34_920)
    burns = {name: burn(Objective(), hour, hour) for name in PAIRS}
    subjects = [
        ("fleet", ""),
        *(("pool", f"pool-{n}") for n in range(POOLS)),
        *(("tier", name) for name in TIERS),
    ]
    states = tuple(
        FlowState(subject, state, 60, kept[-1], kept[-1].time, kept[-1].ttft, 60.0, burns, hour)
        for subject in subjects
    )
    signals = [
        FlowSignal(
            FlowRule.HOT_NODE, "node", f"node-{n:04}", 2.1, f"node-{n:04}: rho 0.93, the others 0.44"
        )
        for n in range(0, size.nodes, 20)
    ]
    for tier in TIERS:
        of = [f"tenant-{n:03}" for n in range(size.tenants) if TIERS[n % len(TIERS)] == tier]
        fair = 1 / len(of)
        shares = [
            {"tenant": name, "weight_ratio": fair, "share": fair, "entitled": fair, "is_backlogged": True}
            for name in of
        ]
        said = f"{tier}: everybody got its due"
        signals.append(FlowSignal(FlowRule.UNFAIRNESS, "tier", tier, 0.99, said, {"shares": shares}))
    closed = tuple((subject, minute, state) for subject in subjects for minute in kept)
    write_flow(session, FlowRound(now, states, closed, tuple(signals)))
