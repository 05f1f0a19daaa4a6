"""How long a page waits for a database that hangs, told by a clock that moves only when told."""

from __future__ import annotations

import threading
from collections.abc import Generator
from datetime import UTC, datetime

import pytest

from dashboard.outage import Outage
from dashboard.patience import PROBE_EACH_S, Patience
from fleet.clock import ManualClock
from fleet.errors import NotFound, Unavailable

CLOCK_START = datetime(2026, 11, 29, tzinfo=UTC)


class Hanging:
    """A database that hangs until `thaw`; counts what was asked of it."""

    def __init__(self) -> None:
        self.thawed = threading.Event()
        self.asked = 0

    def answer(self) -> int:
        self.asked += 1
        assert self.thawed.wait(60)
        return 7


@pytest.fixture
def hanging() -> Generator[Hanging]:
    database = Hanging()
    yield database
    database.thawed.set()


def test_answers_and_errors_come_through() -> None:
    patience = Patience(ManualClock(CLOCK_START))
    assert patience.ask(lambda: 3) == 3

    def fails() -> int:
        raise NotFound("no such node")

    with pytest.raises(NotFound, match="no such node"):
        patience.ask(fails)


def test_a_hanging_database_is_asked_once_then_by_probes_only(hanging: Hanging) -> None:
    clock = ManualClock(CLOCK_START)
    patience = Patience(clock, wait_s=0.02)
    for _ in range(5):
        with pytest.raises(Unavailable, match=r"within 0\.02 s"):
            patience.ask(hanging.answer)
    assert hanging.asked == 1
    clock.advance(PROBE_EACH_S)
    for _ in range(5):
        with pytest.raises(Unavailable):
            patience.ask(hanging.answer)
    assert hanging.asked == 2


def test_once_the_late_answers_are_in_everything_is_asked_again(hanging: Hanging) -> None:
    patience = Patience(ManualClock(CLOCK_START), wait_s=0.02)
    with pytest.raises(Unavailable):
        patience.ask(hanging.answer)
    hanging.thawed.set()
    for late in list(patience._overdue):  # pyright: ignore[reportPrivateUsage]
        assert late.result(60) == 7
    assert Patience(ManualClock(CLOCK_START), wait_s=60).ask(hanging.answer) == 7
    patience.wait_s = 60
    assert patience.ask(hanging.answer) == 7


def test_what_is_much_to_work_out_blames_no_database_and_keeps_no_other_question_waiting(
    hanging: Hanging,
) -> None:
    clock, seen = ManualClock(CLOCK_START), Outage()
    much = Patience(clock, wait_s=0.02, outage=seen, answers="worked out")
    with pytest.raises(Unavailable, match=r"not worked out within 0\.02 s") as caught:
        much.ask(hanging.answer)
    assert "database" not in caught.value.message
    assert seen.noticed_at is None
    assert Patience(clock).ask(lambda: 3) == 3  # the pages' own
