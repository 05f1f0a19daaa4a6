"""Whether the queues are in balance: the minutes of the fleet, its pools and tiers, judged each round.

Keeps six hours of disjoint minutes per subject in memory and refills them at start from what was stored.
Owned by the thread that judges rounds; `learn` may run in another. Prevents: a restart that forgets the
half hour a doubling took to show, and a state judged from windows that overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from control.assess import Assessment, Verdict
from control.flow_signals import SignalBook
from control.flow_slices import RoundSlices, Slicer, Subject
from control.rounds import Round
from fleet.bursts import Counted
from fleet.equilibrium import Equilibrium, assess_equilibrium
from fleet.flow_minutes import FlowMinute, FlowMinutes
from fleet.flow_signals import FlowRule, FlowSignal
from fleet.histograms import merge
from fleet.outcomes import TIERS, Tier
from fleet.percentages import percent
from fleet.policy import Policy
from fleet.readings import Histogram
from fleet.slo import Objective
from fleet.slo_windows import PAIRS, Burn, GoodCount, burn

SHOWN_S = 600.0  # percentiles and tails on the page are of ten minutes
MIN_BURN_COVERED = 0.5  # of a pair's short window
INTERACTIVE_WAIT_S = 1.5  # without a policy nobody says how long a request may wait


@dataclass(frozen=True, slots=True)
class FlowState:
    """One subject after a round."""

    subject: Subject
    state: Equilibrium
    minutes: int  # whole disjoint minutes behind it
    newest: FlowMinute | None
    time: Histogram | None  # of ten minutes
    ttft: Histogram | None
    length_s: float  # seconds that `time` and `ttft` cover of these ten minutes
    burns: dict[str, Burn] = field(default_factory=dict[str, Burn])
    good: GoodCount | None = None  # of the last hour
    is_fifo: bool = False  # nobody overtakes: the queue of one tier under the order fifo
    rho: float | None = None  # of the subject; of a tier the fleet's, whose capacity it shares


@dataclass(frozen=True, slots=True)
class FlowRound:
    """What one round says about balance, and the minutes it ended."""

    at: datetime
    states: tuple[FlowState, ...]
    closed: tuple[tuple[Subject, FlowMinute, Equilibrium], ...]
    signals: tuple[FlowSignal, ...]


class FlowBook:
    """Judges the balance of rounds as they come."""

    def __init__(self) -> None:
        self.policy: Policy | None = None
        self._slicer = Slicer()
        self._minutes: dict[Subject, FlowMinutes] = {}
        self._seen_s: dict[Subject, float] = {}
        self.signals = SignalBook()

    def learn(self, policy: Policy | None) -> None:
        """Take the policy in force: objective, timeouts, weights."""
        self.policy = policy

    @property
    def objective(self) -> Objective:
        """Return the objective of the policy; the default without one."""
        if self.policy is None:
            return Objective()
        return Objective(threshold=self.policy.slo.ttft_s, target=self.policy.slo.attainment_ratio)

    def refill(self, stored: Iterable[tuple[Subject, FlowMinute]], period_s: float) -> int:
        """Take minutes of an earlier process, oldest first; return how many."""
        taken = 0
        for subject, minute in stored:
            kept = self._minutes.setdefault(subject, FlowMinutes(period_s))
            kept.minutes.append(minute)
            if minute.minute.arrivals is not None:
                self.signals.remember(
                    subject, Counted(minute.ended_at_s, minute.minute.arrivals, minute.minute.length_s)
                )
            taken += 1
        return taken

    def minutes(self, subject: Subject) -> list[FlowMinute]:
        """Return the whole minutes kept of a subject, oldest first."""
        kept = self._minutes.get(subject)
        return [] if kept is None else list(kept.minutes)

    def take(self, round_: Round, assessment: Assessment) -> FlowRound:
        """Take a round with its verdicts and return what it says."""
        policy, objective = self.policy, self.objective
        working = [s.node.name for s in assessment.nodes if s.node.takes_work]
        slices = self._slicer.take(round_, working, policy, objective)
        at_s = round_.at.timestamp()
        ended: list[tuple[Subject, FlowMinute]] = []
        for subject, part in slices.slices.items():
            self._seen_s[subject] = at_s
            minutes = self._minutes.setdefault(subject, FlowMinutes(round_.period_s))
            if (minute := minutes.add(part)) is not None:
                ended.append((subject, minute))
        self._forget(at_s)
        verdicts = {(v.scope, v.name): v for v in assessment.verdicts}
        states = {
            subject: self._state(subject, at_s, slices, verdicts, objective) for subject in slices.slices
        }
        found = self.signals.take(round_, assessment, slices, policy)
        found += [signal for state in states.values() for signal in _signals(state, objective)]
        closed = tuple((subject, minute, states[subject].state) for subject, minute in ended)
        return FlowRound(round_.at, tuple(states.values()), closed, tuple(found))

    def _forget(self, at_s: float) -> None:
        """Drop subjects that nobody reported for six hours."""
        old = [subject for subject, seen_s in self._seen_s.items() if seen_s < at_s - 6 * 3600.0]
        for subject in old:
            del self._seen_s[subject]
            self._minutes.pop(subject, None)

    def _state(
        self,
        subject: Subject,
        at_s: float,
        slices: RoundSlices,
        verdicts: dict[Subject, Verdict],
        objective: Objective,
    ) -> FlowState:
        kept = self._minutes[subject]
        mu, rho_low, rho_high = self._capacity(subject, verdicts)
        recent = kept.recent(at_s, 100 * 60.0)
        state = assess_equilibrium(
            kept.unbroken(at_s, 100 * 60.0),
            waiting=slices.waiting.get(subject),
            longest_wait_s=self._longest_wait_s(subject),
            mu=mu,
            rho_low=rho_low,
            rho_high=rho_high,
        )
        shown = [m for m in kept.recent(at_s, SHOWN_S) if _has_times(m)]
        burns = {
            name: burn(
                objective,
                kept.good(at_s, long_s) or GoodCount(),
                kept.good(at_s, short_s) or GoodCount(),
            )
            if sum(m.covered_s for m in kept.recent(at_s, short_s)) >= MIN_BURN_COVERED * short_s
            else Burn(None, None)  # the first seconds of a record are no six hours
            for name, (long_s, short_s, _) in PAIRS.items()
        }
        return FlowState(
            subject,
            state,
            len(recent),
            recent[-1] if recent else None,
            merge(m.time for m in shown if m.time is not None),
            merge(m.ttft for m in shown if m.ttft is not None),
            sum(m.covered_s for m in shown),
            burns if subject[0] != "pool" else {},
            kept.good(at_s, 3600.0),
            subject[0] == "tier" and self.policy is not None and self.policy.admission.order == "fifo",
            _rho(subject, verdicts),
        )

    def _capacity(
        self, subject: Subject, verdicts: dict[Subject, Verdict]
    ) -> tuple[float | None, float | None, float | None]:
        """Return (mu, rho low, rho high). A tier has the fleet's mu by its weight and no rho of its own."""
        scope, name = subject
        verdict = verdicts.get(("fleet", "") if scope == "tier" else subject)
        if verdict is None:
            return None, None, None
        mu, rho = verdict.health.mu.value, verdict.health.rho
        if scope != "tier":
            return mu, rho.low, rho.high
        weight = 1.0 if self.policy is None else self.policy.tiers[Tier(name)].weight / 100
        return None if mu is None else mu * weight, None, None

    def _longest_wait_s(self, subject: Subject) -> float:
        """Return how long a request may wait: the tier's timeout; of mixed queues the weighted mean."""
        if self.policy is None:
            return INTERACTIVE_WAIT_S
        tiers = self.policy.tiers
        if subject[0] == "tier":
            return tiers[Tier(subject[1])].queue_timeout_s
        return sum(tiers[tier].weight / 100 * tiers[tier].queue_timeout_s for tier in TIERS)


