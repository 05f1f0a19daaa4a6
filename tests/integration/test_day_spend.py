"""Days of the real books: page, command and API give one sum, that of the month; closed months too."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import insert

from control import adjustments, allocation_rules, api_finance, day_spend, month_close
from control.cli import main
from control.database import session_scope
from control.prices import add_price
from control.queries_spend import month_spend
from control.roles import Actor, Role
from control.tables import CommitmentRow, NodeQuarterRow, PoolRow
from fleet.errors import InvalidInput
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

BERLIN = ZoneInfo("Europe/Berlin")
KOLKATA = ZoneInfo("Asia/Kolkata")
FAY = Actor("fay", Role.FINANCE, "cli")
#: March 2026 in Berlin: summer time begins on the 29th.
START = datetime(2026, 2, 28, 23, tzinfo=UTC)
NOW = datetime(2026, 4, 20, 10, tzinfo=UTC)


@pytest.fixture
def books(database: FreshDatabase) -> FreshDatabase:
    """Two nodes from 1 March to 15 April at prices that change on 10 March, one of them committed."""
    with session_scope(database.engine) as session:
        session.add(PoolRow(name="a", models=["m"], max_num_seqs=4, created_at=START))
        session.flush()
        for usd, day in (("27.77", 0), ("31.333333", 9)):
            add_price(
                session,
                price_class="on_demand",
                usd_per_node_hour=usd,
                effective_from=START + timedelta(days=day),
                source="contract",
                actor=FAY,
                now=START,
            )
        rows = [
            {
                "node": node,
                "quarter": START + timedelta(minutes=15 * n),
                "pool": "a",
                "price_class": kind,
                "up_s": Decimal(up_s),
                "last_seen_at": START + timedelta(minutes=15 * n + 15),
            }
            for n in range(45 * 96)
            for node, kind, up_s in (("n1", "on_demand", 899 - n % 7), ("n2", "reserved", 600))
        ]
        session.execute(insert(NodeQuarterRow), rows)
        allocation_rules.add_commitment(
            session,
            pool="a",
            nodes=1,
            usd_per_hour="18.80",
            upfront_usd="1000",
            starts_at=START,
            ends_at=START + timedelta(days=365),
            source="contract",
            actor=FAY,
            now=START,
        )
    return database


def test_days_ranges_and_months_are_one_sum_from_any_zone(books: FreshDatabase) -> None:
    with session_scope(books.engine) as session:
        months = {
            name: month_spend(session, name, zone=BERLIN, now=NOW).total_usd
            for name in ("2026-03", "2026-04")
        }
        assert all(total > 10_000 for total in months.values())
        for name, total in months.items():
            for cut in (None, KOLKATA, ZoneInfo("America/New_York")):
                found = day_spend.month_days(session, name, zone=BERLIN, now=NOW, cut=cut)
                assert found.total_usd == total == sum(day.total_usd for day in found.days)
        first, last = date(2026, 3, 1), date(2026, 4, 30)
        whole = day_spend.range_days(session, first, last, zone=BERLIN, now=NOW)
        assert whole.total_usd == sum(months.values())
        # any range is the sum of its days, and of the two ranges it is cut into
        for cut_at in (date(2026, 3, 10), date(2026, 3, 31), date(2026, 4, 7)):
            before = day_spend.range_days(session, first, cut_at, zone=BERLIN, now=NOW, cut=KOLKATA)
            after = day_spend.range_days(
                session, cut_at + timedelta(days=1), last, zone=BERLIN, now=NOW, cut=KOLKATA
            )
            assert before.total_usd + after.total_usd == whole.total_usd


def test_days_nobody_recorded_are_left_out_and_not_zero(books: FreshDatabase) -> None:
    with session_scope(books.engine) as session:
        found = day_spend.range_days(session, date(2026, 2, 1), date(2026, 6, 1), zone=BERLIN, now=NOW)
        assert (found.days[0].day, found.days[-1].day) == (date(2026, 3, 1), date(2026, 4, 20))
        # the commitment is paid on days on which nothing ran
        assert found.days[-3].node_hours == 0
        assert found.days[-3].charges_usd > 400


def test_command_and_api_give_what_the_one_function_gives(
    books: FreshDatabase, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATABASE_URL", books.dsn)
    monkeypatch.setenv("RHODECK_FINANCE_TIMEZONE", "Europe/Berlin")
    with session_scope(books.engine) as session:
        total = month_spend(session, "2026-03", zone=BERLIN, now=NOW).total_usd
        (call,) = [c for c in api_finance.CALLS if c.path == "/api/v1/spend/days"]
        answers: list[Any] = [
            call.answer(session, NOW, FAY, path={}, query=query, body=b"", key=None, zone=BERLIN)
            for query in ({"month": "2026-03"}, {"from": "2026-03-01", "to": "2026-03-31"})
        ]
    main_exits(["spend", "days", "2026-03", "--zone", "Asia/Kolkata", "--json"])
    answers.append(json.loads(capsys.readouterr().out))
    for answer in answers:
        assert Decimal(answer["total_usd"]) == total
        assert sum(Decimal(day["total_usd"]) for day in answer["days"]) == total
    assert answers[2]["days_cut_in"] == "Asia/Kolkata"
    main_exits(["spend", "days", "2026-03"])
    said = capsys.readouterr().out
    assert f"{total:,.2f} USD" in said.splitlines()[-1]
    assert len(said.splitlines()) == 33  # heading, 31 days, total


def main_exits(arguments: list[str], code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == code


def test_a_closed_month_and_the_adjustments_the_next_one_carries_are_in_its_days(
    books: FreshDatabase, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    with session_scope(books.engine) as session:
        month_close.start_closing(session, "2026-03", zone=BERLIN, actor=FAY, now=NOW)
    with session_scope(books.engine) as session:
        closed = month_close.close_month(
            session, "2026-03", zone=BERLIN, actor=FAY, now=NOW, key_file=key, accept=True
        )
        adjustments.correct(
            session,
            month="2026-03",
            tenant="acme",
            amount_usd="-250.01",
            reason="outage",
            actor=FAY,
            now=NOW,
        )
    with session_scope(books.engine) as session:
        march = day_spend.month_days(session, "2026-03", zone=BERLIN, now=NOW)
        april = day_spend.month_days(session, "2026-04", zone=BERLIN, now=NOW)
        spend = month_spend(session, "2026-04", zone=BERLIN, now=NOW)
    assert march.total_usd == closed.total_usd
    assert april.total_usd == spend.total_usd
    assert [d.adjustments_usd for d in april.days[:2]] == [Decimal("-250.01"), Decimal(0)]


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"first": "2026-03-01"}, "from"),
        ({"first": "2026-03-01", "last": "soon"}, "to"),
        ({"month": "2026-03", "first": "2026-03-01", "last": "2026-03-02"}, "from"),
        ({"cut": "Mars/Olympus"}, "zone"),
        ({"cut": "../../etc/passwd"}, "zone"),
    ],
)
def test_what_is_no_range_is_refused(books: FreshDatabase, asked: dict[str, str], field: str) -> None:
    given = {"month": None, "first": None, "last": None, "cut": None} | asked
    with session_scope(books.engine) as session, pytest.raises(InvalidInput) as refused:
        day_spend.asked_days(session, **given, zone=BERLIN, now=NOW)
    assert refused.value.field == field


def test_days_before_the_first_record_are_unknown_and_an_empty_ledger_is_not_nothing(
    database: FreshDatabase, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A commitment is known from the first of the month; what nodes cost before one was seen is not."""
    monkeypatch.setenv("DATABASE_URL", database.dsn)

    def said(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        printed = capsys.readouterr()
        assert ended.value.code == 0, printed.err
        return printed.out

    assert "nothing is recorded" in said("spend", "days", "2026-03")
    assert json.loads(said("spend", "days", "2026-03", "--json"))["total_usd"] is None
    shown = json.loads(said("spend", "show", "2026-03", "--json"))
    assert (shown["recorded"], shown["total_usd"], shown["node_hours"]) == (False, None, None)
    assert "0.00" not in said("spend", "show", "2026-03")
    assert "0.00" not in said("months", "show", "2026-03")
    march = datetime(2026, 3, 1, tzinfo=UTC)
    seen = march + timedelta(days=2, hours=5)
    with session_scope(database.engine) as session:
        session.add(PoolRow(name="a", models=["m"], max_num_seqs=4, created_at=march))
        session.add(
            CommitmentRow(
                kind="platform",
                pool=None,
                nodes=1,
                usd_per_hour=Decimal(2),
                upfront_usd=Decimal(0),
                starts_at=march,
                ends_at=march + timedelta(days=31),
                source="contract",
                created_by="fay",
                created_at=march,
            )
        )
        session.add(
            NodeQuarterRow(
                node="n1",
                quarter=seen,
                pool="a",
                price_class="on_demand",
                up_s=Decimal(900),
                last_seen_at=seen + timedelta(minutes=15),
            )
        )
    days = json.loads(said("spend", "days", "2026-03", "--json"))["days"]
    assert [(d["recorded"], d["nodes_usd"], d["node_hours"]) for d in days[:3]] == [
        (False, None, None),
        (False, None, None),
        (True, "0.00", "0.250000"),  # seen, and without a price
    ]
    assert [d["charges_usd"] for d in days[:2]] == ["48.00", "48.00"]  # 24 hours at 2 USD
