"""Whom a draft would have refused on the last hour, on the page: asked for, answered, in the review."""

from __future__ import annotations

from datetime import UTC, timedelta

import pytest
from streamlit.testing.v1 import AppTest

from control.database import session_scope
from fleet.clock import SystemClock
from tests.pages.conftest import Show, column, text
from tests.postgres_server import FreshDatabase
from tests.usage_rows import served

pytestmark = pytest.mark.postgres

REQUESTS = 100


def panel_script() -> None:
    import copy

    from dashboard import access, data, drafts, policy_editor, policy_review, refusals_panel

    access.look_up(is_active=True)
    found = data.policy().value
    assert found is not None
    assert found.head is not None
    draft = policy_editor.draft_of(found.head)
    draft.document = copy.deepcopy(draft.document)
    draft.document["tenants"]["acme"]["tokens_per_minute"] = 4_000
    refusals_panel.draw(draft, drafts.review(draft.base, draft.document, found.head.document))
    policy_review.review_body(draft, found.head)


@pytest.fixture
def recorded(full: Show, dashboard_on: FreshDatabase) -> None:
    """A hundred served requests of acme in the last ten minutes."""
    since = SystemClock().now().astimezone(UTC) - timedelta(minutes=10)
    with session_scope(dashboard_on.engine) as session:
        session.add_all(served(n, since + timedelta(seconds=5 * n)) for n in range(REQUESTS))


def answered(at: AppTest) -> AppTest:
    clock, deadline_s = SystemClock(), SystemClock().monotonic_s() + 180
    while any(button.label == "Cancel" for button in at.button):
        assert clock.monotonic_s() < deadline_s, text(at)
        at.run()
    return at


@pytest.mark.usefixtures("recorded")
def test_a_tight_quota_shows_whom_it_would_have_refused_before_it_is_published() -> None:
    at = AppTest.from_function(panel_script, default_timeout=120).run()
    assert [e.message for e in at.exception] == []
    assert "it was not replayed" in text(at)
    at.button(key="replay_draft").click().run()
    answered(at).run()
    assert [e.message for e in at.exception] == []
    assert column(at, "tenant") == ["acme"]
    # 4,000 tokens a minute and a burst of 10,000 hold 62 of the requests of 800 tokens in ten minutes
    refused = int(str(column(at, "draft")[0]).replace(",", ""))
    assert refused >= REQUESTS - 62 - 3
    assert column(at, "in force") == ["0"]
    assert "rejected quota rate" in str(column(at, "why")[0])
    assert "The draft would have refused" in text(at)
    shown = [d.value for d in at.dataframe if "in force" in d.value.columns]
    assert len(shown) == 2  # under the editor, and in the review
    assert "acme in interactive loses most" in text(at)


def test_without_recorded_requests_the_page_says_so(full: Show) -> None:
    at = AppTest.from_function(panel_script, default_timeout=120).run()
    at.button(key="replay_draft").click().run()
    answered(at)
    assert [e.message for e in at.exception] == []
    assert "no request was served" in text(at)


def test_nothing_changed_has_nothing_to_replay(full: Show) -> None:
    at = full("policy")
    assert [e.message for e in at.exception] == []
    assert at.button(key="replay_draft").disabled
