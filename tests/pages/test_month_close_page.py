"""The month-close page in every state, and a month closed by hand on it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import select

from control.closed_months import closed_months
from control.database import session_scope
from control.prices import add_price
from control.roles import Actor, Role
from control.tables import AuditRow, NodeQuarterRow, NodeRow, PoolRow
from fleet.clock import SystemClock
from fleet.months import month_at, quarter_of
from tests.pages.conftest import Show, column, run_page, text
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("state", ["full", "empty", "stale", "failing"])
def test_the_page_shows_no_exception_in_any_state(state: str, request: pytest.FixtureRequest) -> None:
    at = request.getfixturevalue(state)("month_close")
    assert [e.message for e in at.exception] == []
    assert [t.value for t in at.title] == ["Month close"] or state == "failing"


def test_a_running_month_is_never_final(full: Show) -> None:
    at = full("month_close")
    assert column(at, "state") == ["running"]
    assert "estimated" in text(at)
    assert "\u2715 stops the close" in column(at, "is")


def test_a_viewer_cannot_close(as_role: Callable[[str], str]) -> None:
    as_role("viewer")
    at = run_page("month_close", {})
    assert "may not close months" in text(at)
    assert at.button(key="month_start").disabled


def test_last_month_is_closed_by_hand(
    dashboard_on: FreshDatabase, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RHODECK_FINANCE_KEY_FILE", str(tmp_path / "finance.key"))
    now = SystemClock().now()
    this_month = month_at(now, ZoneInfo("UTC"))
    last = month_at(this_month.start - timedelta(days=1), ZoneInfo("UTC"))
    admin = Actor("ada", Role.ADMIN, "cli")
    with session_scope(dashboard_on.engine) as session:
        session.add(PoolRow(name="a", models=["m"], max_num_seqs=4, created_at=last.start))
        session.flush()
        add_price(
            session,
            price_class="on_demand",
            usd_per_node_hour="28",
            effective_from=last.start,
            source="contract",
            actor=admin,
            now=last.start,
        )
        for index in range(4):  # one node-hour: 28 USD
            quarter = last.start + timedelta(minutes=15 * index)
            session.add(
                NodeQuarterRow(
                    node="n1",
                    quarter=quarter,
                    pool="a",
                    price_class="on_demand",
                    up_s=Decimal(900),
                    last_seen_at=quarter + timedelta(minutes=15),
                )
            )
    at = run_page("month_close", {})
    assert at.selectbox(key="close_month").value == last.name  # the one finance is here for
    at.button(key="month_start").click().run()
    at.text_input(key="month_typed").set_value("no")
    next(b for b in at.button if b.label == f"Close {last.name}").click().run()
    assert f"Type {last.name} to close it" in text(at)
    at.text_input(key="month_typed").set_value(last.name)
    next(b for b in at.button if b.label == f"Close {last.name}").click().run()
    assert [e.value for e in at.error] == []
    with session_scope(dashboard_on.engine) as session:
        (closed,) = closed_months(session)
    assert (closed.name, closed.total_usd) == (last.name, Decimal(28))
    at.selectbox(key="close_month").set_value(last.name).run()
    said = text(at)
    assert "File, lines and signature hold" in said
    assert closed.sha256 in said
    at.text_input(key="correct_tenant").set_value("acme")
    at.text_input(key="correct_amount").set_value("-5.00")
    at.text_input(key="correct_reason").set_value("refund")
    next(b for b in at.button if b.label == "Enter the correction").click().run()
    at.selectbox(key="close_month").set_value(this_month.name).run()
    assert column(at, "why") == ["correction 1: refund"]


def test_a_nodes_life_is_corrected_on_the_page(
    full: Show, as_role: Callable[[str], str], dashboard_on: FreshDatabase
) -> None:
    as_role("finance")
    at = full("month_close")
    with session_scope(dashboard_on.engine) as session:
        n = NodeQuarterRow
        last = session.scalars(select(n).order_by(n.last_seen_at.desc()).limit(1)).one()
        node, quarter = last.node, quarter_of(last.last_seen_at - timedelta(minutes=30))
        assert session.get(NodeRow, node) is not None
        times = {"up_s": Decimal(600), "last_seen_at": quarter + timedelta(minutes=10)}
        key = {"node": node, "quarter": quarter}
        session.merge(n(pool=last.pool, price_class=last.price_class, **key, **times))
    at.text_input(key="life_node").set_value(node)
    at.selectbox(key="life_was").set_value("It did not run")
    at.text_input(key="life_from").set_value("9999-12-31T23:45-12:00")
    at.text_input(key="life_to").set_value((quarter + timedelta(minutes=15)).isoformat())
    at.text_input(key="life_reason").set_value("hung; nobody billed it")
    button = "Correct node time"
    next(b for b in at.button if b.label == button).click().run()
    assert "out of range" in text(at)
    at.text_input(key="life_from").set_value(quarter.isoformat())
    next(b for b in at.button if b.label == button).click().run()
    assert [e.value for e in at.error] == []
    with session_scope(dashboard_on.engine) as session:
        assert session.get_one(NodeQuarterRow, (node, quarter)).up_s == 0
        row = session.scalars(select(AuditRow).where(AuditRow.action == "node.life")).one()
    assert (row.via, row.note) == ("page", "hung; nobody billed it")


def test_a_viewer_corrects_no_node_time(as_role: Callable[[str], str]) -> None:
    as_role("viewer")
    at = run_page("month_close", {})
    assert next(b for b in at.button if b.label == "Correct node time").disabled


def test_rules_and_commitments_are_declared_on_the_page_and_refused_with_a_reason(
    full: Show, as_role: Callable[[str], str], dashboard_on: FreshDatabase
) -> None:
    as_role("finance")
    at = full("month_close")
    assert "No rule is declared" in text(at)
    assert "Nothing is committed" in text(at)
    at.text_input(key="rule_month").set_value("2031-02")
    at.selectbox(key="rule_basis").set_value("tokens")
    next(b for b in at.button if b.label == "Declare the rule").click().run()
    assert "a reason of 1 to 300 characters is needed" in text(at)
    at.text_input(key="rule_reason").set_value("board of 2 December")
    next(b for b in at.button if b.label == "Declare the rule").click().run()
    assert column(at, "reason") == ["board of 2 December"]
    assert column(at, "basis") == ["tokens"]
    at.text_input(key="commit_hourly").set_value("18.80")
    at.text_input(key="commit_source").set_value("contract 4711")
    next(b for b in at.button if b.label == "Enter the commitment").click().run()
    assert "a commitment has a first and a last day" in text(at)
    at.date_input(key="commit_from").set_value(date(2031, 1, 1))
    at.date_input(key="commit_to").set_value(date(2032, 1, 1))
    next(b for b in at.button if b.label == "Enter the commitment").click().run()
    assert column(at, "hourly") == ["$18.80"]
    with session_scope(dashboard_on.engine) as session:
        actions = session.scalars(
            select(AuditRow.action).where(AuditRow.via == "page").order_by(AuditRow.id)
        ).all()
    assert actions == ["allocation.rule", "commitment.add"]


def test_an_operator_may_not_declare_how_cost_is_divided(full: Show, as_role: Callable[[str], str]) -> None:
    as_role("operator")
    at = full("month_close")
    forms = {"Declare the rule", "Enter the commitment"}
    assert {b.label for b in at.button if b.label in forms and b.disabled} == forms


def test_a_month_of_which_nothing_is_recorded_has_no_total_and_counts_no_node_time(empty: Show) -> None:
    at = empty("month_close")
    assert "$0.00" not in text(at)
    assert "nothing recorded" in text(at)
    found = dict(zip(column(at, "item"), column(at, "is"), strict=True))
    assert found["node time is counted"] == "\u2715 stops the close"
    assert found["prices for all node time"] == "\u2715 stops the close"
    spend = empty("spend")
    assert "$0.00" not in text(spend)
    assert "0.00 " not in text(spend)
