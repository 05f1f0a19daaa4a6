"""The panel of every rho on the Fleet page: rows by scope, and the formula behind the one chosen."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session

from control.tables import HealthRow, RoundRow
from tests.pages.conftest import Show, column, text
from tests.postgres_server import FreshDatabase

pytestmark = pytest.mark.postgres


def add_tier(database: FreshDatabase) -> None:
    with Session(database.engine) as session, session.begin():
        newest = session.query(RoundRow).order_by(RoundRow.at.desc()).limit(1).one().at
        detail = {
            "rho_with_higher": {"value": 1.1},
            "limited_rate": 3.0,
            "explanation": ["rho of the tier = 30.0 % x 1.00 = 0.30"],
        }
        session.add(HealthRow(at=newest, scope="tier", name="best_effort", rho=0.3, detail=detail))


def test_every_scope_has_its_row_and_the_chosen_one_its_reasons(
    full: Show, dashboard_on: FreshDatabase
) -> None:
    add_tier(dashboard_on)
    at = full("fleet")
    assert column(at, "subject")[0] == "fleet"
    assert column(at, "subject")[-1] == "tier best-effort"
    at.toggle(key="every_rho_all").set_value(True).run()  # a table is sent the columns it shows
    assert column(at, "higher")[-1] == pytest.approx(1.1)
    assert column(at, "own limits")[-1] == "3 req/s"
    assert "rho = lambda / mu = 4 / 6.45 = 0.62" in text(at)
    at.selectbox(key="why_of").set_value("tier best-effort").run()
    assert "rho of the tier = 30.0 % x 1.00 = 0.30" in text(at)
    assert [e.message for e in at.exception] == []


def test_old_verdicts_show_their_age_and_no_numbers(stale: Show) -> None:
    at = stale("fleet")
    assert "last verdict" in str(column(at, "verdict")[0])
    frame = next(d.value for d in at.dataframe if "subject" in d.value.columns)
    assert bool(frame["rho"].isna().all())


def test_an_empty_fleet_says_what_is_missing(empty: Show) -> None:
    assert "No verdict yet" in text(empty("fleet"))
