"""Studies in processes of their own: real processes, told apart by what they print."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator

import pytest

from control.progress_lines import read_progress
from control.study_process import MAX_WAITING, State, Study, StudyDesk, StudyView
from fleet.clock import SystemClock
from fleet.errors import InvalidInput, Unavailable

#: Says how far it is, then does what its first argument is.
SCRIPT = """
import json, sys, time
print("progress: cases 2/5", file=sys.stderr, flush=True)
what = sys.argv[1]
if what == "wait":
    time.sleep(600)
if what == "refuse":
    sys.exit("Error: the rate is 0\\nhint: Give more")
if what == "garbage":
    print("{")
else:
    print(json.dumps({"what": what, "given": sys.stdin.read(), "flags": sys.argv[2:]}))
"""
PATIENCE_S = 60.0
Desk = Callable[..., StudyDesk]


@pytest.fixture
def desk() -> Generator[Desk]:
    made: list[StudyDesk] = []

    def make(timeout_s: float = 60.0) -> StudyDesk:
        made.append(StudyDesk(SystemClock(), timeout_s, (sys.executable, "-c", SCRIPT)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def until(desk: StudyDesk, study: Study, is_so: Callable[[StudyView], bool]) -> StudyView:
    clock = SystemClock()
    deadline_s = clock.monotonic_s() + PATIENCE_S
    while True:
        found = desk.ask(study, "me")
        if is_so(found):
            return found
        assert clock.monotonic_s() < deadline_s, found


def ended(view: StudyView) -> bool:
    return not view.is_open


def test_a_study_is_asked_for_once_and_its_answer_kept(desk: Desk) -> None:
    of, study = desk(), Study(("echo", "--x", "1"), b"draft")
    found = until(of, study, ended)
    assert (found.state, found.error) == (State.DONE, None)
    assert found.answer == {"what": "echo", "given": "draft", "flags": ["--x", "1", "--json"]}
    assert of.ask(study, "another").answer is found.answer
    of.forget(study)
    assert of.peek(study) is None


def test_progress_is_seen_while_it_runs_and_a_cancel_ends_it(desk: Desk) -> None:
    of, slow, quick = desk(), Study(("wait",)), Study(("echo",))
    seen = until(of, slow, lambda view: view.of > 0)
    assert (seen.state, seen.step, seen.done, seen.of) == (State.RUNS, "cases", 2, 5)
    assert of.ask(quick, "me").ahead == 1
    of.cancel(slow)
    assert of.ask(slow, "me").state is State.CANCELLED
    assert until(of, quick, ended).state is State.DONE  # it did not wait ten minutes


def test_what_waits_is_cancelled_without_being_started(desk: Desk) -> None:
    of, slow, next_one = desk(), Study(("wait",)), Study(("echo",))
    until(of, slow, lambda view: view.state is State.RUNS)
    assert of.ask(next_one, "me").state is State.WAITS
    of.cancel(next_one)
    of.cancel(slow)
    assert of.ask(next_one, "me").state is State.CANCELLED


def test_a_study_ends_when_the_last_who_watched_it_leaves(desk: Desk) -> None:
    of, slow = desk(), Study(("wait",))
    until(of, slow, lambda view: view.state is State.RUNS)
    of.ask(slow, "another")
    of.leave(slow, "me")
    seen = of.peek(slow)
    assert seen is not None
    assert seen.is_open
    of.leave(slow, "another")
    assert of.peek(slow) is None
    assert until(of, Study(("echo",)), ended).state is State.DONE


def test_the_command_s_refusal_is_ours(desk: Desk) -> None:
    of = desk()
    found = until(of, Study(("refuse",)), ended)
    assert found.state is State.FAILED
    assert isinstance(found.error, InvalidInput)
    assert (found.error.message, found.error.hint) == ("the rate is 0", "Give more")


def test_an_answer_that_is_none_and_one_that_takes_too_long_are_unavailable(desk: Desk) -> None:
    of = desk()
    found = until(of, Study(("garbage",)), ended)
    assert isinstance(found.error, Unavailable)
    late = until(desk(timeout_s=0.5), Study(("wait",)), ended)
    assert isinstance(late.error, Unavailable)
    assert "took over" in late.error.message


def test_the_queue_is_bounded(desk: Desk) -> None:
    of = desk()
    until(of, Study(("wait",)), lambda view: view.state is State.RUNS)
    for n in range(MAX_WAITING):
        of.ask(Study(("echo", str(n))), "me")
    with pytest.raises(Unavailable, match="wait already"):
        of.ask(Study(("echo", "more")), "me")


def test_only_our_own_lines_are_progress() -> None:
    assert read_progress("progress: order 2/5\n") == ("order", 2, 5)
    assert read_progress("progress: this policy 10000/20000") == ("this policy", 10_000, 20_000)
    for line in ("Error: progress: x", "progress: x 2", "progress: x -1/5", ""):
        assert read_progress(line) is None
