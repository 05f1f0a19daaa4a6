"""Alert rules as data: their order of thresholds, what may be changed, and the machine they drive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.alert_rules import (
    CHANGEABLE,
    RULES,
    AlertRule,
    Direction,
    Severity,
    changed,
    differences,
    rule_named,
)
from fleet.breach import AlarmState, Condition, step
from fleet.errors import InvalidInput, NotFound

RUNBOOKS = Path(__file__).parents[3] / "docs" / "runbooks"


def run(rule: AlertRule, values: list[float | None], period_s: float = 10.0) -> list[Condition]:
    """Return the condition after each value, one every `period_s`."""
    state, found = AlarmState(), list[Condition]()
    for i, value in enumerate(values):
        signed = None if value is None else rule.signed(value)
        state, _ = step(state, rule.timing(period_s), i * period_s, signed)
        found.append(state.condition)
    return found


@pytest.mark.parametrize("name", RULES)
def test_every_rule_resolves_on_the_healthy_side_of_where_it_opens(name: str) -> None:
    rule = RULES[name]
    assert rule.signed(rule.resolve_at) <= rule.signed(rule.open_at)
    assert rule.timing(10.0).hold_down_s > 0  # one good sample is never enough by mistake
    assert set(rule.scopes) <= {"node", "pool", "fleet", "tier", "tenant", "gateway"}


def test_a_rule_about_a_floor_opens_below_it_and_resolves_above() -> None:
    rule = AlertRule(
        "x", "x", "s", ("node",), Severity.WARNING, 300.0, 900.0, 20.0, 20.0, direction=Direction.BELOW
    )
    # period 10 s: more than 20 s below 300 is the third sample; 20 s above 900 the second one back
    falling = run(rule, [1000.0, 299.0, 299.0, 299.0, 500.0, 500.0, 901.0, 901.0])
    assert falling == [Condition.OK] * 3 + [Condition.FIRING] * 4 + [Condition.OK]


def test_exactly_at_the_threshold_is_not_beyond_it() -> None:
    rule = RULES["rho_high"]
    assert set(run(rule, [rule.open_at] * 60)) == {Condition.OK}


@pytest.mark.parametrize("name", RULES)
def test_missing_data_neither_raise_nor_clear_any_rule(name: str) -> None:
    rule = RULES[name]
    worse = rule.open_at + (1 if rule.direction is Direction.ABOVE else -1)
    assert set(run(rule, [None] * 200)) == {Condition.OK}
    rounds = int(rule.timing(10.0).hold_up_s / 10) + 2
    fired = run(rule, [worse] * rounds + [None] * 500)
    assert fired[rounds - 1] is Condition.FIRING
    assert Condition.OK not in fired[rounds:]
    assert fired[-1] is Condition.STALE


def test_holds_are_never_shorter_than_their_rounds() -> None:
    # 60 s would be a fifth of a round at a period of 300 s: two rounds must be missed
    assert RULES["node_silent"].timing(300.0).hold_up_s == 600.0
    assert RULES["node_silent"].timing(10.0).hold_up_s == 60.0


def test_pools_and_the_fleet_are_critical_where_a_sum_is_worse() -> None:
    rho = RULES["rho_high"]
    assert [rho.severity_of(scope) for scope in ("node", "pool", "fleet")] == [
        Severity.WARNING,
        Severity.CRITICAL,
        Severity.CRITICAL,
    ]
    assert RULES["hot_node"].severity_of("node") is Severity.WARNING


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"open_at": "0.9"}, "open_at"),
        ({"open_at": float("nan")}, "open_at"),
        ({"open_at": True}, "open_at"),
        ({"open_at": 1e10}, "open_at"),
        ({"open_at": 0.5}, "resolve_at"),  # it resolves at 0.75
        ({"resolve_at": 0.86}, "resolve_at"),
        ({"open_after_s": -1}, "open_after_s"),
        ({"resolve_after_s": 8 * 86_400}, "resolve_after_s"),
        ({"severity": "page"}, "severity"),
        ({"is_enabled": 1}, "is_enabled"),
        ({"name": "other"}, "name"),
        ({"scopes": ["node"]}, "scopes"),
    ],
)
def test_what_cannot_be_is_refused_at_its_field(values: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        changed(RULES["rho_high"], values)
    assert caught.value.field == field
    assert caught.value.hint


@given(
    open_at=st.floats(-1e6, 1e6),
    resolve_at=st.floats(-1e6, 1e6),
    holds=st.tuples(st.floats(0, 1e5), st.floats(0, 1e5)),
    name=st.sampled_from(list(RULES)),
)
def test_a_change_is_refused_or_gives_a_rule_the_machine_takes(
    open_at: float, resolve_at: float, holds: tuple[float, float], name: str
) -> None:
    values = {
        "open_at": open_at,
        "resolve_at": resolve_at,
        "open_after_s": holds[0],
        "resolve_after_s": holds[1],
    }
    try:
        made = changed(RULES[name], values)
    except InvalidInput:
        wrong = resolve_at > open_at if RULES[name].direction is Direction.ABOVE else resolve_at < open_at
        assert wrong
        return
    made.timing(10.0)  # raises if its thresholds were out of order
    assert changed(RULES[name], differences(made)) == made


def test_differences_hold_only_what_was_changed() -> None:
    made = changed(RULES["rho_high"], {"open_at": 0.9, "resolve_at": 0.75, "is_enabled": False})
    assert differences(made) == {"open_at": 0.9, "is_enabled": False}
    assert set(differences(made)) <= set(CHANGEABLE)


def test_an_unknown_rule_names_the_known_ones() -> None:
    with pytest.raises(NotFound) as caught:
        rule_named("rho_hgih")
    assert "rho_high" in caught.value.hint


def test_every_rule_has_a_runbook_and_no_runbook_is_an_orphan() -> None:
    pages = {path.stem: path.read_text() for path in RUNBOOKS.glob("*.md") if path.stem != "README"}
    assert set(pages) == set(RULES)
    index = (RUNBOOKS / "README.md").read_text()
    for name, text in pages.items():
        assert f"Rule `{name}`" in text
        assert f"[{name}]({name}.md)" in index
        for heading in ("What it means", "How to see it", "What to turn", "When to wake whom"):
            assert f"## {heading}\n" in text, f"{name}: {heading}"


def test_words_of_a_rule_say_how_many_rounds_it_waits():
    # what opens beyond one or three rounds does not open "at once"
    assert RULES["slo_burn"].opens_words == "above 1 times the limit for more than 1 round"
    assert RULES["node_frozen"].opens_words == "yes at once"
    assert RULES["budget"].resolves_words == "below 0.8 for 1 round"
