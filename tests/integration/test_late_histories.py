"""Closed months whatever comes late, in any order: they stay, and with their adjustments they are whole.

Histories of late use, corrected lives, prices and closes over a summer time change, drawn by seed. Truth is
each month divided once, as if all that is known at the end had been there when it was closed.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy.orm import Session

from control import adjustments, allocation_rules, month_close, month_inputs
from control.closed_months import closed_months, stored_body, stored_lines
from control.database import session_scope
from control.day_spend import month_days
from control.export_month import month_in
from control.exports import Format, Layout
from control.node_life import correct_node_life
from control.prices import add_price
from control.queries_spend import month_spend
from control.tables import GatewayRow, NodeQuarterRow, NodeRow, PoolRow
from fleet.day_totals import DayTotals
from fleet.messages import UsageRecord
from fleet.months import QUARTER, month_of
from fleet.spend import LATE_NODE_TIME, LATE_USE, SpendLine, late_kind
from tests.month_books import FAY, a_record, deliver
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

ZONE = ZoneInfo("Europe/Berlin")
MONTHS = ("2026-02", "2026-03", "2026-04", "2026-05")  # 28 days, 31 less an hour, 30; the last stays open
SPANS = {name: month_of(name, ZONE) for name in (*MONTHS, "2026-06")}
BEGIN, END = SPANS["2026-02"].start, SPANS["2026-05"].end
NODES = {
    "a1": ("a", "on_demand"),
    "a2": ("a", "spot"),
    "a3": ("a", "reserved"),
    "b1": ("b", "spot"),
    "b2": ("b", "on_demand"),
}
FILES: tuple[tuple[Format, Layout], ...] = (("csv", "plain"), ("xlsx", "plain"), ("parquet", "focus"))
#: Adjustments say node-hours to six places: both ends of a change may be rounded.
ROUNDED_HOURS = Decimal("0.000001")
Place = tuple[str, str, str, str, str]


@dataclass
class History:
    """One drawn history: what was closed, and as what."""

    draw: random.Random
    key_file: Path
    seq: int = 0
    closed: list[str] = field(default_factory=list[str])
    files: dict[tuple[str, Format, Layout], str] = field(
        default_factory=dict[tuple[str, Format, Layout], str]
    )
    days: dict[str, DayTotals] = field(default_factory=dict[str, DayTotals])
    causes: set[str] = field(default_factory=set[str])  # why closed months were adjusted

    def now(self) -> datetime:
        """An hour after the month that is to be closed next, so that it can be."""
        return SPANS[MONTHS[len(self.closed)]].end + timedelta(hours=2)

    def use(self, session: Session, count: int) -> None:
        """Requests finished at any time up to now, the ends of months and of the lost hour more often."""
        edges = [span.start for span in SPANS.values()] + [datetime(2026, 3, 29, 1, tzinfo=BEGIN.tzinfo)]
        records: list[UsageRecord] = []
        for _ in range(count):
            at = BEGIN + (END - BEGIN) * self.draw.random()
            if self.draw.random() < 0.3:
                at = self.draw.choice(edges) + timedelta(seconds=self.draw.choice((-1, 0, 1)))
            self.seq += 1
            record = a_record(
                self.seq,
                min(max(at, BEGIN), self.now()),
                tenant=self.draw.choice(("acme", "beta", "größe", "=1+1")),
                model=self.draw.choice(("m", "n")),
                engine_s=round(self.draw.expovariate(1 / 4_000), 6),
            )
            records.append(record.model_copy(update={"pool": self.draw.choice(("a", "a", "b", "nowhere"))}))
        deliver(session, *records, at=self.now())

    def life(self, session: Session) -> None:
        """A node that was up, or was not, for some quarter-hours, perhaps over the end of a month."""
        node = self.draw.choice(sorted(NODES))
        month = SPANS[self.draw.choice(MONTHS[: len(self.closed) + 1])]
        start = month.start + self.draw.randrange((month.end - month.start) // QUARTER) * QUARTER
        if self.draw.random() < 0.4:
            start = month.end - QUARTER * self.draw.randrange(1, 6)
        for _ in range(self.draw.choice((1, 2))):  # said twice is said once
            correct_node_life(
                session,
                node=node,
                start=start,
                end=start + QUARTER * self.draw.choice((1, 3, 40, 400)),
                was_up=self.draw.random() < 0.7,
                reason="as the provider has it",
                actor=FAY,
                now=self.now(),
            )

    def price(self, session: Session) -> None:
        """A price from now on: it is of no month that is over."""
        add_price(
            session,
            price_class=self.draw.choice(("on_demand", "spot", "reserved")),
            pool=self.draw.choice((None, "a", "b")),
            usd_per_node_hour=str(Decimal(self.draw.randrange(10**8)) / 10**6),
            effective_from=self.now(),
            source="offer",
            actor=FAY,
            now=self.now(),
        )

    def amount(self, session: Session) -> None:
        """A correction by an amount of money."""
        if self.closed:
            adjustments.correct(
                session,
                month=self.draw.choice(self.closed),
                tenant="acme",
                amount_usd=f"{self.draw.choice((-1, 1)) * self.draw.randrange(1, 10**5) / 100:.2f}",
                reason="late node time: idle",  # words of ours are still somebody's reason
                actor=FAY,
                now=self.now(),
            )

    def close(self, session: Session) -> None:
        """Close the next month, and keep what it was closed as."""
        name = MONTHS[len(self.closed)]
        month_close.start_closing(session, name, zone=ZONE, actor=FAY, now=self.now())
        month_close.close_month(
            session, name, zone=ZONE, actor=FAY, now=self.now(), key_file=self.key_file, accept=True
        )
        for fmt, layout in FILES:
            self.files[name, fmt, layout] = self.file(session, name, fmt, layout)
        self.days[name] = month_days(session, name, zone=ZONE, now=self.now())
        self.closed.append(name)

    def file(self, session: Session, name: str, fmt: Format, layout: Layout) -> str:
        """Return the checksum of a month's file."""
        body = month_in(session, name, fmt, layout, zone=ZONE, now=END + timedelta(days=self.draw.random()))
        return hashlib.sha256(body.body).hexdigest()


