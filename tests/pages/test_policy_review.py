"""Publishing and rolling back from the page: reasons, conflicts, double clicks, roles."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from streamlit.testing.v1 import AppTest

from control import accounts, commands_policy, queries_policy
from control.database import session_scope
from control.roles import Role
from fleet.clock import SystemClock
from tests.pages.conftest import Show, column, text
from tests.pages.fleet_rows import ADMIN, policy_document
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres


def review_script() -> None:
    import copy

    import streamlit as st

    from dashboard import access, data, policy_editor, policy_review, state

    state.show_flash()
    access.look_up(is_active=True)
    found = data.policy().value
    assert found is not None
    draft = policy_editor.draft_of(found.head)
    if "tokens" in st.session_state:
        draft.document = copy.deepcopy(draft.document)
        draft.document["tenants"]["acme"]["tokens_per_minute"] = st.session_state["tokens"]
    if "weight" in st.session_state:
        draft.document = copy.deepcopy(draft.document)
        draft.document["tiers"]["batch"]["weight"] = st.session_state["weight"]
    if "bound" in st.session_state:
        draft.document = copy.deepcopy(draft.document)
        long = {"name": "long", "max_tokens": 100_000, "kv_share_ratio": 1.0, "pool": "main"}
        draft.document["admission"]["size_classes"] = [long]
    policy_review.review_body(draft, found.head)


def rollback_script() -> None:
    from dashboard import access, data, policy_review, state

    state.show_flash()
    access.look_up(is_active=True)
    found = data.policy().value
    assert found is not None
    assert found.head is not None
    policy_review.rollback_body(1, found.head)


def reviewed(**edits: int) -> AppTest:
    at = AppTest.from_function(review_script, default_timeout=120)
    for name, value in edits.items():
        at.session_state[name] = value
    return at.run()


def head(database: FreshDatabase) -> queries_policy.Revision:
    with session_scope(database.engine) as session:
        found = queries_policy.head(session)
    assert found is not None
    return found


def click_publish(at: AppTest, note: str) -> AppTest:
    at.text_area(key="review_note").set_value(note)
    return at.button(key="publish").click().run()


@pytest.fixture
def published(full: Show) -> None:
    """The full database; revision 2 is the newest."""


@pytest.mark.usefixtures("published")
def test_a_change_without_a_reason_is_not_made(dashboard_on: FreshDatabase) -> None:
    at = click_publish(reviewed(tokens=70_000), "  ")
    assert "a change needs a note" in text(at)
    assert head(dashboard_on).number == 2


@pytest.mark.usefixtures("published")
def test_a_reviewed_change_becomes_one_revision_and_one_row(dashboard_on: FreshDatabase) -> None:
    at = reviewed(tokens=70_000)
    assert at.dataframe[0].value["new"].tolist() == ["70,000"]
    at = click_publish(at, "acme pays for more")
    assert "Revision 3 is published" in text(at)
    newest = head(dashboard_on)
    assert (newest.number, newest.note, newest.author) == (
        3,
        "acme pays for more",
        "anybody-on-this-machine",
    )
    assert newest.document["tenants"]["acme"]["tokens_per_minute"] == 70_000


@pytest.mark.usefixtures("published")
def test_a_draft_that_leaves_requests_without_a_node_says_so_in_its_review() -> None:
    said = "No node of llama takes requests outside the size classes bound to main"
    assert any(said in warning.value for warning in reviewed(bound=1).warning)
    assert not reviewed(tokens=70_000).warning


@pytest.mark.usefixtures("published")
def test_two_publishes_of_one_review_make_one_revision(dashboard_on: FreshDatabase) -> None:
    at = reviewed(tokens=70_000)
    at.session_state["publish_key"] = "the same review"
    first = click_publish(at, "once")
    assert "Revision 3 is published" in text(first)
    again = reviewed(tokens=70_000)  # a run that began before the first one ended: same key, old parent
    with session_scope(dashboard_on.engine) as session:
        repeated = commands_policy.publish(
            session,
            document=policy_document(70_000),
            parent=2,
            author=ADMIN,
            note="once",
            now=SystemClock().now(),
            idempotency_key="the same review",
        )
    assert repeated.number == 3
    assert again.exception == []
    assert head(dashboard_on).number == 3


@pytest.mark.usefixtures("published")
def test_a_second_editor_sees_the_firsts_change_and_keeps_the_draft(dashboard_on: FreshDatabase) -> None:
    at = reviewed(tokens=70_000)
    with session_scope(dashboard_on.engine) as session:
        commands_policy.publish(
            session,
            document=policy_document(65_000),
            parent=2,
            author=ADMIN,
            note="a little more",
            now=SystemClock().now(),
        )
    at = click_publish(at, "much more")
    said = text(at)
    assert head(dashboard_on).number == 3
    assert "revision 3 by ana is the newest" in said
    assert [d.value["new"].tolist() for d in at.dataframe] == [["70,000"], ["65,000"]]  # mine, theirs
    assert at.session_state["policy_draft"].document["tenants"]["acme"]["tokens_per_minute"] == 70_000


@pytest.mark.usefixtures("published")
def test_a_draft_that_is_not_valid_cannot_be_published() -> None:
    at = reviewed(weight=20)
    assert "tier weights sum to 95" in text(at)
    assert at.button(key="publish").disabled


def test_a_role_withdrawn_while_the_review_was_open_stops_the_click(
    published: None, as_role: Callable[[str], str], dashboard_on: FreshDatabase
) -> None:
    as_role("operator")
    at = reviewed(tokens=70_000)
    with session_scope(dashboard_on.engine) as session:
        accounts.set_role(session, name="operator", role=Role.VIEWER, actor=ADMIN, now=SystemClock().now())
    at = click_publish(at, "too late")
    assert "may not publish policy" in text(at)
    assert head(dashboard_on).number == 2


@pytest.mark.usefixtures("published")
def test_rolling_back_is_one_click_with_the_reason_written(dashboard_on: FreshDatabase) -> None:
    at = AppTest.from_function(rollback_script, default_timeout=120).run()
    assert at.dataframe[0].value["new"].tolist() == ["50,000"]
    at = at.button(key="rollback").click().run()
    newest = head(dashboard_on)
    assert (newest.number, newest.restores, newest.note) == (3, 1, "Roll back to revision 1")
    assert newest.document["tenants"]["acme"]["tokens_per_minute"] == 50_000


def test_limits_and_routing_are_seen_and_turned_on_the_page(full: Show) -> None:
    at = full("policy")
    switches = [box for box in at.selectbox if box.options == ["enforce", "shadow", "off"]]
    assert len(switches) == 7
    assert "No pending changes" in text(at)
    queue = next(box for box in switches if box.label == "Queue length")
    queue.select("shadow").run()
    assert "What it would have refused is not known yet" in text(at)
    strategy = next(box for box in at.selectbox if box.label == "Strategy")
    strategy.select("cost_aware").run()
    assert "2 pending changes" in text(at)
    at.button(key="review").click().run()
    said = column(at, "means")
    assert "queue length lets everything through and counts what it would have refused" in said
    document = at.session_state["policy_draft"].document
    assert (document["limiters"]["queue_length"], document["routing"]["strategy"]) == (
        "shadow",
        "cost_aware",
    )
