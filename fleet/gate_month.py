"""A strategy's days through the real gate, beside the event simulation of the same requests.

The event simulation draws the requests and its controllers, acting on counted arrivals, make the node plan;
the gate gets the same requests and the same nodes, and either the same service times or engines that slow
down as they fill. Days stand alone (`fleet.gate_task`), so they may be done anywhere and in any order; they
are counted in theirs. Times are seconds, money US dollars, shares of offered requests. Prevents: a month
lost when its process ends, and two methods compared on different traffic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet.errors import InvalidInput
from fleet.fluid import BIN_S, DAY_BINS
from fleet.gate_day import DayOutcome, GateDay
from fleet.gate_rules import GateRules
from fleet.gate_task import DayTask
from fleet.month_result import MonthResult, Totals, month_result
from fleet.outcomes import TIERS, Outcome, Tier
from fleet.refusal_split import Flow
from fleet.simulate import EventRun, NodePlan
from fleet.wait_tally import WaitTally, restored

#: Requests between two looks at whether to go on: below a second, on a busy machine a few.
SLICE_REQUESTS = 20_000
_SHARES = (0.5, 0.95, 0.99, 0.999)
_OUTCOMES = tuple(Outcome)
#: What is tallied by tier.
_TALLIES = ("waits", "first", "e2e")
#: Of each flow: offered, lost, answered within the objective.
_COUNTS = 3


@dataclass(frozen=True, slots=True)
class TierMonth:
    """What one tier noticed. First token and end are known where engines serve."""

    tier: Tier
    offered: int
    refused: int
    lost: int
    refused_by: Mapping[Outcome, int]
    wait_p50_s: float
    wait_p95_s: float
    wait_p99_s: float
    slo_attainment: float
    first_p50_s: float | None = None  # arrival to first token
    first_p95_s: float | None = None
    first_p99_s: float | None = None
    e2e_p50_s: float | None = None  # arrival to last token
    e2e_p95_s: float | None = None

    @property
    def refused_share(self) -> float:
        """The share of its own requests that was refused."""
        return self.refused / self.offered if self.offered else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return it in words and numbers."""
        return {**asdict(self), "refused_share": self.refused_share, "refused_by": dict(self.refused_by)}


