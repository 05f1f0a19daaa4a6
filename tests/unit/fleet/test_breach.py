"""The alarm fires late enough, clears slowly enough, and never goes quiet because data stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.breach import AlarmState, Certainty, Rule, judged, step
from fleet.errors import InvalidInput

VECTORS = json.loads(
    (Path(__file__).parents[2] / "data" / "queueing" / "little_and_alert_vectors.json").read_text()
)["alerts"]


def run(values: list[float | None], rule: Rule | None = None, period_s: float = 10.0):
    """Feed one value a period, the state going through JSON each time, and return the changes."""
    rule, state, changes = rule or Rule(), AlarmState(), []
    for index, value in enumerate(values):
        state = AlarmState.from_dict(json.loads(json.dumps(state.as_dict())))
        state, event = step(state, rule, index * period_s, value)
        if event:
            changes.append((index, event.condition.value))
    return changes, state


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda c: c["name"])
def test_the_machine_follows_the_reference_sequences(case):
    changes, _ = run(case["rho"])
    assert changes == [(t["i"], t["state"]) for t in case["transitions"] if t["i"] > 0]


def test_the_reference_uses_the_default_rule():
    p = VECTORS["params"]
    rule = Rule()
    assert (rule.up, rule.down, rule.hold_up_s, rule.hold_down_s, rule.max_gap_s, rule.period_s) == (
        p["up"], p["down"], p["hold_up_s"], p["hold_down_s"], p["max_gap_s"], p["dt_s"],
    )  # fmt: skip


def test_a_stale_alarm_that_returns_well_still_has_to_stay_well():
    # 14 samples fire it, 5 gaps make it stale; then 0.5: back to firing at once, OK 180 s later
    changes, _ = run([0.9] * 14 + [None] * 5 + [0.5] * 18)
    assert changes == [(12, "FIRING"), (17, "STALE"), (19, "FIRING"), (36, "OK")]


def test_an_observer_that_slept_counts_its_sleep_as_a_gap():
    state = AlarmState()
    for at in (0, 10, 20, 30, 40, 50):
        state, _ = step(state, Rule(), at, 0.9)
    # 300 s later: nobody saw the value in between, so the two minutes start anew
    state, event = step(state, Rule(), 350, 0.9)
    assert event is None
    assert state.above_s == 10


def test_a_late_scrape_does_not_stretch_the_breach():
    # 12 samples 10.4 s apart stand for 120 s, not 124.8: more than two minutes needs the 13th
    state, fired = AlarmState(), []
    for index in range(13):
        state, event = step(state, Rule(), index * 10.4, 0.9)
        fired.append(event is not None)
    assert fired == [False] * 12 + [True]


def test_a_repeated_or_older_sample_changes_nothing():
    state, _ = step(AlarmState(), Rule(), 100, 0.9)
    assert step(state, Rule(), 100, 0.1) == (state, None)
    assert step(state, Rule(), 90, None) == (state, None)


def test_grade_decides_what_the_alarm_looks_at():
    assert judged(0.9, 0.7, 1.2, "A", 0.85) == (0.9, Certainty.CONFIRMED)
    assert judged(0.9, 0.7, 1.2, "C", 0.85) == (0.7, Certainty.UNCONFIRMED)
    assert judged(1.1, 0.9, 1.5, "C", 0.85) == (0.9, Certainty.CONFIRMED)
    assert judged(0.2, 0.1, 0.4, "C", 0.85) == (0.1, Certainty.CONFIRMED)
    assert judged(0.9, 0.9, 0.9, "D", 0.85) == (None, Certainty.CONFIRMED)
    assert judged(None, None, None, "A", 0.85)[0] is None


@given(st.lists(st.one_of(st.none(), st.floats(0, 0.85)), max_size=400))
def test_it_never_fires_without_a_breach(values):
    assert run(values)[0] == []


@given(st.lists(st.sampled_from([0.5, 0.8, 0.9, None]), max_size=200))
def test_it_never_goes_from_alarm_to_ok_without_eighteen_good_samples(values):
    changes, _ = run(values)
    for index, condition in changes:
        if condition == "OK":
            # samples 10 s apart; short gaps freeze the timer, they never count as good
            window = [v for v in values[: index + 1] if v is not None][-18:]
            assert window == [0.5] * 18


@pytest.mark.parametrize("bad", [{"down": 0.9}, {"hold_up_s": -1}, {"period_s": 0}])
def test_an_impossible_rule_is_refused(bad):
    with pytest.raises(InvalidInput):
        Rule(**bad)


@pytest.mark.parametrize("bad", [{}, {"condition": "LOUD"}, {**AlarmState().as_dict(), "gap_s": "soon"}])
def test_a_stored_state_that_is_none_is_refused(bad):
    with pytest.raises(InvalidInput):
        AlarmState.from_dict(bad)
