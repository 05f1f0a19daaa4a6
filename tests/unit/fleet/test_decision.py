"""What was decided about one request, in words: nothing is said that was not so."""

from __future__ import annotations

import pytest

from fleet.decision import Attempt, Decision, Ending, Estimate, Wait, in_words
from fleet.limiters import Limiter
from fleet.outcomes import Outcome, Tier
from fleet.placement import BY_LOAD, REGARDLESS
from fleet.requeue import BY_RECALL


def decision(*attempts: Attempt, wait: Wait | None = None, would_refuse: tuple[str, ...] = ()) -> Decision:
    return Decision(
        gateway="gw-1",
        revision=3,
        request_id="req-1",
        at_s=1.0,
        tenant="acme",
        key_id="k-1",
        asked_tier=Tier.BATCH,
        tier=Tier.BATCH,
        model="m",
        endpoint="chat",
        estimate=Estimate(prompt_tokens=5, prompt_bytes=4, bytes_per_token=4.0, output_tokens=9),
        wait=wait,
        would_refuse=would_refuse,
        attempts=attempts,
        ending=Ending(outcome=Outcome.COMPLETED, total_s=2.0),
    )


def attempt(node: str, rule: str = BY_LOAD, candidates: int = 1, room_tokens: int = 70) -> Attempt:
    return Attempt(node=node, rule=rule, candidates=candidates, room_tokens=room_tokens, after_s=0.0)


def nodes(*attempts: Attempt) -> list[str]:
    return [line for line in in_words(decision(*attempts)) if line.startswith("node: ")]


@pytest.mark.parametrize("rule", [REGARDLESS, BY_RECALL])
def test_a_node_that_had_no_room_is_not_called_one_that_had(rule: str) -> None:
    [said] = nodes(attempt("n1", rule, room_tokens=-1))
    assert rule in said
    assert "with room" not in said
    assert "-1" not in said  # a full node's mark, not a number of tokens
    assert "nothing more fits there now" in said


def test_nodes_are_compared_only_where_there_were_several() -> None:
    first, second = nodes(attempt("n1", candidates=3), attempt("n2"))
    assert f"({BY_LOAD} of 3 with room; 70 tokens left there)" in first
    assert "(the only other node with room;" in second  # n1 has room, and had failed
    assert "(the only node with room;" in nodes(attempt("n1"), attempt("n1"))[1]


def test_a_request_that_waited_anew_says_so_beside_its_second_node() -> None:
    again = attempt("n1").model_copy(update={"waited_s": 1.25, "after_s": 2.5})
    waits = Wait(ahead_requests=2, ahead_tokens=90, expected_s=None, waited_s=0.5)
    lines = in_words(decision(attempt("n1"), again, wait=waits))
    assert "expected wait not known, waited 0.500 s" in lines[2]
    assert "waited" not in lines[3]  # the first node's wait stands above
    assert lines[4].startswith("node: n1 after 2.500 s, having waited 1.250 s again (")


def test_a_spent_budget_in_shadow_does_not_only_refuse() -> None:
    lines = in_words(decision(would_refuse=(Limiter.QUEUE_LENGTH, Limiter.MONTHLY_BUDGET)))
    assert "shadow: queue_length would have refused it" in lines
    assert "shadow: monthly_budget would have refused it or made it best_effort" in lines
