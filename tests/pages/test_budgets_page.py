"""The Budgets page in every state: who runs over, when, and what happens then."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import insert, select

from control.commands_policy import publish
from control.database import session_scope
from control.queries_policy import head
from control.tables import GatewayObservedRow, NodeQuarterRow, UsageQuarterRow
from fleet.clock import SystemClock
from fleet.months import month_at, quarter_of
from tests.pages.conftest import Show, column, text
from tests.pages.fleet_rows import ADMIN, policy_document
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres


@pytest.mark.parametrize("state", ["full", "empty", "stale", "failing"])
def test_the_page_shows_no_exception_in_any_state(state: str, request: pytest.FixtureRequest) -> None:
    at = request.getfixturevalue(state)("budgets")
    assert [e.message for e in at.exception] == []
    assert [t.value for t in at.title] == ["Budgets"]
    if state in ("empty", "full"):
        assert "No tenant has a budget" in text(at)


def test_a_tenant_without_a_budget_is_named_with_what_it_spends(full: Show) -> None:
    assert "acme" in column(full("budgets"), "tenant")


def give_budgets(database: FreshDatabase) -> None:
    """Publish budgets for acme (0 USD: spent from a month's first second on) and beta (a million).

    Both used places for 20 days, whatever the day of the month is.
    """
    now = SystemClock().now()
    with session_scope(database.engine) as session:
        document = policy_document()
        entry = document["tenants"]["acme"]
        document["tenants"] = {
            "acme": entry | {"monthly_budget_usd": "0", "over_budget": "refuse"},
            "beta": entry | {"monthly_budget_usd": "1000000", "over_budget": "downgrade"},
            "gamma": entry | {"monthly_budget_usd": "5"},
        }
        newest = head(session)
        assert newest is not None
        publish(
            session,
            document=document,
            parent=newest.number,
            author=ADMIN,
            note="budgets",
            now=now,
            strategy="all_at_once",
        )
        quarters = [quarter_of(now) - timedelta(minutes=15 * n) for n in range(1, 20 * 96)]
        known = set(session.scalars(select(NodeQuarterRow.quarter).where(NodeQuarterRow.node == "n9")))
        session.execute(
            insert(NodeQuarterRow),
            [
                {
                    "node": "n9",
                    "quarter": at,
                    "pool": "main",
                    "price_class": "on_demand",
                    "up_s": Decimal(900),
                    "last_seen_at": at + timedelta(minutes=15),
                }
                for at in quarters
                if at not in known
            ],
        )
        for name, held in (("beta", 9_000), ("acme", 900)):
            session.execute(
                insert(UsageQuarterRow),
                [
                    {
                        "quarter": at,
                        "tenant": name,
                        "tier": "batch",
                        "model": "llama",
                        "pool": "main",
                        "requests": 1,
                        "prompt_tokens": 1,
                        "output_tokens": 1,
                        "engine_s": Decimal(held),
                    }
                    for at in quarters
                ],
            )


def test_who_runs_over_when_and_what_happens_then(full: Show, dashboard_on: FreshDatabase) -> None:
    give_budgets(dashboard_on)
    at = full("budgets")
    said = text(at)
    assert [e.message for e in at.exception] == []
    assert "acme is over its budget" in said
    assert "then: refuses with 429 (gateway: 1 does not know yet)" in said
    tenants = column(at, "tenant")
    assert tenants[0] == "acme"
    assert "over" in str(column(at, "standing")[0])
    # the gateway runs revision 2, which has no budget: nobody may call it enforced
    assert column(at, "does") == ["! does not know yet"]
    assert "Alerts open at 50 %, 80 %, 100 %." in said
    at.selectbox(key="budget_tenant").set_value("gamma").run()
    assert "too early to say: 0 complete days" in text(at)
    month = month_at(SystemClock().now(), ZoneInfo("UTC")).name
    assert any(month in str(c.proto.json) for c in at.get("bidi_component"))


def test_a_gateway_nobody_heard_is_not_known(full: Show, dashboard_on: FreshDatabase) -> None:
    give_budgets(dashboard_on)
    with session_scope(dashboard_on.engine) as session:
        row = session.scalars(select(GatewayObservedRow)).one()
        row.seen_at = SystemClock().now() - timedelta(minutes=5)
    assert column(full("budgets"), "does") == ["? not known"]
