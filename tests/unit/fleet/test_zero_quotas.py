"""A limit of 0 is the one that is named, with what helps against it, and nothing is promised."""

from __future__ import annotations

from typing import Any

import pytest
from gate_world import assignment, open_gate, request, tenant

from fleet.gate import Dispatch, Refused
from fleet.outcomes import Outcome

CAP_S = 60
WORDS = {
    "tokens_per_minute": ("0 tokens per minute", Outcome.REJECTED_QUOTA_RATE),
    "max_in_flight_tokens": ("0 tokens in flight", Outcome.REJECTED_QUOTA_TOKENS),
    "max_concurrent_requests": ("0 concurrent requests", Outcome.REJECTED_QUOTA_REQUESTS),
}


def refused(*, running: int = 0, limiters: dict[str, str] | None = None, **quota: Any) -> Refused:
    """Return the answer to a request of 1,000 tokens after `running` such were let in without limits."""
    held: dict[str, Any] = {"retry_after": {"floor_s": 1, "cap_s": CAP_S, "jitter_ratio": 0.5}}
    gate = open_gate(assignment({"acme": tenant()}, **held))
    for number in range(running):
        gate.offer(request(number), 0.0)
    parts: dict[str, Any] = held | ({"limiters": limiters} if limiters else {})
    gate.apply(assignment({"acme": tenant(**quota)}, generation=2, **parts), 0.0)
    decision = gate.offer(request(99), 0.0)
    assert isinstance(decision, Refused)
    return decision


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("limiters", [None, {"queue_length": "off"}])
def test_a_quota_of_zero_is_named_whatever_else_is_met(name: str, limiters: dict[str, str] | None):
    # 5 requests of 1,000 run: all limits below are met at once, and one of them is 0
    others: dict[str, Any] = {
        "tokens_per_minute": 60,
        "burst_tokens": 1,
        "max_in_flight_tokens": 5_000,
        "max_concurrent_requests": 5,
    }
    answer = refused(running=5, limiters=limiters, **(others | {name: 0}))
    words, outcome = WORDS[name]
    assert answer.outcome is outcome
    assert (
        answer.reason == f"tenant acme has a quota of {words}: every request is refused until it is raised"
    )
    assert answer.limit is not None
    assert answer.limit.quota == 0
    assert answer.limit.reset_s is None  # no time at which it would pass
    assert answer.retry_after_s is not None
    assert CAP_S / 3 <= answer.retry_after_s <= CAP_S  # the cap, less what the jitter of a half takes


@pytest.mark.parametrize("limiters", [None, {"queue_length": "off"}])
@pytest.mark.parametrize(
    ("quota", "outcome"),
    [
        ({}, Outcome.REJECTED_QUOTA_REQUESTS),
        ({"max_concurrent_requests": 9}, Outcome.REJECTED_QUOTA_TOKENS),
        ({"max_concurrent_requests": 9, "max_in_flight_tokens": 9_000}, Outcome.REJECTED_QUOTA_RATE),
    ],
)
def test_of_limits_above_zero_the_same_is_named_whatever_else_is_switched(
    quota: dict[str, int], outcome: Outcome, limiters: dict[str, str] | None
):
    # the first request of 1,000 passes a full bucket and meets no limit; the second meets all three
    met = {"tokens_per_minute": 60, "burst_tokens": 1, "max_in_flight_tokens": 1_000}
    parts: dict[str, Any] = {"limiters": limiters} if limiters else {}
    gate = open_gate(
        assignment({"acme": tenant(**(met | {"max_concurrent_requests": 1} | quota))}, **parts)
    )
    assert isinstance(gate.offer(request(1), 0.0), Dispatch)
    decision = gate.offer(request(2), 0.0)
    assert isinstance(decision, Refused)
    assert decision.outcome is outcome


@pytest.mark.parametrize("limiters", [None, {"queue_length": "off"}])
def test_a_quota_of_zero_is_named_before_a_part_of_zero(limiters: dict[str, str] | None):
    parts: dict[str, Any] = {"limiters": limiters} if limiters else {}
    made = assignment({"acme": tenant(max_concurrent_requests=3, max_in_flight_tokens=0)}, **parts)
    share = made.shares["acme"].model_copy(update={"max_concurrent_requests": 0})
    decision = open_gate(made.model_copy(update={"shares": {"acme": share}})).offer(request(), 0.0)
    assert isinstance(decision, Refused)
    assert decision.reason.endswith("0 tokens in flight: every request is refused until it is raised")


def test_where_all_are_zero_the_rate_is_named():
    answer = refused(tokens_per_minute=0, burst_tokens=0, max_in_flight_tokens=0, max_concurrent_requests=0)
    assert answer.outcome is Outcome.REJECTED_QUOTA_RATE


def test_a_part_of_zero_of_a_quota_that_is_not_is_told_apart():
    made = assignment({"acme": tenant(max_concurrent_requests=3)})
    share = made.shares["acme"].model_copy(update={"max_concurrent_requests": 0})
    gate = open_gate(made.model_copy(update={"shares": {"acme": share}}))
    decision = gate.offer(request(), 0.0)
    assert isinstance(decision, Refused)
    assert "quota of 3 concurrent requests, of which this gateway's part is 0 now" in decision.reason
    assert decision.retry_after_s is not None
    assert decision.retry_after_s <= 2  # parts move within seconds


@pytest.mark.parametrize(
    ("budget", "words"),
    [("0", "has a monthly budget of 0 USD"), ("12.50", "has spent its monthly budget of 12.50 USD")],
)
def test_a_monthly_budget_of_zero_is_not_called_spent(budget: str, words: str):
    made = assignment(
        {"acme": tenant(monthly_budget_usd=budget, over_budget="refuse")}, over_budget=("acme",)
    )
    decision = open_gate(made).offer(request(), 0.0)
    assert isinstance(decision, Refused)
    assert decision.outcome is Outcome.REJECTED_QUOTA_BUDGET
    assert words in decision.reason
