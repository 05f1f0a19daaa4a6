"""Budgets from the real books and the gateways' own words: the same spend tenants are refused for."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import insert

from control import api_finance
from control.alert_rule_store import change_rule
from control.alert_signals import budget_observations
from control.budgets import BudgetReport, budget_report
from control.cli import main
from control.commands_policy import ensure_first_revision
from control.database import session_scope
from control.prices import add_price
from control.queries_spend import spend_by_tenant
from control.roles import Actor, Role
from control.tables import GatewayObservedRow, GatewayRow, NodeQuarterRow, PoolRow, UsageQuarterRow
from fleet.budgets import Doing, Standing
from fleet.messages import TenantShare
from fleet.months import month_of
from fleet.policy import default_policy
from tests.gateway_status import gateway_status
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

BERLIN = ZoneInfo("Europe/Berlin")
ADA = Actor("ada", Role.ADMIN, "cli")
FIRST_DAY = datetime(2026, 2, 8, 23, tzinfo=UTC)  # 9 February, 00:00 in Berlin
#: 15 March 2026, noon in Berlin: 34 complete days of use lie behind.
NOW = datetime(2026, 3, 15, 11, tzinfo=UTC)
DAYS = 35


def tenant(budget: str | None, over_budget: str = "refuse") -> dict[str, Any]:
    entry: dict[str, Any] = {
        "tier": "interactive",
        "allowed_tiers": ["interactive", "best_effort"],
        "tokens_per_minute": 60_000,
        "burst_tokens": 10_000,
        "max_in_flight_tokens": 60_000,
        "max_concurrent_requests": 10,
        "over_budget": over_budget,
    }
    return entry if budget is None else entry | {"monthly_budget_usd": budget}


def status(**over: bool) -> dict[str, Any]:
    shares = {
        name: TenantShare(
            tokens_per_minute=1,
            burst_tokens=1,
            max_in_flight_tokens=1,
            max_concurrent_requests=1,
            over_budget=is_over,
        )
        for name, is_over in over.items()
    }
    return gateway_status(
        gateway="gw",
        digest="d",
        shares=shares,
    ).model_dump(mode="json", by_alias=True)


@pytest.fixture
def fleet(database: FreshDatabase) -> FreshDatabase:
    """One node of 4 places at 24 USD an hour since 9 February.

    A place costs 6 USD an hour. acme holds one all the time (144 USD a day), beta a tenth of that since
    12 March, idle the rest; gw-1 knows that acme's budget is spent, gw-2 was heard an hour ago.
    """
    quarters = [FIRST_DAY + timedelta(minutes=15 * n) for n in range(DAYS * 96)]
    quarters = [at for at in quarters if at < NOW]
    documents = default_policy().as_document()
    documents["tenants"] = {
        "acme": tenant("2000"),
        "beta": tenant("100", "downgrade"),
        "gamma": tenant("500"),
        "delta": tenant(None),
    }
    with session_scope(database.engine) as session:
        session.add(PoolRow(name="a", models=["m"], max_num_seqs=4, created_at=FIRST_DAY))
        session.flush()
        add_price(
            session,
            price_class="on_demand",
            usd_per_node_hour="24",
            effective_from=FIRST_DAY,
            source="contract",
            actor=ADA,
            now=FIRST_DAY,
        )
        session.execute(
            insert(NodeQuarterRow),
            [
                {
                    "node": "n1",
                    "quarter": at,
                    "pool": "a",
                    "price_class": "on_demand",
                    "up_s": Decimal(900),
                    "last_seen_at": at + timedelta(minutes=15),
                }
                for at in quarters
            ],
        )
        since = {
            "acme": FIRST_DAY,
            "beta": datetime(2026, 3, 11, 23, tzinfo=UTC),
            "delta": NOW - timedelta(hours=1),
        }
        held = {"acme": 900, "beta": 90, "delta": 900}
        session.execute(
            insert(UsageQuarterRow),
            [
                {
                    "quarter": at,
                    "tenant": name,
                    "tier": "interactive",
                    "model": "m",
                    "pool": "a",
                    "requests": 1,
                    "prompt_tokens": 1,
                    "output_tokens": 1,
                    "engine_s": Decimal(held[name]),
                }
                for at in quarters
                for name in held
                if at >= since[name]
            ],
        )
        ensure_first_revision(session, author=ADA, now=FIRST_DAY, document=documents)
        said = status(acme=True, beta=False, gamma=False)
        for name, seen_at in (("gw-1", NOW), ("gw-2", NOW - timedelta(hours=1))):
            session.add(GatewayRow(name=name, base_url=f"http://{name}:1", state="active", created_at=NOW))
            session.flush()
            session.add(
                GatewayObservedRow(
                    gateway=name,
                    condition="converged",
                    message="",
                    seen_at=seen_at,
                    tried_at=NOW,
                    status=said,
                )
            )
    return database


def report(fleet: FreshDatabase) -> BudgetReport:
    with session_scope(fleet.engine) as session:
        return budget_report(session, zone=BERLIN, now=NOW)


def test_who_runs_over_when_and_what_happens_then(fleet: FreshDatabase) -> None:
    found = report(fleet)
    acme, beta, gamma = (
        next(b for b in found.budgets if b.state.tenant == name) for name in ("acme", "beta", "gamma")
    )
    # 14 days of 144 USD and half a day: 2,088 USD of 2,000, spent on the 14th (14 x 144 = 2,016).
    assert acme.state.spent_usd == Decimal(14 * 144 + 72)
    assert (acme.state.standing, acme.state.crossing.day) == (Standing.OVER, date(2026, 3, 14))
    assert [(e.gateway, e.doing) for e in acme.gateways] == [("gw-1", Doing.ACTS), ("gw-2", Doing.UNKNOWN)]
    assert acme.gateways[0].words == "refuses with 429 now"
    # 34 days alike: the rest of today and 16 days more of 144 USD
    assert acme.state.forecast is not None
    assert acme.state.forecast.end.usd == pytest.approx(31 * 144, rel=0.001)
    # three complete days are too early
    assert (beta.state.standing, beta.state.forecast) == (Standing.UNKNOWN, None)
    assert "3 complete days" in beta.state.why_unknown
    assert beta.gateways[0].words == "at 100 % it serves as best-effort"
    assert gamma.state.spent_usd == 0
    assert [b.state.tenant for b in found.budgets] == ["acme", "beta", "gamma"]
    assert found.unbudgeted == (("delta", Decimal(6)),)
    assert (found.counted_to, found.heard_at) == (NOW, NOW - timedelta(hours=1))


def test_the_spend_is_the_one_the_controller_holds_against_the_budget(fleet: FreshDatabase) -> None:
    found = report(fleet)
    with session_scope(fleet.engine) as session:
        held = spend_by_tenant(session, NOW, zone=BERLIN)
    for budget in found.budgets:
        assert budget.state.spent_usd == held.get(budget.state.tenant, 0)
        assert sum(budget.days.values()) == budget.state.spent_usd
        month = month_of("2026-03", BERLIN)
        assert all(day.strftime("%Y-%m") == month.name for day in budget.days)
    acme = found.budgets[0].days
    assert {usd for day, usd in acme.items() if day < date(2026, 3, 15)} == {Decimal(144)}


def test_thresholds_are_those_of_the_alert_rules(fleet: FreshDatabase) -> None:
    assert report(fleet).thresholds == (0.5, 0.8, 1.0)
    with session_scope(fleet.engine) as session:
        change_rule(
            session, ADA, name="budget", values={"open_at": 0.9, "resolve_at": 0.9}, now=NOW, note="x"
        )
        change_rule(session, ADA, name="budget_half", values={"is_enabled": False}, now=NOW, note="x")
    assert report(fleet).thresholds == (0.9, 1.0)
    with session_scope(fleet.engine) as session:
        found = budget_observations(session, NOW, lambda s, now: spend_by_tenant(s, now, zone=BERLIN))
    values = {(o.rule, o.subject): o.value for o in found}
    assert values["budget", "acme"] == pytest.approx(1.044)
    assert (values["budget_spent", "acme"], values["budget_spent", "beta"]) == (1.0, 0.0)
    said = next(o.summary for o in found if (o.rule, o.subject) == ("budget_spent", "acme"))
    assert said == "acme has spent $2,088.00 of $2,000.00 this month; the policy says to refuse"


def test_command_and_api_say_the_same(
    fleet: FreshDatabase, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (call,) = [c for c in api_finance.CALLS if c.path == "/api/v1/budgets"]
    with session_scope(fleet.engine) as session:
        answer = call.answer(session, NOW, ADA, path={}, query={}, body=b"", key=None, zone=BERLIN)
    first = json.loads(json.dumps(answer))["budgets"][0]
    assert (first["tenant"], first["spent_usd"], first["standing"]) == ("acme", "2088.00", "over")
    assert first["reached_on"]["middle"] == "2026-03-14"
    monkeypatch.setenv("DATABASE_URL", fleet.dsn)
    for arguments in (["budgets"], ["budgets", "--json"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "acme: 0.00 of 2,000.00 USD (0.0 %)" in said  # by the real clock it is another month


def test_no_policy_and_no_books_say_so(database: FreshDatabase) -> None:
    with session_scope(database.engine) as session:
        found = budget_report(session, zone=BERLIN, now=NOW)
    assert (found.budgets, found.unbudgeted, found.counted_to, found.revision) == ((), (), None, None)
