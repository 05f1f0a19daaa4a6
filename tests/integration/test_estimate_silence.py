"""Whether anybody simulates what waits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy.orm import Session

from control.estimate_silence import silent_s
from control.tables import EstimateRunRow

pytestmark = pytest.mark.postgres

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def a_run(name: str, state: str, asked: timedelta, heard: timedelta | None) -> EstimateRunRow:
    return EstimateRunRow(
        sha256=name,
        strategy=name,
        spec={},
        state=state,
        days=30,
        worker="w" if state == "running" else None,
        beat_at=None if heard is None else NOW - heard,
        created_at=NOW - asked,
        created_by="ada",
    )


def test_nothing_that_waits_is_no_silence(session: Session) -> None:
    assert silent_s(session, NOW) is None
    session.add(a_run("old", "done", 300 * MINUTE, 200 * MINUTE))
    assert silent_s(session, NOW) is None


def test_what_waits_behind_a_run_that_goes_on_is_no_silence(session: Session) -> None:
    session.add(a_run("goes on", "running", 60 * MINUTE, timedelta(seconds=20)))
    session.add(a_run("waits", "queued", 50 * MINUTE, None))
    assert silent_s(session, NOW) is None


def test_what_was_just_asked_for_is_no_silence_however_long_nobody_simulated(session: Session) -> None:
    session.add(a_run("old", "done", 300 * MINUTE, 200 * MINUTE))
    session.add(a_run("new", "queued", timedelta(seconds=30), None))
    assert silent_s(session, NOW) is None


def test_silence_counts_from_the_last_sign(session: Session) -> None:
    session.add(a_run("stands", "running", 60 * MINUTE, 12 * MINUTE))
    session.add(a_run("waits", "queued", 30 * MINUTE, None))
    assert silent_s(session, NOW) == 12 * 60


def test_silence_counts_from_the_question_where_nobody_ever_answered(session: Session) -> None:
    session.add(a_run("waits", "queued", 7 * MINUTE, None))
    assert silent_s(session, NOW) == 7 * 60