def _rho(subject: Subject, verdicts: dict[Subject, Verdict]) -> float | None:
    """Return the rho of a subject's capacity; a tier has no capacity of its own."""
    verdict = verdicts.get(("fleet", "") if subject[0] == "tier" else subject)
    return None if verdict is None else verdict.health.rho.value


def _has_times(minute: FlowMinute) -> bool:
    """Say whether a minute's times are known; of one that an earlier process kept only the counts are."""
    return minute.time is not None or minute.ttft is not None or minute.minute.departures == 0


def _signals(found: FlowState, objective: Objective) -> Sequence[FlowSignal]:
    """Return the signals that follow from a subject's minutes."""
    scope, name = found.subject
    state, who = found.state, "the fleet" if scope == "fleet" else f"{scope} {name}"
    left = state.is_left
    signals = [
        FlowSignal(
            FlowRule.UNSTABLE,
            scope,
            name,
            None if left is None else float(left),
            f"{who}: {_balance_words(state)}",
            {
                "balance": None if state.balance is None else state.balance.value,
                "p99_doubling_min": state.p99_doubling_min,
                "signals": [
                    {"name": s.name, "is_raised": s.is_raised, "evidence": s.evidence}
                    for s in state.signals
                ],
            },
        )
    ]
    for pair, rule in (("fast", FlowRule.SLO_BURN_FAST), ("slow", FlowRule.SLO_BURN_SLOW)):
        if pair not in found.burns:
            continue
        value = found.burns[pair].sure
        long_s, short_s, _ = PAIRS[pair]
        spans = f"over the last {long_s / 3600:g} h and over the last {short_s / 60:g} min alike"
        words = (
            f"{who}: too few requests to judge the objective"
            if value is None
            else f"{who}: the error budget burns {value:.1f} times too fast, {spans} "
            f"(objective {percent(objective.target, 1)} within {objective.threshold:g} s)"
        )
        signals.append(FlowSignal(rule, scope, name, value, words))
    return signals


def _balance_words(state: Equilibrium) -> str:
    if state.balance is None:
        return "balance not known yet"
    raised = [s.evidence for s in state.signals if s.is_raised]
    return f"{state.balance.value}" + (f" ({'; '.join(raised)})" if raised else "")
