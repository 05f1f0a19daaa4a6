"""What a click does: one change, one row of the record, under the role of that moment."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import select
from streamlit.testing.v1 import AppTest

from control.database import session_scope
from control.tables import AlertRow, AuditRow, NodeRow, PriceRow, TenantKeyRow
from tests.pages.conftest import Show, column, text
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres


def drain_script() -> None:
    from dashboard import access, node_controls, state

    state.show_flash()
    access.look_up(is_active=True)
    node_controls.confirm_body("n1", "drain")


def promote_script() -> None:
    from dashboard import access, rollout_controls, state

    state.show_flash()
    access.look_up(is_active=True)
    rollout_controls.confirm_body("promote")


def recorded(database: FreshDatabase) -> list[tuple[str, str, str]]:
    with session_scope(database.engine) as session:
        rows = session.scalars(select(AuditRow).where(AuditRow.via == "page").order_by(AuditRow.id)).all()
    return [(row.action, row.subject, row.actor) for row in rows]


def test_draining_a_node_is_recorded_with_its_reason(
    full: Show, as_role: Callable[[str], str], dashboard_on: FreshDatabase
) -> None:
    as_role("operator")
    at = AppTest.from_function(drain_script, default_timeout=120).run()
    at.text_input(key="node_note_drain").set_value("bad fan")
    at.button(key="node_confirm_drain").click().run()
    with session_scope(dashboard_on.engine) as session:
        assert session.get_one(NodeRow, "n1").state == "draining"
    assert recorded(dashboard_on) == [("node.drain", "node n1", "operator")]


def test_a_finance_role_cannot_drain(
    full: Show, as_role: Callable[[str], str], dashboard_on: FreshDatabase
) -> None:
    as_role("finance")
    at = AppTest.from_function(drain_script, default_timeout=120).run()
    at.button(key="node_confirm_drain").click().run()
    assert "may not change nodes and gateways" in text(at)
    assert recorded(dashboard_on) == []


def test_a_rollout_that_is_live_is_not_promoted_and_the_page_says_why(
    full: Show, dashboard_on: FreshDatabase
) -> None:
    at = AppTest.from_function(promote_script, default_timeout=120).run()
    at.text_input(key="rollout_note_promote").set_value("hurry")
    at.button(key="rollout_confirm_promote").click().run()
    assert "the rollout of revision 2 is live" in text(at)
    assert recorded(dashboard_on) == []


def test_acknowledging_an_alert_keeps_it_with_a_name(full: Show, dashboard_on: FreshDatabase) -> None:
    at = full("fleet")
    button = next(b for b in at.button if b.label == "Acknowledge")
    button.click().run()
    with session_scope(dashboard_on.engine) as session:
        alert = session.scalars(select(AlertRow)).one()
    assert alert.state == "acknowledged"
    assert f"acknowledged by {alert.acknowledged_by}" in text(at)


def test_a_tenants_key_is_shown_once_and_only_its_hash_is_kept(
    full: Show, dashboard_on: FreshDatabase
) -> None:
    at = full("policy")
    at.text_input(key="new_key_tenant").set_value("acme")
    at.text_input(key="new_key_label").set_value("batch jobs")
    next(b for b in at.button if b.label == "Create key").click().run()
    secret = next(c.value for c in at.code if c.value.startswith("rk-tenant-"))
    with session_scope(dashboard_on.engine) as session:
        keys = session.scalars(select(TenantKeyRow)).all()
    assert len(keys) == 2
    assert all(secret not in (key.sha256, key.label, key.id) for key in keys)
    at.run()
    assert not [c for c in at.code if secret in c.value]


def test_a_price_without_a_source_is_refused_and_with_one_is_set(
    full: Show, dashboard_on: FreshDatabase
) -> None:
    at = full("spend")
    at.text_input(key="price_amount").set_value("30")
    next(b for b in at.button if b.label == "Add price").click().run()
    assert "a price needs a source" in text(at)
    at.text_input(key="price_source").set_value("contract 7, 2026-11")
    next(b for b in at.button if b.label == "Add price").click().run()
    with session_scope(dashboard_on.engine) as session:
        amounts = session.scalars(select(PriceRow.usd_per_node_hour).order_by(PriceRow.id)).all()
    assert [f"{amount:.2f}" for amount in amounts] == ["28.00", "30.00"]


def test_edits_and_new_tenants_of_the_quota_table_wait_in_the_draft(full: Show) -> None:
    at = full("policy")
    new = {
        "tenant": "beta",
        "tier": "batch",
        "tokens_per_minute": 5,
        "burst_tokens": 1,
        "max_in_flight_tokens": 1,
        "max_concurrent_requests": 1,
        "weight": 1,
        "over_budget": "warn",
    }
    key = at.session_state["policy_draft"].key("quotas")
    at.session_state[key] = {
        "edited_rows": {"0": {"tokens_per_minute": 70_000}},
        "added_rows": [new],
        "deleted_rows": [],
    }
    at.run()
    document = at.session_state["policy_draft"].document
    assert document["tenants"]["acme"]["tokens_per_minute"] == 70_000
    assert document["tenants"]["beta"]["tier"] == "batch"
    assert not at.button(key="review").disabled
    at.switch_page("app_pages/estimates.py").run()
    at.switch_page("app_pages/policy.py").run()
    assert column(at, "tenant") == ["acme", "beta"]  # the draft outlives a change of page
    at.button(key="discard").click().run()
    assert column(at, "tenant") == ["acme"]
    assert "No pending changes" in text(at)


def test_weights_that_do_not_sum_are_named_beside_the_tiers(full: Show) -> None:
    at = full("policy")
    draft = at.session_state["policy_draft"]
    at.number_input(key=draft.key("batch_weight")).set_value(20).run()
    assert "give 5 more somewhere" in text(at)
    assert "tier weights sum to 95" in text(at)


def test_signing_out_ends_the_sign_in(full: Show, as_role: Callable[[str], str]) -> None:
    as_role("viewer")
    at = full("fleet")
    assert "viewer, **viewer**" in text(at)
    at.button(key="sign_out").click().run()
    assert text(at).strip() == "You are signed out."
