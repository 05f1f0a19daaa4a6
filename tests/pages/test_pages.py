"""Every page in four states: full, empty, stale, failing: what it says, and never a traceback."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import update
from streamlit.testing.v1 import AppTest

from control.database import session_scope
from control.tables import SampleRow
from dashboard import tables
from tests.pages.conftest import Show, column, text
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres
#: What people should not have to read: a name of the code, a share without its space, one of several, two
#: durations that read as one.
ODD = re.compile(
    r"best_effort|\d%|(?<![\d.,/-])1 (?:node|gateway|request|alert|sample|engine|token|tenant|month)s\b"
    r"|\d h and \d+ min"
)
PAGES = ("fleet", "alerts", "node", "policy", "rollout", "audit", "estimates", "spend")


def cells(at: AppTest) -> Iterator[str]:
    """Return the words in every cell of every table."""
    for frame in (d.value for d in at.dataframe):
        yield from (str(value) for name in frame.columns for value in frame[name] if isinstance(value, str))


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("state", ["full", "empty", "stale", "failing"])
def test_no_page_in_any_state_shows_an_exception(
    page: str, state: str, request: pytest.FixtureRequest
) -> None:
    at = request.getfixturevalue(state)(page)
    assert [e.message for e in at.exception] == []
    assert [t.value for t in at.title] == [page.capitalize()] or state == "failing"
    assert ODD.findall("\n".join((text(at), *cells(at)))) == []


# ---- full ----------------------------------------------------------------------------------------------


def test_fleet_shows_the_five_numbers_and_what_is_wrong(full: Show) -> None:
    at = full("fleet")
    said = text(at)
    assert "0.62" in said
    assert "0.55 to 0.70" in said
    assert "grade B" in said
    assert "partial: n3" in said
    # 30 rounds of 10 s, 2 of 40 refused in each: 60 of 1,200 = 5 %
    assert "5.0 %" in said
    assert "60 of 1,200 requests" in said
    # 3 tiers at the gateway with 1 request each, 2 at the engines
    assert "gateways 3, engines 2" in said
    assert "90 %" in said
    assert "on n2" in said
    assert "rho of pool main is 0.93" in said
    assert "Node n3 does not answer: refused" in said
    assert "more for acme" in said
    assert "It reads 1.0 for any stable fleet" in said
    assert column(at, "state")[0] == "\u2716 silent, never seen"
    tenants = next(d.value for d in at.dataframe if "tokens/s" in d.value.columns)
    assert tenants["why"].tolist() == ["quota rate 60"]
    # 12,000 tokens each 10 s, over the 300 s counted of the hour: 1,200/s, not 100/s
    assert column(at, "tokens/s") == [pytest.approx(1_200.0)]


def test_node_explains_its_rho_and_is_honest_about_quantiles(full: Show) -> None:
    at = full("node", node="n1")
    said = text(at)
    assert "rho = lambda / mu = 4 / 6.45 = 0.62" in said
    assert "3.2 req/s (3 to 3.5), fitted: inter-token latency against batch, grade B" in said
    # 600 first tokens, half within 0.1 s: p95 lies in (0.1, 0.5], p99.9 has 0.6 observations beyond it
    assert column(at, "requests")[:2] == [600, 180_000]
    assert str(column(at, "p99.9")[0]).endswith("(few)")
    assert column(at, "note")[0] == "too few observations for p99, p99.9"
    assert column(at, "note")[2] == "no observations"
    assert column(at, "p50")[2] == "\u2014"


def test_silent_node_shows_no_present_values(full: Show) -> None:
    said = text(full("node", node="n3"))
    assert "silent" in said
    assert "never seen" in said
    assert "\u2014 / \u2014" in said
    assert "refused" in said
    assert "rho is unknown: it was never seen" in said


def test_a_node_that_stands_still_is_neither_fresh_nor_has_it_room(
    full: Show, dashboard_on: FreshDatabase
) -> None:
    with session_scope(dashboard_on.engine) as session:
        session.execute(update(SampleRow).where(SampleRow.node == "n1").values(flags=["frozen"]))
    said = text(full("node", node="n1"))
    assert "frozen" in said
    assert "nothing moves" in said
    assert "50 %" not in said  # of KV: its gauges are those of the moment it stopped
    assert "\u2014 / \u2014" in said


def test_policy_shows_the_head_the_quotas_and_the_history(full: Show) -> None:
    at = full("policy")
    said = text(at)
    assert "Revision **2** by ana" in said
    assert "The weights sum to 100 %" in said
    assert "No pending changes" in said
    assert column(at, "tokens_per_minute") == [60_000]
    assert column(at, "revision") == [2, 1]
    assert column(at, "state") == ["in force"]


def test_rollout_says_what_each_gateway_confirmed(full: Show) -> None:
    at = full("rollout")
    assert "1 of 1" in text(at)
    assert column(at, "condition") == ["\u2713 converged"]
    assert column(at, "revision")[0] == "2 / 2"
    assert column(at, "queued") == ["1 / 1 / 1"]
    assert column(at, "off") == ["4.0 %"]


def test_audit_lists_every_change_and_verifies(full: Show) -> None:
    at = full("audit")
    ids = [int(str(i)) for i in column(at, "id")]
    assert ids == sorted(ids, reverse=True)
    assert "policy.publish" in column(at, "action")
    at.button(key="verify").click().run()
    assert f"All {ids[0]} rows follow from each other" in text(at)


def test_spend_adds_up_and_shows_idle_apart(full: Show) -> None:
    at = full("spend")
    said = text(at)
    # a quarter-hour at 28 USD/h is 7.00; acme held 16 of 64 slots of it: 1.75, the rest is idle
    assert "$7.00" in said
    assert "$1.75" in said
    assert "$5.25" in said
    assert "estimated" in said
    assert "sha256" in said
    assert column(at, "of") == ["idle (nobody's)", "acme", "total"]


def test_estimates_answer_the_check_case_to_the_dollar(full: Show) -> None:
    said = text(full("estimates"))
    for amount in ("$201,600", "$100,800", "$5,000", "$105,800", "$95,800", "$1,149,600", "$8,640"):
        assert amount in said, amount
    assert "rho of 0.85 or less needs 12 nodes" in said
    assert "admission refuses 50.0 % of requests" in said


def test_estimates_say_when_admission_is_the_wrong_answer(empty: Show) -> None:
    at = empty("estimates")
    at.checkbox(key="estimate_refusal").uncheck().run()
    assert "Admission is the wrong answer: refusals are not acceptable" in text(at)
    at.number_input(key="estimate_mean_rps").set_value(40.0).run()
    assert "the peak 30 is below the mean 40 requests/s" in text(at)


# ---- empty ---------------------------------------------------------------------------------------------


def test_empty_pages_say_why_and_what_to_do(empty: Show) -> None:
    fleet = text(empty("fleet"))
    assert "rhodeck nodes add" in fleet
    assert "no verdict yet" in fleet
    assert "No scrape round yet" in fleet
    assert "rhodeck nodes add" in text(empty("node"))
    assert "No policy was published yet" in text(empty("policy"))
    assert "rhodeck gateways add" in text(empty("rollout"))
    assert "Nobody has changed anything yet" in text(empty("audit"))
    assert "nothing is recorded" in text(empty("spend"))


# ---- stale ---------------------------------------------------------------------------------------------


def test_stale_values_are_not_shown_as_present(stale: Show) -> None:
    at = stale("fleet")
    said = text(at)
    assert "last known 0.62" in said
    assert "stale" in said
    states = column(at, "state")
    assert [str(s).split(",")[0] for s in states] == ["\u2716 silent", "\u25b2 stale", "\u25b2 stale"]
    assert column(at, "rho") == [None, None, None]
    assert column(at, "running") == [None, None, None]
    assert "No scrape round for 2 min: is `rhodeck control` running? 3 nodes and 1 gateway" in said
    assert "does not answer" not in said  # nobody asked


def test_conditions_of_gateways_nobody_asked_are_unknown(stale: Show) -> None:
    at = stale("rollout")
    assert column(at, "condition") == ["? unknown"]
    assert "0 of 1" in text(at)


# ---- failing -------------------------------------------------------------------------------------------


def test_without_a_database_pages_say_so_and_leak_nothing(failing: Show) -> None:
    said = text(failing("fleet"))
    assert "the database does not answer" in said
    assert "DATABASE_URL" in said
    assert "postgresql://" not in said
    assert "127.0.0.1" not in said


def test_an_outage_keeps_what_was_last_known_with_its_age(
    full: Show, dashboard_on: FreshDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    import streamlit as st

    from control.database import Role, make_engine
    from dashboard import data
    from dashboard.deps import Deps, deps
    from tests.pages.conftest import NOWHERE

    at = full("fleet")
    known = deps()
    away = make_engine(NOWHERE, role=Role.DASHBOARD)
    monkeypatch.setattr(data, "deps", lambda: Deps(known.settings, away, away, known.clock))
    st.cache_data.clear()
    at.run()
    said = text(at)
    assert [e.message for e in at.exception] == []
    assert "the database does not answer" in said
    assert "Shown below is what was last known" in said
    assert "0.62" in said
    assert said.count("last known") >= 6  # the notice, and every number beside it
    assert "is `rhodeck control` running" not in said
    away.dispose()


# ---- roles ---------------------------------------------------------------------------------------------


def test_viewer_sees_why_buttons_are_disabled(full: Show, as_role: Callable[[str], str]) -> None:
    as_role("viewer")
    at = full("policy")
    assert "Your role, viewer, may not publish policy" in text(at)
    assert at.number_input[0].disabled
    assert at.button(key="review").disabled


def test_nobody_signed_in_sees_nothing(
    full: Show, as_role: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    as_role("viewer")
    from dashboard import access

    monkeypatch.setattr(access, "presented_token", lambda: "not a token")
    at = full("fleet")
    assert text(at).strip() == "You are signed out."
    assert len(at.dataframe) == 0


def test_controls_a_role_may_not_use_say_why_in_sight(full: Show, as_role: Callable[[str], str]) -> None:
    as_role("viewer")
    assert "Your role, viewer, may not change nodes" in text(full("node", node="n1"))
    assert "Your role, viewer, may not steer" in text(full("rollout"))
    spend = text(full("spend"))
    assert "Your role, viewer, may not export" in spend
    assert "Your role, viewer, may not set prices" in spend


# ---- ways -----------------------------------------------------------------------------------------------


def test_a_node_stays_chosen_over_a_visit_to_another_page(full: Show) -> None:
    at = full("node", node="n2")
    at.switch_page("app_pages/fleet.py").run()
    at.query_params.clear()  # as the browser does on the way
    at.switch_page("app_pages/node.py").run()
    assert at.selectbox(key="node").value == "n2"
    at.selectbox(key="node").select("n1").run()
    assert at.selectbox(key="node").value == "n1"


def test_a_live_revision_can_be_undone_where_it_is_watched(full: Show) -> None:
    at = full("rollout")
    assert at.button(key="rollout_undo").label == "Roll back to revision 1"


def test_a_table_sends_the_columns_it_shows_and_the_others_when_asked(full: Show) -> None:
    at = full("fleet")

    def sent() -> set[str]:
        return set(next(d.value for d in at.dataframe if "tenant" in d.value.columns).columns)

    few = sent()
    assert {"tenant", "offered"} <= few
    assert not few & set(tables.TRAFFIC_MORE)
    at.toggle(key="traffic_all").set_value(True).run()
    assert sent() == few | set(tables.TRAFFIC_MORE)
    assert column(at, "admitted") == [38 * 30]  # thirty rounds of 38