@dataclass(frozen=True, slots=True)
class TenantMonth:
    """What one tenant of a tier noticed."""

    tier: Tier
    tenant: str
    offered: int
    refused: int
    lost: int
    mean_wait_s: float | None  # of those that started; None: none did
    slo_attainment: float

    @property
    def refused_share(self) -> float:
        """The share of its own requests that was refused."""
        return self.refused / self.offered if self.offered else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return it in words and numbers."""
        return {**asdict(self), "refused_share": self.refused_share}


class GateRun:
    """The gate's days. Goes on in slices; what is kept of it is whole days, and days are reproducible."""

    def __init__(self, events: EventRun, rules: GateRules) -> None:
        self.events, self.rules = events, rules
        self._policy = rules.policy(events.strategy.max_wait_s)
        self._node = rules.node(events.service, events.node)
        self._day: GateDay | None = None
        self._tallies = {name: [WaitTally() for _ in TIERS] for name in _TALLIES}
        flows = len(rules.flows)
        self._offered, self._lost, self._within = np.zeros((_COUNTS, flows), dtype=np.int64)
        self._waited_s = np.zeros(flows)
        self._refused = np.zeros((flows, len(_OUTCOMES)), dtype=np.int64)
        self._refused_by_bin = np.zeros(events.rates_rps.size)
        self._preemptions = 0
        self._days_done = 0

    @property
    def days(self) -> int:
        """How many days the whole run has."""
        return self.events.days

    @property
    def days_done(self) -> int:
        """How many days are simulated and kept."""
        return self._days_done

    @property
    def is_done(self) -> bool:
        """Say whether nothing is left to simulate."""
        return self._days_done >= self.days

    @property
    def requests_done(self) -> int:
        """How many requests were asked about, those of the day under way included."""
        return int(self._offered.sum()) + (0 if self._day is None else self._day.done)

    def advance(self) -> None:
        """Simulate the next slice."""
        if self.is_done:
            return
        if self._day is None:
            self._day = self.task(self._days_done).begin()
        self._day.advance(SLICE_REQUESTS)
        if self._day.is_done:
            self.fold(self._day.outcome())

    def task(self, day: int) -> DayTask:
        """Return all that a day depends on; simulates the events up to it first."""
        while self.events.days_done <= day:
            self.events.advance()
        task = DayTask(
            day,
            self._policy,
            self.rules.day_flows(),
            tuple(one.share for one in self.rules.flows),
            self._node,
            self.events.node,
            self.events.service,
            self.events.seed,
            self.events.rates_rps,
            self.events.node_plan,
        )
        return replace(task, plan=_part(task.plan, task.first_bin, task.last_bin))

    def fold(self, outcome: DayOutcome) -> None:
        """Count the next day in."""
        for place, flow in enumerate(self.rules.flows):
            tier = TIERS.index(Tier(flow.tier))
            found = (outcome.waits_s[place], outcome.first_s[place], outcome.e2e_s[place])
            for name, values_s in zip(_TALLIES, found, strict=True):
                self._tallies[name][tier].add(values_s)
            waits_s, lost_s = outcome.waits_s[place], outcome.lost_waits_s[place]
            self._waited_s[place] += waits_s.sum(dtype=np.float64)
            self._within[place] += np.count_nonzero(waits_s <= self.events.slo_wait_s)
            self._within[place] -= np.count_nonzero(lost_s <= self.events.slo_wait_s)
            self._lost[place] += lost_s.size
        self._refused += outcome.refused
        self._offered += outcome.offered
        self._preemptions += outcome.preemptions
        np.add.at(self._refused_by_bin, (outcome.refused_at_s // BIN_S).astype(np.int64), 1)
        self._days_done += 1
        self._day = None

    def result(self) -> MonthResult:
        """Return what the days done cost, refused and made wait. InvalidInput before the first."""
        if self._days_done == 0:
            raise InvalidInput("no day is simulated yet", hint="Call advance() first")
        done = min(self._days_done * DAY_BINS, self.events.rates_rps.size)
        tallies = self._tallies["waits"]
        counts = np.sum([tally.counts for tally in tallies], axis=0)
        all_waits = WaitTally(counts, max(tally.longest_s for tally in tallies))
        lost, refused = float(self._lost.sum()), float(self._refused.sum())
        totals = Totals(
            offered=float(self._offered.sum()),
            refused=refused,
            served=all_waits.total - lost,
            lost=lost,
            within_slo=float(self._within.sum()),
            wait_quantiles_s=all_waits.quantiles(_SHARES),
            wait_max_s=all_waits.longest_s,
        )
        plan = self.events.node_plan
        return month_result(
            totals,
            self.events.strategy,
            self.events.node,
            BIN_S,
            billed=plan.billed[:done],
            billed_burst=plan.billed_burst[:done],
            refused=self._refused_by_bin[:done],
            waits_s=np.zeros(done),
        )

    def tiers(self) -> tuple[TierMonth, ...]:
        """Return what each tier that sends anything noticed in the days done."""
        found = [(tier, self._of(lambda flow, name=tier.value: flow.tier == name)) for tier in TIERS]
        return tuple(self._tier(tier, flows) for tier, flows in found if self._offered[flows].any())

    def tenants(self) -> tuple[TenantMonth, ...]:
        """Return what each tenant noticed, tier by tier; none where they are not told apart."""
        return tuple(
            self._tenant(Tier(flow.tier), flow.tenant, place)
            for place, flow in enumerate(self.rules.flows)
            if flow.tenant and self._offered[place]
        )

    @property
    def preemptions(self) -> int | None:
        """How often engines computed a sequence again for want of KV; None where none serve."""
        return None if self._node.engine is None else self._preemptions

    @property
    def kv_tokens(self) -> int | None:
        """What a node's KV cache holds; None: more than its slots need."""
        engine = self._node.engine
        return self.rules.kv_tokens if engine is None else engine.kv_capacity_tokens

    def _of(self, wanted: Callable[[Flow], bool]) -> list[int]:
        return [place for place, flow in enumerate(self.rules.flows) if wanted(flow)]

    def _tier(self, tier: Tier, flows: list[int]) -> TierMonth:
        waits, first, e2e = (self._tallies[name][TIERS.index(tier)] for name in _TALLIES)
        offered, lost = int(self._offered[flows].sum()), int(self._lost[flows].sum())
        p50, p95, p99 = waits.quantiles(_SHARES[:3])
        sums = self._refused[flows].sum(axis=0)
        by = Counter({_OUTCOMES[n]: int(v) for n, v in enumerate(sums) if v})
        within = int(self._within[flows].sum())
        ends: tuple[float, ...] = ()
        if first.total:
            ends = (*first.quantiles(_SHARES[:3]), *e2e.quantiles(_SHARES[:2]))
        return TierMonth(tier, offered, by.total(), lost, by, p50, p95, p99, within / offered, *ends)

    def _tenant(self, tier: Tier, tenant: str, place: int) -> TenantMonth:
        offered, lost = int(self._offered[place]), int(self._lost[place])
        refused = int(self._refused[place].sum())
        started = offered - refused
        wait_s = float(self._waited_s[place]) / started if started else None
        within = int(self._within[place])
        return TenantMonth(tier, tenant, offered, refused, lost, wait_s, within / offered)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all that the days done left behind; the day under way is done again."""
        found = {f"events_{name}": values for name, values in self.events.state().items()}
        for name, place, tally in self._each_tally():
            found[f"{name}_keys_{place}"], found[f"{name}_counts_{place}"] = tally.sparse()
        counts = np.concatenate((self._offered, self._lost, self._within, self._refused.ravel()))
        return found | {
            "days": np.array([self._days_done, self._preemptions]),
            "longest_s": np.array([tally.longest_s for _, _, tally in self._each_tally()]),
            "counts": counts,
            "waited_s": self._waited_s,
            "refused_by_bin": self._refused_by_bin,
        }

    def _each_tally(self) -> list[tuple[str, int, WaitTally]]:
        return [(name, n, tally) for name in _TALLIES for n, tally in enumerate(self._tallies[name])]

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on from a `state` of the same inputs. After InvalidInput (it does not fit) begin anew."""
        misfit = InvalidInput("the snapshot does not fit", hint="Start the simulation anew")
        now = self.state()
        if set(state) != set(now) or any(state[name].dtype != now[name].dtype for name in now):
            raise misfit
        fixed = ("days", "longest_s", "counts", "waited_s", "refused_by_bin")
        if any(state[name].shape != now[name].shape for name in fixed):
            raise misfit
        days, preemptions = (int(value) for value in state["days"])
        if not 0 <= days <= self.days or state["counts"].min() < 0:
            raise misfit
        tallies: dict[str, list[WaitTally]] = {name: [] for name in _TALLIES}
        for (name, place, _), longest_s in zip(self._each_tally(), state["longest_s"], strict=True):
            parts = state[f"{name}_keys_{place}"], state[f"{name}_counts_{place}"]
            tallies[name].append(restored(*parts, float(longest_s)))
        prefix = "events_"
        self.events.restore(
            {name.removeprefix(prefix): state[name] for name in state if name.startswith(prefix)}
        )
        flows = len(self.rules.flows)
        counts = state["counts"]
        self._offered, self._lost, self._within = counts[: _COUNTS * flows].reshape(_COUNTS, flows).copy()
        self._refused = counts[_COUNTS * flows :].reshape(flows, len(_OUTCOMES)).copy()
        self._waited_s, self._refused_by_bin = state["waited_s"].copy(), state["refused_by_bin"].copy()
        self._tallies, self._days_done, self._preemptions = tallies, days, preemptions
        self._day = None


def _part(plan: NodePlan, first: int, last: int) -> NodePlan:
    return NodePlan(
        plan.ready[first:last],
        plan.running_burst[first:last],
        plan.interrupted[first:last],
        plan.billed[first:last],
        plan.billed_burst[first:last],
    )
