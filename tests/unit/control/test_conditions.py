"""A condition is about a gateway's newest word, never about what was sent."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from control.conditions import (
    Desired,
    Known,
    Refusal,
    after_answer,
    after_silence,
    condition,
    holds,
    settled,
)
from fleet.messages import GatewayStatus
from tests.gateway_status import gateway_status

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
WANTED = Desired(revision=7, epoch=3, generation=5, digest="a")

counts = st.integers(0, 8)
known = st.builds(
    Known,
    seen_at=st.none() | st.just(NOW),
    contact_lost_at=st.none() | st.just(NOW),
    epoch=st.none() | counts,
    generation=st.none() | counts,
    digest=st.none() | st.sampled_from("ab"),
    revision=st.none() | counts,
    acked_at=st.none() | st.just(NOW),
    message=st.just("why"),
)
desired = st.none() | st.builds(Desired, counts, counts, st.integers(1, 8), st.sampled_from("ab"))
refusals = st.none() | st.builds(Refusal, st.none() | counts, st.just("bad"), st.just("/x"))


@given(known, desired, refusals)
def test_converged_means_heard_unbroken_and_exactly_what_is_wanted(
    state: Known, wanted: Desired | None, refusal: Refusal | None
) -> None:
    name, message = condition(state, wanted, refusal)
    if name == "converged":
        assert wanted is not None
        assert holds(state, wanted)
        assert state.seen_at is not None
        assert state.contact_lost_at is None
        assert (state.epoch or 0) <= wanted.epoch
        assert message == ""
    else:
        assert message


@given(known, desired, refusals)
def test_lost_contact_overrules_everything(
    state: Known, wanted: Desired | None, refusal: Refusal | None
) -> None:
    lost = replace(state, contact_lost_at=NOW)
    assert condition(lost, wanted, refusal)[0] == "unreachable"
    assert settled(lost, wanted, refusal, NOW).acked_at is None


@given(known, desired, refusals)
def test_applied_is_said_of_converged_gateways_only(
    state: Known, wanted: Desired | None, refusal: Refusal | None
) -> None:
    found = settled(state, wanted, refusal, NOW)
    assert (found.acked_at is not None) == (found.condition == "converged")


def heard(**more: object) -> Known:
    base = Known(seen_at=NOW, epoch=3, generation=5, revision=7, digest="a", boot_id="one")
    return replace(base, **more)  # type: ignore[arg-type]


def test_each_condition_has_its_case() -> None:
    cases = [
        (heard(), None, "converged"),
        (heard(epoch=2), None, "converged"),  # an earlier leader sent the same
        (heard(generation=4, digest="b"), None, "behind"),
        (heard(generation=4, digest="b", acked_at=NOW), None, "drifting"),  # fell back after a restart
        (heard(generation=6), None, "drifting"),
        (heard(digest="b"), None, "drifting"),
        (heard(epoch=4), None, "drifting"),
        (heard(generation=0, digest=None, revision=None), None, "behind"),
        (heard(generation=4), Refusal(5, "bad", "/x"), "rejected"),
        (heard(generation=4), Refusal(4, "bad", "/x"), "behind"),  # refused something else
        (heard(contact_lost_at=NOW), None, "unreachable"),
        (Known(), None, "unknown"),
    ]
    assert [condition(state, WANTED, refusal)[0] for state, refusal, _ in cases] == [
        name for _, _, name in cases
    ]


def status(boot_id: str) -> GatewayStatus:
    return gateway_status(
        boot_id=boot_id,
        version="0",
        epoch=3,
        generation=5,
        revision=7,
        digest="a",
        nodes_usable=0,
        nodes_total=0,
    )


def test_a_confirmation_ends_with_contact_and_with_the_process() -> None:
    acked = settled(after_answer(Known(), status("one"), NOW), WANTED, None, NOW)
    assert acked.acked_at == NOW
    later = NOW + timedelta(seconds=60)
    assert settled(after_answer(acked, status("one"), later), WANTED, None, later).acked_at == NOW
    assert settled(after_answer(acked, status("two"), later), WANTED, None, later).acked_at == later
    lost = after_silence(acked, "timeout", NOW, cap_s=15, jitter=0.5)
    assert lost.acked_at is None
    assert settled(after_answer(lost, status("one"), later), WANTED, None, later).acked_at == later


@given(st.integers(1, 200), st.floats(0, 1))
def test_back_off_doubles_to_its_cap_and_spreads(failures: int, jitter: float) -> None:
    state = Known()
    for _ in range(failures):
        state = after_silence(state, "timeout", NOW, cap_s=15.0, jitter=jitter)
    assert state.retry_at is not None
    wait_s = (state.retry_at - NOW).total_seconds()
    full_s = min(15.0, 0.5 * 2 ** (failures - 1))
    assert full_s / 2 - 1e-5 <= wait_s <= full_s + 1e-5
    assert state.contact_lost_at == NOW
