"""The gate machine can fail: each of its oracles misses the rule it is about when a gate breaks it.

A mutant is a gate that breaks one rule. The machine must meet it, by that oracle and no other way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import gate_oracles as oracles
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import rule, run_state_machine_as_test
from test_gate_machine import GateMachine

from fleet.backlog import Backlog
from fleet.gate import Decision, Dispatch, Gate, Lease, NodeState, Refused, Request
from fleet.messages import Assignment
from fleet.outcomes import TIERS, Outcome


class Leaks(Gate):
    """Keeps the lease of a client that left."""

    def release(self, lease: Lease, *, outcome: Outcome, **usage: int | float | None) -> bool:  # type: ignore[override]
        if outcome is Outcome.CLIENT_GONE and lease.is_open:
            lease.is_open = False
            return True
        return super().release(lease, outcome=outcome, **usage)  # type: ignore[arg-type]


class Overbooks(Gate):
    """Takes nodes for larger than they say they are."""

    def observe(self, states: Iterable[NodeState], now_s: float) -> None:
        larger = [replace(one, kv_capacity_tokens=(one.kv_capacity_tokens or 0) * 5 // 4) for one in states]
        super().observe(larger, now_s)


class Dawdles(Gate):
    """Lets requests wait far beyond their tier's timeout."""

    def apply(self, assignment: Assignment, now_s: float) -> None:
        policy = assignment.policy
        tiers = policy.tiers.model_copy(
            update={
                name: getattr(policy.tiers, name).model_copy(update={"queue_timeout_s": 600.0})
                for name in ("interactive", "batch", "best_effort")
            }
        )
        slow = policy.model_copy(update={"tiers": tiers})
        super().apply(assignment.model_copy(update={"policy": slow}), now_s)


class ForgetsLevels(Gate):
    """Empties every bucket at a push."""

    def apply(self, assignment: Assignment, now_s: float) -> None:
        is_first = not self.is_ready
        super().apply(assignment, now_s)
        if not is_first:
            self.accounts.resume(None, 0.0)


class ChargesTheRefused(Gate):
    """Takes tokens from a tenant whose request it refuses."""

    def offer(self, request: Request, now_s: float) -> Decision:
        decision = super().offer(request, now_s)
        account = self.accounts.find(request.tenant)
        if isinstance(decision, Refused) and account is not None:
            account.accept(7, False, True)
        return decision


class TrustsOldWords(Gate):
    """Takes what a node said for newer than it is."""

    def observe(self, states: Iterable[NodeState], now_s: float) -> None:
        super().observe([replace(one, seen_at_s=one.seen_at_s + 60) for one in states], now_s)


class ForgetsGhosts(Gate):
    """Counts what a quota in shadow let through as if it had been within it."""

    def offer(self, request: Request, now_s: float) -> Decision:
        decision = super().offer(request, now_s)
        if isinstance(decision, Dispatch):
            decision.lease.ticket.is_ghost = False
        return decision


class QueuesWithoutBounds(Gate):
    """Lets any number wait."""

    def __init__(self, *given: object, **named: object) -> None:
        super().__init__(*given, **(named | {"max_queued_requests": None}))  # type: ignore[arg-type]

    def apply(self, assignment: Assignment, now_s: float) -> None:
        policy = assignment.policy
        admission = policy.admission.model_copy(update={"max_waiting_tokens": None})
        open_ended = policy.model_copy(update={"admission": admission})
        super().apply(assignment.model_copy(update={"policy": open_ended}), now_s)


class LetsAllPass(Gate):
    """Lets any number of small requests pass one that is next (see the test's patch)."""


class LetsTheStrandedWait(Gate):
    """Lets requests wait whose model's last node is taken away (see the test's patch)."""


MUTANTS = {
    "g1": Leaks,
    "g2": Overbooks,
    "g3": Dawdles,
    "g4": LetsAllPass,
    "g5": ForgetsLevels,
    "g6": ChargesTheRefused,
    "g7": TrustsOldWords,
    "g8": ForgetsGhosts,
    "g9": QueuesWithoutBounds,
    "g10": LetsTheStrandedWait,
}
ORACLES = [name for name in vars(oracles) if name[0] == "g" and name[1].isdigit()]
UNSHRUNK = settings(
    max_examples=1_500,
    stateful_step_count=60,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck(one) for one in HealthCheck],  # without those withdrawn
    report_multiple_bugs=False,
    print_blob=False,
)


def number_of(oracle: str) -> str:
    """Return "g1" of "g1_in_flight_is_…"."""
    return oracle.partition("_")[0]


def test_every_oracle_has_a_mutant() -> None:
    assert set(MUTANTS) == set(map(number_of, ORACLES))


@pytest.mark.parametrize("name", MUTANTS)
def test_the_oracle_of_a_broken_rule_misses_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Machine(GateMachine):
        """Comes more often to where g7 and g10 can be broken: which steps are drawn is not ours to fix."""

        gate_type = MUTANTS[name]

        @rule()
        def hear_nothing_for_long(self) -> None:
            self.wait(6.0)

        @rule()
        def wait_for_what_not_every_push_lists(self) -> None:
            for tier in TIERS:
                self.offer("a", tier, 9_000, 100, "adapter")

    heard: set[str] = set()
    for other in ORACLES:
        ask = getattr(oracles, other) if number_of(other) == name else None
        monkeypatch.setattr(oracles, other, listening(ask, heard))
    if name == "g4":
        monkeypatch.setattr(Backlog, "_may_pass", lambda *_: True)
    if name == "g10":
        monkeypatch.setattr(Backlog, "stranded", lambda _: [])
    with pytest.raises((AssertionError, KeyError)):  # what the broken gate does afterwards does not matter
        run_state_machine_as_test(Machine, settings=UNSHRUNK)
    assert heard == {name}


def listening(ask: Callable[..., None] | None, heard: set[str]) -> Callable[..., None]:
    """Return the oracle with its verdict noted; silent when there is none to ask."""

    def asked(*given: object) -> None:
        if ask is not None:
            try:
                ask(*given)
            except AssertionError:
                heard.add(number_of(ask.__name__))
                raise

    return asked
