"""The alerts page: who has what, who is told, and that a click does one change and leaves a row."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import select
from streamlit.testing.v1 import AppTest

from control.alert_silences import add_silence
from control.database import session_scope
from control.queries_marks import marks
from control.roles import Actor, Role
from control.tables import AlertRow, AlertRuleRow, AlertSilenceRow, AuditRow, SampleRow
from control.webhooks import add_webhook, send_test
from fleet.alert_rules import RULES
from fleet.clock import SystemClock
from tests.pages.conftest import Show, column, text
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres

ADA = Actor("ada", Role.OPERATOR, "cli")


def shown(at: AppTest, view: str) -> AppTest:
    """Choose one view of the page."""
    return at.segmented_control(key="show").set_value(view).run()


def silence_script() -> None:
    from dashboard import access, alert_controls, data_alerts, state

    state.show_flash()
    access.look_up(is_active=True)
    book = data_alerts.book().value
    assert book is not None
    alert_controls.silence_body(book.unresolved[0])


def actions_of(database: FreshDatabase) -> list[str]:
    with session_scope(database.engine) as session:
        return list(session.scalars(select(AuditRow.action).where(AuditRow.via == "page")))


def test_an_open_alert_shows_its_numbers_and_the_ways_to_cause_and_runbook(full: Show) -> None:
    at = full("alerts")
    said = text(at)
    assert "rho of pool main is 0.93" in said
    assert "not told yet" not in said  # that would promise that somebody will be
    assert "nobody is told: no webhook is registered" in said
    assert "1 critical" in said
    assert {button.label for button in at.button} >= {"Acknowledge", "Silence"}


def test_acknowledging_moves_it_under_its_heading_and_out_of_the_count(
    full: Show, dashboard_on: FreshDatabase
) -> None:
    at = full("alerts")
    next(b for b in at.button if b.label == "Acknowledge").click().run()
    said = text(at)
    assert "has it since" in said
    assert "Nothing is open." in said
    assert actions_of(dashboard_on) == ["alert.acknowledge"]


def test_a_silence_needs_a_reason_and_has_an_end(
    full: Show, as_role: Callable[[str], str], dashboard_on: FreshDatabase
) -> None:
    as_role("operator")
    at = AppTest.from_function(silence_script, default_timeout=120).run()
    at.button(key="silence_confirm").click().run()
    assert "a silence needs a reason" in text(at)
    at.radio(key="silence_what").set_value("rho_high everywhere")
    at.text_input(key="silence_reason").set_value("known, more nodes tomorrow")
    at.button(key="silence_confirm").click().run()
    with session_scope(dashboard_on.engine) as session:
        (row,) = session.scalars(select(AlertSilenceRow))
    assert (row.rule, row.scope, row.subject, row.pool) == ("rho_high", None, None, None)
    assert row.expires_at - row.created_at == timedelta(hours=2)
    assert actions_of(dashboard_on) == ["alert.silence"]


def test_a_silenced_alert_stays_in_sight_with_who_and_why_and_can_be_ended(
    full: Show, dashboard_on: FreshDatabase
) -> None:
    with session_scope(dashboard_on.engine) as session:
        add_silence(
            session, ADA, length_s=3600, reason="moving racks", now=SystemClock().now(), rule="rho_high"
        )
    at = full("alerts")
    said = text(at)
    assert "Silenced" in said
    assert "by ada: moving racks" in said
    assert "Nothing is open." in said
    next(b for b in at.button if b.label == "End").click().run()
    assert actions_of(dashboard_on) == ["alert.unsilence"]
    assert "Silences that hold" not in text(at)


def test_a_changed_rule_is_refused_or_recorded(full: Show, dashboard_on: FreshDatabase) -> None:
    at = shown(full("alerts"), "Rules")
    assert len(column(at, "rule")) == len(RULES)
    at.selectbox(key="rule").select("rho_high").run()
    at.number_input(key="open_at_rho_high").set_value(0.5)
    next(b for b in at.button if b.label == "Change").click().run()
    assert "would open at 0.5 and resolve at 0.75" in text(at)
    at.number_input(key="open_at_rho_high").set_value(0.9)
    next(b for b in at.button if b.label == "Change").click().run()
    assert [e.message for e in at.exception] == []
    with session_scope(dashboard_on.engine) as session:
        assert session.scalars(select(AlertRuleRow.changes)).all() == [{"open_at": 0.9}]
    assert actions_of(dashboard_on) == ["alert_rule.change"]


def test_notices_say_whom_they_reached(full: Show, dashboard_on: FreshDatabase) -> None:
    now = SystemClock().now()
    with session_scope(dashboard_on.engine) as session:
        add_webhook(session, ADA, name="pager", url="https://p.example.org/", secret_name="p", now=now)
        send_test(session, ADA, name="pager", now=now)
    at = shown(full("alerts"), "Notices")
    assert column(at, "webhook") == ["pager"]
    assert column(at, "state") == ["? not used yet"]
    assert column(at, "to") == ["pager: on the way"]
    assert "Test pager" in [button.label for button in at.button]


def test_a_viewer_sees_everything_and_may_nothing(full: Show, as_role: Callable[[str], str]) -> None:
    as_role("viewer")
    at = full("alerts")
    for button in at.button:
        if button.label in ("Acknowledge", "Silence"):
            assert button.disabled
            assert "Your role, viewer, may not acknowledge alerts" in button.help
    at = shown(at, "Rules")
    assert "Your role, viewer, may not change alert rules" in text(at)


def test_marks_are_what_concerns_the_node(full: Show, dashboard_on: FreshDatabase) -> None:
    full("fleet")
    now = SystemClock().now()
    with session_scope(dashboard_on.engine) as session:
        session.add(AlertRow(
            rule="node_silent", scope="node", subject="n2", state="resolved", severity="warning",
            opened_at=now - timedelta(minutes=9), updated_at=now, resolved_at=now - timedelta(minutes=2),
            summary="n2 gives no metrics", pool="main",
        ))  # fmt: skip
        newest = session.scalars(
            select(SampleRow).where(SampleRow.node == "n1").order_by(SampleRow.at.desc())
        )
        newest.first().restarted = True  # type: ignore[union-attr]
        session.flush()
        since = now - timedelta(minutes=30)
        kinds = {
            name: [(m.kind, m.label) for m in marks(session, since, now, node=name) if m.kind != "revision"]
            for name in ("n1", "n2")
        }
        later = [m.kind for m in marks(session, now - timedelta(minutes=4), now, node="n2")]
    assert kinds["n1"] == [("alert", "rho_high main"), ("restart", "restart n1")]
    assert kinds["n2"] == [
        ("alert", "node_silent n2"),
        ("alert", "rho_high main"),
        ("resolved", "node_silent n2"),
    ]
    assert "resolved" in later  # it ended within the range, though it began before
    assert later.count("alert") == 0
