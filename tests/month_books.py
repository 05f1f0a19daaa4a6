"""The books the finance tests begin with: February 2026, worked out by hand.

10 node-hours at 28 USD are 280 USD; 4 places make 40 engine-hours, of which acme held 10: 70 USD; 210 are
idle. One node-hour of March keeps the ledger going. Prevents: tests that each set up a month of their own.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

from sqlalchemy.orm import Session

from control import usage
from control.prices import add_price
from control.roles import Actor, Role
from control.tables import GatewayRow, NodeQuarterRow, PoolRow
from fleet.messages import UsagePage, UsageRecord
from fleet.outcomes import Outcome, Tier

ZONE = ZoneInfo("UTC")
FAY = Actor("fay", Role.FINANCE, "cli")
FEBRUARY = datetime(2026, 2, 1, tzinfo=UTC)
MARCH = datetime(2026, 3, 1, tzinfo=UTC)
APRIL = datetime(2026, 4, 1, tzinfo=UTC)
CLOSING_TIME = MARCH + timedelta(hours=2)


def a_record(
    seq: int, at: datetime, *, tenant: str = "acme", engine_s: float = 3_600.0, model: str = "m"
) -> UsageRecord:
    """Return one finished request of 500 + 300 tokens in pool a."""
    return UsageRecord(
        seq=seq,
        request_id=f"r{seq}",
        tenant=tenant,
        key_id="k",
        tier=Tier.INTERACTIVE,
        model=model,
        endpoint="chat",
        node="n1",
        pool="a",
        outcome=Outcome.COMPLETED,
        prompt_tokens=500,
        cached_tokens=None,
        output_tokens=300,
        exact=True,
        reserved_tokens=900,
        queued_s=0.0,
        ttft_s=0.2,
        engine_s=engine_s,
        finished_at_s=at.timestamp(),
    )


def deliver(session: Session, *records: UsageRecord, at: datetime) -> int:
    """Store records of gateway gw-1 as a pull at `at` would."""
    page = UsagePage(gateway="gw-1", spool="s1", records=records, last_seq=records[-1].seq)
    return usage.store_page(session, "gw-1", page, at)


def node_hours(session: Session, start: datetime, count: int, price_class: str = "on_demand") -> None:
    """Write `count` whole node-hours of one node from `start` on."""
    for index in range(count * 4):
        quarter = start + timedelta(minutes=15 * index)
        session.add(
            NodeQuarterRow(
                node=f"n-{price_class}",
                quarter=quarter,
                pool="a",
                price_class=price_class,
                up_s=Decimal(900),
                last_seen_at=quarter + timedelta(minutes=15),
            )
        )


def write_books(session: Session) -> None:
    """Write the pool, its price, node time and use of February, and the first use of March."""
    session.add(PoolRow(name="a", models=["m"], max_num_seqs=4, created_at=FEBRUARY))
    session.add(GatewayRow(name="gw-1", base_url="http://127.0.0.1:1", state="active", created_at=FEBRUARY))
    session.flush()
    add_price(
        session,
        price_class="on_demand",
        usd_per_node_hour="28",
        effective_from=FEBRUARY,
        source="contract of the tests",
        actor=FAY,
        now=FEBRUARY,
    )
    node_hours(session, FEBRUARY, 10)
    node_hours(session, MARCH, 1)
    deliver(
        session,
        *(a_record(seq, FEBRUARY + timedelta(hours=seq)) for seq in range(1, 11)),
        a_record(11, MARCH + timedelta(minutes=1), engine_s=60.0),
        at=MARCH + timedelta(minutes=2),
    )