@pytest.mark.parametrize("seed", range(2))
def test_whatever_comes_late_in_any_order_each_closed_month_stays_and_is_made_whole_to_the_cent(
    database: FreshDatabase, tmp_path: Path, seed: int
) -> None:
    history = History(random.Random(seed), tmp_path / "finance.key")
    with session_scope(database.engine) as session:
        _open_books(session, history)
    for name in MONTHS[:3]:
        for _ in range(3):
            with session_scope(database.engine) as session:
                history.draw.choice((history.life, history.life, history.price, history.amount))(session)
                history.use(session, history.draw.randrange(1, 4))
        with session_scope(database.engine) as session:
            _check(session, history)
        with session_scope(database.engine) as session:
            history.close(session)
            assert history.closed[-1] == name
        with session_scope(database.engine) as session:
            assert adjustments.pending(session) == []
            _check(session, history)
    assert history.causes == {LATE_USE, LATE_NODE_TIME}
    with session_scope(database.engine) as session:
        for (name, fmt, layout), kept in history.files.items():
            assert history.file(session, name, fmt, layout) == kept, (name, fmt, layout)


def _open_books(session: Session, history: History) -> None:
    session.add(PoolRow(name="a", models=["m", "n"], max_num_seqs=4, created_at=BEGIN))
    session.add(PoolRow(name="b", models=["m", "n"], max_num_seqs=None, created_at=BEGIN))
    session.add(GatewayRow(name="gw-1", base_url="http://127.0.0.1:1", state="active", created_at=BEGIN))
    session.flush()
    for price_class, usd in (("on_demand", "28.000001"), ("spot", "16.333333"), ("reserved", "18.8")):
        add_price(
            session,
            price_class=price_class,
            usd_per_node_hour=usd,
            effective_from=BEGIN,
            source="contract of the tests",
            actor=FAY,
            now=BEGIN,
        )
    allocation_rules.set_rule(
        session,
        from_month="2026-02",
        basis=history.draw.choice(allocation_rules.BASES),
        share=history.draw.choice(allocation_rules.SHARES),
        output_weight="12",
        reason="board of the tests",
        zone=ZONE,
        actor=FAY,
        now=BEGIN,
    )
    for pool, usd in (("a", "7.77"), (None, "0.333333")):
        allocation_rules.add_commitment(
            session,
            pool=pool,
            usd_per_hour=usd,
            upfront_usd="1000",
            starts_at=BEGIN + timedelta(days=3),
            ends_at=BEGIN + timedelta(days=50, minutes=7),
            source="contract of the tests",
            actor=FAY,
            now=BEGIN,
        )
    for node, (pool, price_class) in NODES.items():
        session.add(
            NodeRow(
                name=node,
                pool=pool,
                base_url="http://127.0.0.1:1",
                price_class=price_class,
                state="active",
                created_at=BEGIN,
            )
        )
        for at in (BEGIN, *(SPANS[name].end - QUARTER for name in MONTHS), END):
            session.add(
                NodeQuarterRow(
                    node=node,
                    quarter=at,
                    pool=pool,
                    price_class=price_class,
                    up_s=Decimal(history.draw.randrange(1, 900_000_000)) / 10**6,
                    last_seen_at=at + QUARTER,
                )
            )
    session.flush()
    history.use(session, 20)


