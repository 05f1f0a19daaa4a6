"""From a gateway's spool to a month that adds up: usage once, node time as observed, money to the cent."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from aiohttp import web
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from control import gateways, ledger, usage
from control.deps import Deps, Leadership
from control.exports import spend_csv
from control.lease import take
from control.prices import add_price
from control.queries_spend import month_spend, months_with_data, spend_by_tenant
from control.roles import Actor, Role
from control.spend_to_date import KEPT, SpendToDate
from control.tables import (
    GatewayRow,
    NodeQuarterRow,
    NodeRow,
    PoolRow,
    RoundRow,
    SampleRow,
    UsageCursorRow,
    UsageQuarterRow,
    UsageRecordRow,
)
from fleet.clock import ManualClock
from fleet.errors import Conflict, Forbidden, InvalidInput
from fleet.messages import UsagePage, UsageRecord
from tests import in_process
from tests.month_books import a_record
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

UTC_ZONE = ZoneInfo("UTC")
NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
TOKEN = "an-admin-token-of-the-tests"
FINANCE = Actor("fay", Role.FINANCE, "cli")


def record(
    seq: int, *, tenant: str = "acme", engine_s: float = 2.0, at: datetime = NOON, model: str = "m"
) -> UsageRecord:
    return a_record(seq, at, tenant=tenant, engine_s=engine_s, model=model)


class SpoolServer:
    """A gateway's usage endpoints over a list of records; can lose an acknowledgement or its spool."""

    def __init__(self) -> None:
        self.spool = "s1"
        self.records: list[UsageRecord] = []
        self.acknowledged = 0
        self.lose_acknowledgements = False

    async def get(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        after, limit = int(request.query["after"]), int(request.query["limit"])
        found = tuple(r for r in self.records if r.seq > after)[:limit]
        last = self.records[-1].seq if self.records else 0
        # Not validated: this gateway may say anything.
        page = UsagePage.model_construct(gateway="gw-1", spool=self.spool, records=found, last_seq=last)
        return web.Response(body=page.model_dump_json(by_alias=True), content_type="application/json")

    async def ack(self, request: web.Request) -> web.Response:
        if self.lose_acknowledgements:
            return web.Response(status=500)
        body = await request.json()
        assert body["spool"] == self.spool
        self.acknowledged = body["seq"]
        return web.json_response({})


def pull(
    database: FreshDatabase,
    clock: ManualClock,
    server: SpoolServer,
    ticks: int = 1,
    *,
    lease_is_stolen: bool = False,
) -> list[str]:
    """Run the controller's usage tick against a real socket."""

    async def scenario() -> list[str]:
        app = web.Application()
        app.add_routes([web.get("/admin/usage", server.get), web.post("/admin/usage/ack", server.ack)])
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        with Session(database.engine) as session, session.begin():
            session.merge(
                GatewayRow(name="gw-1", base_url=f"http://{host}:{port}", state="active", created_at=NOON)
            )
            held = take(session, role="controller", owner="me", ttl_s=0.001 if lease_is_stolen else 60)
        assert held is not None
        if lease_is_stolen:
            with Session(database.engine) as session, session.begin():
                session.execute(select(func.pg_sleep(0.05)))
                assert take(session, role="controller", owner="other", ttl_s=60) is not None
        leadership = Leadership("me", epoch=held.epoch, until_s=clock.monotonic_s() + 60)
        http = gateways.new_session()
        try:
            deps = Deps(
                engine=database.engine,
                clock=clock,
                leadership=leadership,
                http=lambda: http,
                admin_token=TOKEN,
            )
            return [await usage.tick(deps) for _ in range(ticks)]
        finally:
            await http.close()
            await in_process.close(runner)

    return asyncio.run(scenario())


@contextmanager
def reading(database: FreshDatabase) -> Iterator[Session]:
    with Session(database.engine) as session:
        yield session


def test_usage_is_taken_once_however_often_it_is_offered(
    database: FreshDatabase, clock: ManualClock
) -> None:
    server = SpoolServer()
    server.records = [record(seq) for seq in range(1, 2_501)]
    server.lose_acknowledgements = True  # the controller must take the same records again
    first = pull(database, clock, server)
    assert "500" in first[0]  # HTTP 500 on the acknowledgement is reported
    server.lose_acknowledgements = False
    pull(database, clock, server, ticks=3)
    assert server.acknowledged == 2_500
    with reading(database) as session:
        assert session.scalar(select(func.count()).select_from(UsageRecordRow)) == 2_500
        row = session.scalars(select(UsageQuarterRow)).one()
        assert (row.requests, row.prompt_tokens, row.output_tokens) == (2_500, 2_500 * 500, 2_500 * 300)
        assert row.engine_s == Decimal(5_000)


def test_a_new_spool_starts_again_at_one_and_nothing_is_lost(
    database: FreshDatabase, clock: ManualClock
) -> None:
    server = SpoolServer()
    server.records = [record(1), record(2), record(3)]
    pull(database, clock, server)
    server.spool, server.records = "s2", [record(1, tenant="beta"), record(2, tenant="beta")]
    pull(database, clock, server, ticks=2)
    with reading(database) as session:
        counts = dict(
            session.execute(select(UsageRecordRow.spool, func.count()).group_by(UsageRecordRow.spool)).all()
        )
        assert counts == {"s1": 3, "s2": 2}
        assert dict(session.execute(select(UsageCursorRow.spool, UsageCursorRow.acked_seq)).all()) == {
            "s1": 3,
            "s2": 2,
        }


def test_a_record_with_odd_text_does_not_stop_the_others(
    database: FreshDatabase, clock: ManualClock
) -> None:
    server = SpoolServer()
    server.records = [record(1), record(2, model="evil\x00model" + "x" * 5_000), record(3)]
    pull(database, clock, server)
    assert server.acknowledged == 3


@pytest.mark.parametrize(
    "nonsense",
    [
        {"finished_at_s": 1e300},
        {"engine_s": -1.0},
        {"engine_s": float("nan")},
        {"output_tokens": -5},
        {"seq": 2**70},
        {"engine_s": 1e300},
    ],
)
def test_a_page_of_nonsense_is_refused_whole_and_named(
    database: FreshDatabase, clock: ManualClock, nonsense: dict[str, float]
) -> None:
    server = SpoolServer()
    server.records = [record(1), record(2).model_copy(update=nonsense)]
    (said,) = pull(database, clock, server)
    assert "gw-1" in said
    assert f"not a page of usage: records/1/{next(iter(nonsense))}" in said
    assert server.acknowledged == 0
    with reading(database) as session:
        assert session.scalar(select(func.count()).select_from(UsageRecordRow)) == 0


def test_a_spool_whose_name_no_database_can_hold_is_refused(
    database: FreshDatabase, clock: ManualClock
) -> None:
    server = SpoolServer()
    server.spool, server.records = "s\x00", [record(1)]
    (said,) = pull(database, clock, server)
    assert "not a page of usage: spool" in said


def test_a_controller_that_lost_the_lease_stores_nothing(
    database: FreshDatabase, clock: ManualClock
) -> None:
    server = SpoolServer()
    server.records = [record(1)]
    (said,) = pull(database, clock, server, lease_is_stolen=True)
    assert "does not lead any more" in said
    assert server.acknowledged == 0
    with reading(database) as session:
        assert session.scalar(select(func.count()).select_from(UsageRecordRow)) == 0


# ---- node time ----


def a_node(session: Session, name: str = "n1", price_class: str = "on_demand") -> None:
    if session.get(PoolRow, "a") is None:
        session.add(PoolRow(name="a", models=["m"], max_num_seqs=4, created_at=NOON))
        session.flush()
    session.add(
        NodeRow(
            name=name,
            pool="a",
            base_url="http://127.0.0.1:1",
            price_class=price_class,
            state="active",
            created_at=NOON,
        )
    )


def seen(session: Session, node: str, *times: datetime) -> None:
    for at in times:
        if session.get(RoundRow, at) is None:
            session.add(RoundRow(at=at, period_s=10, duration_s=1, lag_s=0, nodes_total=1, nodes_sampled=1))
        session.add(SampleRow(at=at, node=node, engine="0", flags=[]))
    session.flush()


def up_seconds(session: Session) -> Decimal:
    return session.scalar(select(func.coalesce(func.sum(NodeQuarterRow.up_s), 0))) or Decimal(0)


def test_node_time_is_what_was_observed_and_counted_once(session: Session) -> None:
    a_node(session)
    a_node(session, "never-up")
    rounds = [NOON + timedelta(seconds=10 * i) for i in range(181)]  # half an hour
    seen(session, "n1", *rounds)
    assert ledger.count_node_time(session, rounds[-1]) == 1_800
    assert ledger.count_node_time(session, rounds[-1]) == 0  # a repeat adds nothing
    # Silent for ten minutes, then back for 20 s: the gap is not paid for.
    back = rounds[-1] + timedelta(minutes=10)
    seen(session, "n1", back, back + timedelta(seconds=10), back + timedelta(seconds=20))
    assert ledger.count_node_time(session, back) == 20
    assert up_seconds(session) == 1_820
    assert session.scalars(select(NodeQuarterRow.node).distinct()).all() == ["n1"]


def test_a_single_missed_round_is_bridged(session: Session) -> None:
    a_node(session)
    seen(session, "n1", NOON, NOON + timedelta(seconds=20), NOON + timedelta(seconds=50))
    assert ledger.count_node_time(session, NOON + timedelta(minutes=1)) == 50


def test_a_node_that_went_away_does_not_make_the_ledger_read_its_absence_again(session: Session) -> None:
    a_node(session)
    a_node(session, "gone")
    rounds = [NOON + timedelta(seconds=10 * i) for i in range(91)]
    seen(session, "gone", *rounds[:7])
    seen(session, "n1", *rounds)
    assert ledger.count_node_time(session, rounds[-1]) == 60 + 900
    n = NodeQuarterRow
    marks = session.scalars(select(func.max(n.last_seen_at)).group_by(n.node)).all()
    assert sorted(marks) == [rounds[6], rounds[-1]]
    week_ago = rounds[-1] - ledger.MAX_LOOK_BACK
    assert ledger.counted_up_to(marks, week_ago) == rounds[-1]
    assert ledger.counted_up_to([], week_ago) == week_ago
    # It comes back: only the time between its new sightings counts.
    later = [rounds[-1] + timedelta(seconds=10 * i) for i in range(1, 4)]
    seen(session, "gone", *later)
    assert ledger.count_node_time(session, later[-1]) == 20


def test_time_falls_into_its_own_quarter_hour(session: Session) -> None:
    a_node(session)
    start = NOON + timedelta(minutes=14, seconds=56)
    seen(session, "n1", start, start + timedelta(seconds=10))
    ledger.count_node_time(session, start)
    rows = dict(session.execute(select(NodeQuarterRow.quarter, NodeQuarterRow.up_s)).all())
    assert rows == {NOON: Decimal(4), NOON + timedelta(minutes=15): Decimal(6)}


# ---- prices and months ----


def priced(
    session: Session, usd: str, at: datetime, *, now: datetime = NOON, pool: str | None = None
) -> None:
    add_price(
        session,
        price_class="on_demand",
        pool=pool,
        usd_per_node_hour=usd,
        effective_from=at,
        source="contract of the tests",
        actor=FINANCE,
        now=now,
    )


def quarter(session: Session, at: datetime, up_s: int = 900) -> None:
    session.add(
        NodeQuarterRow(
            node="n1", quarter=at, pool="a", price_class="on_demand", up_s=Decimal(up_s), last_seen_at=at
        )
    )


def test_a_price_change_in_mid_month_leaves_the_first_half_alone(session: Session) -> None:
    a_node(session)
    priced(session, "28", datetime(2026, 1, 1, tzinfo=UTC))
    for hour in range(4):  # 4 quarter-hours before noon, 4 after
        quarter(session, NOON - timedelta(minutes=15 * (hour + 1)))
        quarter(session, NOON + timedelta(minutes=15 * hour))
    before = month_spend(session, "2026-03", zone=UTC_ZONE, now=NOON).total_usd
    assert before == Decimal("56.00")  # 2 h at 28
    priced(session, "40", NOON, now=NOON)
    after = month_spend(session, "2026-03", zone=UTC_ZONE, now=NOON).total_usd
    assert after == Decimal("68.00")  # 1 h at 28 + 1 h at 40
    with pytest.raises(InvalidInput, match="in the past"):
        priced(session, "1", NOON - timedelta(days=1), now=NOON)


def test_time_without_a_price_can_get_one_afterwards(session: Session) -> None:
    """Otherwise the first month, priced a day late, could never be exported."""
    a_node(session)
    quarter(session, NOON - timedelta(hours=1))
    quarter(session, NOON)
    priced(session, "40", NOON, now=NOON)
    assert month_spend(session, "2026-03", zone=UTC_ZONE, now=NOON).unpriced_node_hours == Decimal("0.25")
    priced(session, "28", NOON - timedelta(days=1), now=NOON + timedelta(hours=1))
    spend = month_spend(session, "2026-03", zone=UTC_ZONE, now=NOON)
    assert (spend.total_usd, spend.unpriced_node_hours) == (Decimal("17.00"), 0)  # 7 + 10


def test_a_pools_first_price_does_not_reach_back_over_the_common_one(session: Session) -> None:
    a_node(session)
    priced(session, "28", NOON - timedelta(days=2))
    quarter(session, NOON - timedelta(hours=1))
    with pytest.raises(InvalidInput, match="in the past"):
        priced(session, "1", NOON - timedelta(days=1), now=NOON, pool="a")
    # Before the common price there was none: up to it a pool's price would hold, but not only up to it.
    with pytest.raises(InvalidInput, match="in the past"):
        priced(session, "1", NOON - timedelta(days=3), now=NOON, pool="a")
    priced(session, "20", NOON, now=NOON, pool="a")
    assert month_spend(session, "2026-03", zone=UTC_ZONE, now=NOON).total_usd == Decimal("7.00")


def test_only_finance_and_admin_set_prices(session: Session) -> None:
    with pytest.raises(Forbidden):
        add_price(
            session,
            price_class="spot",
            usd_per_node_hour="16",
            effective_from=NOON,
            source="x",
            actor=Actor("olga", Role.OPERATOR, "page"),
            now=NOON,
        )


@pytest.mark.parametrize("usd", ["-1", "NaN", "1e99", "free", "0.0000001"])
def test_what_is_not_a_price_is_refused(session: Session, usd: str) -> None:
    with pytest.raises(InvalidInput, match="is not a price"):
        priced(session, usd, NOON)


def test_days_seen_from_half_past_sum_to_the_month(session: Session) -> None:
    """UTC+5:30: every quarter-hour belongs to exactly one month, and months add up to all of it."""
    a_node(session)
    priced(session, "28", datetime(2026, 1, 1, tzinfo=UTC))
    start = datetime(2026, 2, 28, 12, tzinfo=UTC)
    for step in range(96):  # a whole day over the month's end
        quarter(session, start + timedelta(minutes=15 * step))
    india = ZoneInfo("Asia/Kolkata")
    february = month_spend(session, "2026-02", zone=india, now=NOON).total_usd
    march = month_spend(session, "2026-03", zone=india, now=NOON).total_usd
    # March begins at 18:30 UTC of 28 February: 6.5 h before it, 17.5 h after, at 28 an hour.
    assert (february, march) == (Decimal("182.00"), Decimal("490.00"))
    assert [m.name for m in months_with_data(session, zone=india, now=NOON)] == ["2026-03", "2026-02"]


def test_the_csv_adds_up_and_runs_no_formula(session: Session) -> None:
    a_node(session)
    priced(session, "28.01", datetime(2026, 1, 1, tzinfo=UTC))
    for step in range(7):
        quarter(session, NOON + timedelta(minutes=15 * step))
    page = UsagePage(
        gateway="gw-1",
        spool="s",
        records=(record(1, engine_s=333.3), record(2, tenant="beta", engine_s=77.7, model="=HYPERLINK(1)")),
        last_seq=2,
    )
    assert usage.store_page(session, "gw-1", page, NOON) == 2
    spend = month_spend(session, "2026-03", zone=UTC_ZONE, now=NOON)
    export = spend_csv(spend, NOON)
    rows = list(csv.DictReader(io.StringIO(export.body.decode(), newline="")))
    assert (
        sum((Decimal(row["amount_usd"]) for row in rows), Decimal(0)) == spend.total_usd == Decimal("49.02")
    )
    assert [row["tenant"] for row in rows] == ["", "acme", "beta"]
    assert rows[2]["model"] == "'=HYPERLINK(1)"
    assert export.manifest()["total_usd"] == "49.02"
    assert spend_csv(spend, NOON).body == export.body
    by_tenant = spend_by_tenant(session, NOON, zone=UTC_ZONE)
    assert sum(by_tenant.values(), Decimal(0)) == spend.total_usd - spend.idle_usd


def test_an_export_with_unpriced_time_is_refused_whole(session: Session) -> None:
    a_node(session)
    quarter(session, NOON)
    spend = month_spend(session, "2026-03", zone=UTC_ZONE, now=NOON)
    with pytest.raises(Conflict, match=r"0\.25 node-hours of 2026-03 have no price"):
        spend_csv(spend, NOON)


def test_spend_to_date_is_added_up_anew_in_time_and_at_the_turn_of_the_month(session: Session) -> None:
    turn = datetime(2026, 4, 1, tzinfo=UTC)
    before = turn - timedelta(seconds=2)
    a_node(session)
    priced(session, "28.00", datetime(2026, 1, 1, tzinfo=UTC))
    quarter(session, turn - timedelta(minutes=15))
    quarter(session, NOON)
    store_use(session, record(1, at=NOON, engine_s=600.0))
    spend = SpendToDate(UTC_ZONE)
    first = spend(session, before - KEPT)["acme"]
    assert first == spend_by_tenant(session, before - KEPT, zone=UTC_ZONE)["acme"] > 0
    store_use(session, record(2, at=turn - timedelta(minutes=10), engine_s=900.0))
    assert spend(session, before - timedelta(seconds=1))["acme"] == first  # kept for a while
    assert spend(session, before)["acme"] > first
    assert spend(session, turn) == {}  # two seconds on, and another month


def store_use(session: Session, one: UsageRecord) -> None:
    page = UsagePage(gateway="gw-1", spool="s", records=(one,), last_seq=one.seq)
    assert usage.store_page(session, "gw-1", page, NOON) == 1
