"""Alerts by API and command line, and what gateways and budgets say: over the same tables as the pages."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import func, insert, select
from sqlalchemy.orm import Session

from control.alert_signals import BUDGETS_EVERY, AlertFacts
from control.alert_subjects import is_gone
from control.api_alerts import CALLS
from control.cli import rhodeck
from control.commands_policy import ensure_first_revision
from control.partitions import trim_old
from control.roles import Actor, Role
from control.tables import (
    AlertDeliveryRow,
    AlertNoticeRow,
    AlertRow,
    AlertSilenceRow,
    GatewayObservedRow,
    GatewayRow,
    PolicyRevisionRow,
)
from control.webhooks import add_webhook, send_test
from fleet.alert_rules import RULES
from fleet.errors import Conflict, FleetError, InvalidInput, Unavailable
from fleet.policy import default_policy
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

T0 = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
ADMIN = Actor("ada", Role.ADMIN, "cli")
SCRIPT = Actor("token at-1 (pager)", Role.OPERATOR, "api")


def add_alert(session: Session, **changes: Any) -> AlertRow:
    row = AlertRow(**({
        "rule": "node_silent", "scope": "node", "subject": "n1", "state": "open", "severity": "warning",
        "opened_at": T0 - timedelta(minutes=5), "updated_at": T0, "summary": "n1 gives no metrics",
        "pool": "h100", "value": 1.0, "threshold": 0.5,
    } | changes))  # fmt: skip
    session.add(row)
    session.flush()
    return row


def call(
    session: Session, method: str, path: str, body: object = None, key: str | None = None, **at: str
) -> Any:
    """Carry one call of the API out, as its route does."""
    found = next(one for one in CALLS if (one.method, one.path) == (method, path))
    sent = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    return found.answer(session, T0, SCRIPT, path=at, query={}, body=sent, key=key, zone=ZoneInfo("UTC"))


# ---- API -------------------------------------------------------------------------------------------------


def test_a_script_lists_acknowledges_and_silences(session: Session) -> None:
    row = add_alert(session)
    (listed,) = call(session, "GET", "/api/v1/alerts")["alerts"]
    assert (listed["subject"], listed["state"], listed["runbook"]) == (
        "n1", "open", "docs/runbooks/node_silent.md",
    )  # fmt: skip
    call(session, "POST", "/api/v1/alerts/{alert_id}/acknowledge", {}, alert_id=str(row.id))
    assert (row.state, row.acknowledged_by) == ("acknowledged", SCRIPT.name)
    body = {"pool": "h100", "length_s": 600, "reason": "moving racks"}
    number = call(session, "POST", "/api/v1/silences", body)["silence"]
    answer = call(session, "GET", "/api/v1/alerts")
    assert answer["alerts"][0]["silence"] == number
    assert answer["silences"][0]["reason"] == "moving racks"
    call(session, "DELETE", "/api/v1/silences/{silence_id}", silence_id=str(number))
    assert call(session, "GET", "/api/v1/alerts")["silences"] == []


def test_one_key_makes_one_silence_and_no_other(session: Session) -> None:
    body = {"rule": "burst", "length_s": 600, "reason": "launch"}
    first = call(session, "POST", "/api/v1/silences", body, key="k1")
    assert call(session, "POST", "/api/v1/silences", body, key="k1") == first
    assert session.scalar(select(func.count()).select_from(AlertSilenceRow)) == 1
    with pytest.raises(Conflict):
        call(session, "POST", "/api/v1/silences", body | {"length_s": 6000}, key="k1")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", None),
        (b"[]", None),
        (b"\xff", None),
        ({"rule": "burst", "reason": "x"}, "length_s"),
        ({"rule": "burst", "length_s": "600", "reason": "x"}, "length_s"),
        (b'{"rule": "burst", "length_s": NaN, "reason": "x"}', None),
        ({"rule": "burst", "length_s": 1e400, "reason": "x"}, "length_s"),
        ({"rule": "burst", "length_s": 600, "reason": "x", "for_ever": True}, "for_ever"),
        ({"rule": ["burst"], "length_s": 600, "reason": "x"}, "rule"),
    ],
)
def test_hostile_bodies_are_refused_and_leave_nothing(
    session: Session, body: object, field: str | None
) -> None:
    with pytest.raises(InvalidInput) as caught:
        call(session, "POST", "/api/v1/silences", body)
    if field is not None:
        assert caught.value.field == field
    assert session.scalar(select(func.count()).select_from(AlertSilenceRow)) == 0


@pytest.mark.parametrize("number", ["0", "-1", "1.5", "x", "9" * 30, "\u0661", ""])
def test_hostile_numbers_are_refused(session: Session, number: str) -> None:
    with pytest.raises(FleetError):
        call(session, "POST", "/api/v1/alerts/{alert_id}/acknowledge", {}, alert_id=number)


def test_a_script_changes_a_rule_and_gets_it_back(session: Session) -> None:
    path = "/api/v1/alert-rules/{name}"
    made = call(session, "PUT", path, {"open_at": 0.9, "note": "batch fleet"}, name="rho_high")
    assert (made["open_at"], made["resolve_at"], made["changes"]) == (0.9, 0.75, {"open_at": 0.9})
    assert made["updated_by"] == SCRIPT.name
    again = call(session, "PUT", path, {"is_enabled": False}, name="rho_high")
    assert (again["open_at"], again["is_enabled"]) == (0.9, False)  # fields not named stay
    assert call(session, "DELETE", path, name="rho_high")["changes"] == {}


def test_a_script_sees_where_notices_go_but_no_secret(session: Session) -> None:
    body = {"name": "pager", "url": "https://p.example.org/x", "secret_name": "pager"}
    call(session, "POST", "/api/v1/webhooks", body)
    notice = call(session, "POST", "/api/v1/webhooks/{name}/test", name="pager")["notice"]
    assert session.scalars(select(AlertDeliveryRow.notice)).all() == [notice]
    (listed,) = call(session, "GET", "/api/v1/webhooks")["webhooks"]
    assert (listed["pending"], listed["secret_name"]) == (1, "pager")
    assert "secret" not in set(listed)


# ---- command line ----------------------------------------------------------------------------------------


@pytest.fixture
def cli(database: FreshDatabase, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("DATABASE_URL", database.dsn)
    monkeypatch.setenv("RHODECK_WEBHOOK_SECRETS_DIR", str(tmp_path / "webhooks"))

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(rhodeck, list(arguments))

    return run


def test_an_operator_at_a_terminal_does_all_of_it(cli: Any, session: Session) -> None:
    row = add_alert(session)
    session.commit()
    assert "n1 gives no metrics" in cli("alerts", "list").output
    assert "docs/runbooks/node_silent.md" in cli("alerts", "list").output
    assert cli("alerts", "ack", str(row.id)).exit_code == 0
    made = cli("alerts", "silence", "--pool", "h100", "--for", "90m", "--reason", "moving racks")
    assert made.output == "silence 1 holds for 90m\n"
    said = json.loads(cli("alerts", "list", "--json").output)
    assert (said["alerts"][0]["state"], said["alerts"][0]["silence"]) == ("acknowledged", 1)
    assert cli("alerts", "unsilence", "1").exit_code == 0
    changed = cli("alerts", "rules", "set", "rho_high", "open_at=0.9", "severity=critical")
    assert changed.output.startswith("rule rho_high: critical; opens: above 0.9 ratio for more than 120 s")
    listed = cli("alerts", "rules").output
    assert len(listed.splitlines()) == len(RULES)
    assert "(changed by " in listed
    assert cli("alerts", "rules", "reset", "rho_high").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("alerts", "silence", "--rule", "burst", "--for", "soon", "--reason", "x"), "not a length"),
        (("alerts", "silence", "--for", "1h", "--reason", "x"), "without a matcher"),
        (("alerts", "ack", "7"), "there is no alert 7"),
        (("alerts", "rules", "set", "burst", "open_at"), "not name=value"),
        (("alerts", "rules", "set", "burst", "open_at=high"), "not a number"),
        (("webhooks", "add", "x", "http://169.254.169.254/"), "never called"),
        (("webhooks", "remove", "x"), "no webhook is called"),
        (("alerts", "test-webhook", "x"), "no webhook is called"),
    ],
)
def test_what_cannot_be_is_said_and_changes_nothing(
    cli: Any, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    found = cli(*arguments)
    assert isinstance(found.exception, FleetError)  # `main` prints message and hint, and exits with 1
    assert message in found.exception.message
    assert not (tmp_path / "webhooks").exists()


def test_a_signing_secret_is_printed_once_and_alone(cli: Any, tmp_path: Path) -> None:
    made = cli("webhooks", "add", "pager", "https://p.example.org/hook")
    secret = made.stdout.strip()
    assert len(base64.b64decode(secret.removeprefix("whsec_"))) == 32
    assert (tmp_path / "webhooks" / "pager").read_text().strip() == secret
    assert secret not in cli("webhooks", "list").output
    assert cli("webhooks", "remove", "pager").exit_code == 0
    again = cli("webhooks", "add", "pager", "https://p.example.org/hook")
    assert again.stdout == ""  # its file is there: it is kept, and not shown again
    am = cli("webhooks", "add", "am", "http://am.example.org:9093", "--kind", "alertmanager")
    assert (am.exit_code, am.stdout) == (0, "")


# ---- gateways and budgets --------------------------------------------------------------------------------


def test_gateways_and_budgets_become_observations_and_unknown_stays_unknown(session: Session) -> None:
    for name, condition, tried in (
        ("gw-1", "converged", T0),
        ("gw-2", "drifting", T0),
        ("gw-3", "unreachable", T0),
        ("gw-4", "converged", T0 - timedelta(seconds=61)),
        ("gw-5", "unknown", T0),
    ):
        session.add(GatewayRow(name=name, base_url=f"http://{name}:1", state="active", created_at=T0))
        session.flush()
        session.add(GatewayObservedRow(gateway=name, condition=condition, tried_at=tried, message=""))
    session.add(GatewayRow(name="gw-6", base_url="http://gw-6:1", state="active", created_at=T0))
    tenant, document = "acme", default_policy().as_document()
    document["tenants"][tenant] = {
        "tier": "interactive", "allowed_tiers": ["interactive"], "weight": 1, "tokens_per_minute": 60_000,
        "burst_tokens": 10_000, "max_in_flight_tokens": 60_000, "max_concurrent_requests": 10,
        "monthly_budget_usd": "200",
    }  # fmt: skip
    ensure_first_revision(session, author=ADMIN, now=T0, document=document)
    facts, asked = AlertFacts(), list[datetime]()

    def spend(_: Session, now: datetime) -> dict[str, Decimal]:
        asked.append(now)
        return {tenant: Decimal(190)}

    facts.load(session, T0, spend)
    found = {(o.rule, o.subject): o.value for o in facts.observations(T0)}
    assert found == {
        ("policy_drift", "gw-1"): 0.0,
        ("policy_drift", "gw-2"): 1.0,
        ("policy_drift", "gw-3"): 1.0,
        ("policy_drift", "gw-4"): None,
        ("policy_drift", "gw-5"): None,
        ("policy_drift", "gw-6"): None,
        ("budget_half", tenant): pytest.approx(0.95),
        ("budget", tenant): pytest.approx(0.95),
        ("budget_spent", tenant): 0.0,
    }
    facts.load(session, T0 + BUDGETS_EVERY / 2, spend)
    assert asked == [T0]  # the month is summed once a minute, not at every look

    def away(_: Session, _now: datetime) -> dict[str, Decimal]:
        raise Unavailable("no prices")

    facts.load(session, T0 + BUDGETS_EVERY, away)
    budgets = [o for o in facts.observations(T0 + BUDGETS_EVERY) if o.rule.startswith("budget")]
    assert {(o.value, o.summary) for o in budgets} == {(None, "this month's spend is not known: no prices")}
    assert len(budgets) == 3


def test_an_alert_about_a_budget_ends_when_the_budget_is_lifted(session: Session) -> None:
    tenant, document = "acme", default_policy().as_document()
    entry = {
        "tier": "interactive", "allowed_tiers": ["interactive"], "weight": 1, "tokens_per_minute": 60_000,
        "burst_tokens": 10_000, "max_in_flight_tokens": 60_000, "max_concurrent_requests": 10,
    }  # fmt: skip
    document["tenants"][tenant] = entry | {"monthly_budget_usd": "200"}
    ensure_first_revision(session, author=ADMIN, now=T0, document=document)
    assert not is_gone(session, "budget", "tenant", tenant)
    for number, lifted in enumerate(
        ({}, {"monthly_budget_usd": None}, {"monthly_budget_usd": "0"}), start=2
    ):
        document["tenants"][tenant] = entry | lifted
        session.execute(
            insert(PolicyRevisionRow),
            [{
                "number": number, "parent": number - 1, "digest": f"{number:064x}", "document": document,
                "author": "ada", "note": "", "created_at": T0,
            }],
        )  # fmt: skip
        for rule in ("budget_half", "budget", "budget_spent"):
            assert is_gone(session, rule, "tenant", tenant), (rule, lifted)
        assert not is_gone(session, "unfairness", "tenant", tenant)


# ---- retention -------------------------------------------------------------------------------------------


def test_old_notices_go_with_their_deliveries(database: FreshDatabase, session: Session) -> None:
    now = session.scalar(select(func.clock_timestamp()))
    assert now is not None
    add_webhook(session, ADMIN, name="pager", url="https://p.example.org/", secret_name="p", now=now)
    old = send_test(session, ADMIN, name="pager", now=now - timedelta(days=15))
    new = send_test(session, ADMIN, name="pager", now=now)
    session.commit()
    trim_old(database.engine, now, keep_days=14)
    session.expire_all()
    assert session.scalars(select(AlertNoticeRow.id)).all() == [new]
    assert session.scalars(select(AlertDeliveryRow.notice)).all() == [new]
    assert old != new