def _check(session: Session, history: History) -> None:
    carried: list[SpendLine] = []
    for found in closed_months(session):
        lines = stored_lines(session, found.name)
        carried += [line for line in lines if line.kind == "adjustment"]
        assert sum(line.amount_usd for line in lines) == found.total_usd
        assert month_close.verify(session, found.name, key_file=history.key_file).holds
        assert hashlib.sha256(stored_body(session, found.name)).hexdigest() == found.sha256
        assert (
            month_days(session, found.name, zone=ZONE, now=history.now()).days[:27]
            == (history.days[found.name].days[:27])
        )
        for cut in (ZONE, ZoneInfo("Asia/Kolkata"), ZoneInfo("Pacific/Chatham")):
            days = month_days(session, found.name, zone=ZONE, now=END, cut=cut)
            assert days.total_usd == found.total_usd, (found.name, cut)
    late = [*carried, *adjustments.pending(session)]
    history.causes |= {
        cause for line in late for cause in (LATE_USE, LATE_NODE_TIME) if late_kind(line, cause)
    }
    for name in history.closed:
        month = month_of(name, ZONE)
        base = month_inputs.basics(session, month, history.now())
        whole = base.spend(month, month_inputs.use(session, month, base.rule), is_estimated=False)
        own = [line for line in stored_lines(session, name) if line.kind != "adjustment"]
        by_use = [line.amount_usd for line in late if line.adjusts == name and late_kind(line, LATE_USE)]
        assert sum(by_use) == 0
        made = _sums([*own, *(line for line in late if line.adjusts == name)])
        truth = _sums(whole.lines)
        for place in made.keys() | truth.keys():
            assert made[place][:2] == truth[place][:2], (name, place)  # to the cent, to the request
            assert abs(made[place][2] - truth[place][2]) <= ROUNDED_HOURS, (name, place)
    seen = Counter(
        (line.note, line.tenant, line.tier, line.model, line.pool, line.adjusts)
        for line in adjustments.pending(session)
    )
    assert [place for place, times in seen.items() if times > 1] == []
    name = MONTHS[len(history.closed)]
    open_spend = month_spend(session, name, zone=ZONE, now=history.now())
    assert open_spend.unpriced_node_hours == 0
    assert sum(line.amount_usd for line in open_spend.lines) == open_spend.total_usd
    for cut in (ZONE, ZoneInfo("Asia/Kolkata")):
        days = month_days(session, name, zone=ZONE, now=history.now(), cut=cut)
        assert days.total_usd == open_spend.total_usd


def _sums(lines: Iterable[SpendLine]) -> defaultdict[Place, list[Decimal]]:
    """Return USD, requests and node-hours by kind, tenant, tier, model and pool; corrections left out."""
    sums: defaultdict[Place, list[Decimal]] = defaultdict(lambda: [Decimal(0), Decimal(0), Decimal(0)])
    for line in lines:
        kind = late_kind(line) if line.kind == "adjustment" else line.kind
        if kind is not None:
            into = sums[kind, line.tenant, line.tier, line.model, line.pool]
            for index, value in enumerate((line.amount_usd, line.requests, line.node_hours)):
                into[index] += value
    return sums
