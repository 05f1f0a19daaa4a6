"""The rollout's machine: one gateway first, silence never promotes, a refusal goes no further."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.deps import Finding, Verdict
from control.queries_policy import Rollout, RolloutState
from control.rollout import Move, Stand, advance

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
BASE = Rollout(
    id=1,
    revision=7,
    base_revision=6,
    state="first",
    strategy="staged",
    first_gateway=None,
    bake_s=10.0,
    bake_started_at=None,
    reason="",
    started_at=NOW,
    updated_at=NOW,
)
BAKING = replace(BASE, state="baking", first_gateway="a", bake_started_at=NOW)
GOOD = Finding(Verdict.HEALTHY, "fine")
BROKEN = Finding(Verdict.BREACHED, "slow")
SILENT = Finding(Verdict.NO_DATA, "no samples")
LATER = NOW + timedelta(seconds=10)


def stand(name: str, *, reachable: bool = True, applied: bool = False, refusal: str | None = None) -> Stand:
    return Stand(name, reachable, applied, refusal)


def state_after(rollout: Rollout, stands: list[Stand], finding: Finding, now: datetime) -> str:
    move = advance(rollout, stands, finding, now)
    return rollout.state if move is None else move.state


def test_the_first_reachable_gateway_goes_first() -> None:
    move = advance(BASE, [stand("a", reachable=False), stand("b"), stand("c")], SILENT, NOW)
    assert move == Move("first", "b goes first", "b", None)


def test_another_goes_first_when_the_first_is_lost_before_it_applied() -> None:
    chosen = replace(BASE, first_gateway="a")
    move = advance(chosen, [stand("a", reachable=False), stand("b")], SILENT, NOW)
    assert move is not None
    assert move.first_gateway == "b"
    assert state_after(chosen, [stand("a", applied=True), stand("b")], SILENT, NOW) == "baking"


def test_a_bake_ends_by_time_and_evidence() -> None:
    applied = [stand("a", applied=True), stand("b")]
    early = NOW + timedelta(seconds=9.9)
    assert state_after(BAKING, applied, GOOD, early) == "baking"
    assert state_after(BAKING, applied, GOOD, LATER) == "all"
    assert state_after(BAKING, applied, SILENT, early) == "baking"
    assert state_after(BAKING, applied, SILENT, LATER) == "paused"
    assert state_after(BAKING, applied, BROKEN, NOW) == "aborted"


def test_a_bake_without_a_verdict_waits_for_late_samples_and_then_pauses() -> None:
    applied = [stand("a", applied=True), stand("b")]
    for waited_s, state in [(10.0, None), (54.9, None), (55.0, "paused")]:
        now = NOW + timedelta(seconds=waited_s)
        move = advance(BAKING, applied, SILENT, now, evidence_wait_s=45.0)
        assert (move.state if move else None) == state
    late = advance(BAKING, applied, GOOD, NOW + timedelta(seconds=54), evidence_wait_s=45.0)
    assert late is not None
    assert late.state == "all"


def test_a_first_gateway_lost_while_baking_bakes_again_from_the_start() -> None:
    move = advance(BAKING, [stand("a"), stand("b")], GOOD, LATER)
    assert move is not None
    assert (move.state, move.bake_started_at) == ("first", None)


@pytest.mark.parametrize("rollout", [replace(BASE, first_gateway="a"), BAKING])
def test_a_refusal_of_the_first_ends_it_with_the_reason(rollout: Rollout) -> None:
    move = advance(rollout, [stand("a", refusal="/slo: no")], GOOD, LATER)
    assert move is not None
    assert (move.state, move.reason) == ("aborted", "a refused it: /slo: no")


def test_live_needs_every_gateway() -> None:
    everywhere = replace(BAKING, state="all")
    assert state_after(everywhere, [stand("a", applied=True), stand("b")], GOOD, LATER) == "all"
    assert (
        state_after(everywhere, [stand("a", applied=True), stand("b", applied=True)], GOOD, LATER) == "live"
    )
    assert state_after(everywhere, [], GOOD, LATER) == "all"
    move = advance(everywhere, [stand("a", applied=True), stand("b", refusal="no")], GOOD, LATER)
    assert move is not None
    assert (move.state, move.reason) == ("all", "b refused it: no")
    assert advance(replace(everywhere, reason=move.reason), [stand("b", refusal="no")], GOOD, LATER) is None


states = st.sampled_from(get_args(RolloutState))
stands = st.lists(
    st.builds(Stand, st.sampled_from("abc"), st.booleans(), st.booleans(), st.none() | st.just("no")),
    max_size=3,
    unique_by=lambda one: one.gateway,
)
rollouts = st.builds(
    replace,
    st.just(BASE),
    state=states,
    first_gateway=st.none() | st.sampled_from("abc"),
    bake_started_at=st.none() | st.just(NOW),
)
findings = st.sampled_from([GOOD, BROKEN, SILENT])


@given(rollouts, stands, findings, st.floats(0, 1_000))
def test_only_good_samples_promote_and_ended_rollouts_stay_ended(
    rollout: Rollout, found: list[Stand], finding: Finding, waited_s: float
) -> None:
    move = advance(rollout, found, finding, NOW + timedelta(seconds=waited_s))
    if rollout.state in ("paused", "live", "superseded", "aborted"):
        assert move is None
    if move is not None and move.state == "all" and rollout.state != "all":
        assert rollout.state == "baking"
        assert finding.verdict is Verdict.HEALTHY
        assert waited_s >= rollout.bake_s - 1e-5
    if move is not None and move.state == "live":
        assert found
        assert all(one.is_applied for one in found)


@given(rollouts)
def test_an_unproven_revision_is_at_one_gateway_at_most(rollout: Rollout) -> None:
    given_to = [name for name in "abc" if rollout.revision_for(name) == rollout.revision]
    if rollout.state in ("first", "baking", "paused"):
        assert given_to in ([], [rollout.first_gateway])
    elif rollout.state in ("aborted", "superseded"):
        assert given_to == []
