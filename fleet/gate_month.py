"""A strategy's days through the real gate, beside the event simulation of the same requests.

The event simulation draws the requests and its controllers, acting on counted arrivals, make the node plan;
the gate gets the same requests, the same service times and the same nodes, so that what differs is the
gate's doing. Each day is independent of how it was reached: a fresh gate is warmed up by the last hour of
the day before. Times are seconds, money US dollars, shares of offered requests. Prevents: a month lost when
its process ends, and two methods compared on different traffic.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet.errors import InvalidInput
from fleet.fluid import BIN_S, DAY_BINS
from fleet.gate_day import DayCounts, DayTraffic, GateDay
from fleet.month_result import MonthResult, Totals, month_result
from fleet.outcomes import TIERS, Outcome, Tier
from fleet.policy import Policy, parse
from fleet.replay_servers import ReplayNode
from fleet.simulate import EventRun
from fleet.wait_tally import WaitTally, restored

WARM_UP_BINS = 360
#: Requests between two looks at whether to go on: below a second, on a busy machine a few.
SLICE_REQUESTS = 20_000
#: Tokens that never bind: the slots do.
_PLENTY = 10**12
#: What the policy allows as a tier's longest wait, in seconds.
LEAST_WAIT_S, MOST_WAIT_S = 0.05, 600.0
_SHARES = (0.5, 0.95, 0.99, 0.999)
_OUTCOMES = tuple(Outcome)
_QUOTA = 10**12


@dataclass(frozen=True, slots=True)
class GateRules:
    """What the gate knows that the other methods do not."""

    tier_shares: Mapping[Tier, float]  # of the requests
    tier_weights: Mapping[Tier, int] = field(
        default_factory=lambda: {Tier.INTERACTIVE: 70, Tier.BATCH: 25, Tier.BEST_EFFORT: 5}
    )
    kv_tokens: int | None = None  # of a node; None: more than its slots can hold
    order: str = "sjf_aging"

    def policy(self, max_wait_s: float | None) -> Policy:
        """Return the policy in force: one tenant a tier, no quotas, every tier waits at most as long."""
        wait_s = MOST_WAIT_S if max_wait_s is None else min(max(max_wait_s, LEAST_WAIT_S), MOST_WAIT_S)
        tenant = {
            "tokens_per_minute": _QUOTA,
            "burst_tokens": _QUOTA,
            "max_in_flight_tokens": _QUOTA,
            "max_concurrent_requests": 1_000_000,
        }
        tier = {"queue_timeout_s": wait_s, "max_queued_requests": 100_000}
        return parse(
            {
                "schema": "rhodeck.policy/1",
                "tiers": {name.value: {"weight": self.tier_weights[name], **tier} for name in TIERS},
                "tenants": {
                    name.value: {"tier": name.value, "allowed_tiers": [name.value], **tenant}
                    for name in TIERS
                },
                "admission": {"order": self.order},
                "routing": {"spot_tiers": [name.value for name in TIERS]},
            }
        )


@dataclass(frozen=True, slots=True)
class TierMonth:
    """What one tier noticed."""

    tier: Tier
    offered: int
    refused: int
    lost: int
    refused_by: Mapping[Outcome, int]
    wait_p50_s: float
    wait_p95_s: float
    wait_p99_s: float
    slo_attainment: float

    @property
    def refused_share(self) -> float:
        """The share of its own requests that was refused."""
        return self.refused / self.offered if self.offered else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return it in words and numbers."""
        return {**asdict(self), "refused_share": self.refused_share, "refused_by": dict(self.refused_by)}


class GateRun:
    """The gate's days. Goes on in slices; what is kept of it is whole days, and days are reproducible."""

    def __init__(self, events: EventRun, rules: GateRules) -> None:
        self.events, self.rules = events, rules
        if not any(share > 0 for share in rules.tier_shares.values()):
            raise InvalidInput("no tier has requests", field="/tiers", hint='As {"interactive": 1}')
        if rules.kv_tokens is not None and rules.kv_tokens < 1:
            raise InvalidInput(f"a node holds {rules.kv_tokens} tokens", field="/kv_tokens")
        self._policy = rules.policy(events.strategy.max_wait_s)
        kv_tokens = _PLENTY if rules.kv_tokens is None else rules.kv_tokens
        self._node = ReplayNode("", kv_capacity_tokens=kv_tokens, max_num_seqs=events.service.slots)
        self._day: GateDay | None = None
        self._tallies = [WaitTally() for _ in TIERS]
        self._offered = np.zeros(len(TIERS), dtype=np.int64)
        self._lost, self._within = np.zeros_like(self._offered), np.zeros_like(self._offered)
        self._refused = np.zeros((len(TIERS), len(_OUTCOMES)), dtype=np.int64)
        self._refused_by_bin = np.zeros(events.rates_rps.size)
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
            self._day = self._begin(self._days_done)
        self._day.advance(SLICE_REQUESTS)
        if self._day.is_done:
            self._fold(self._day.counts)
            self._days_done += 1
            self._day = None

    def _begin(self, day: int) -> GateDay:
        while self.events.days_done <= day:
            self.events.advance()
        first, last = day * DAY_BINS, min((day + 1) * DAY_BINS, self.events.rates_rps.size)
        begin = max(0, first - WARM_UP_BINS)
        asked, counted_from = self._requests(day), 0
        if day > 0:
            before = self._requests(day - 1)
            late = before[0] >= begin * BIN_S
            counted_from = int(np.count_nonzero(late))
            asked = [np.concatenate((old[late], new)) for old, new in zip(before, asked, strict=True)]
        traffic = DayTraffic(asked[0], asked[1], asked[2], asked[3], asked[4], counted_from)
        return GateDay(
            self._policy, self._node, self.events.node_plan, traffic, begin, last, self.events.seed + day
        )

    def _requests(self, day: int) -> list[NDArray[Any]]:
        """Return the requests of a day: the event simulation's, each with a tier and sizes.

        An answer is as long as its time in the engine; prompts vary as much as service times do.
        """
        events, first = self.events, day * DAY_BINS
        at_s, service_s = events.arrivals(first)
        rng = np.random.default_rng([events.seed, first, 1])
        shares = np.array([max(self.rules.tier_shares.get(tier, 0.0), 0.0) for tier in TIERS])
        tiers = rng.choice(len(TIERS), at_s.size, p=shares / shares.sum()).astype(np.int8)
        variance = math.log1p(events.service.squared_cv)
        prompts = events.node.tokens_in * np.exp(
            math.sqrt(variance) * rng.standard_normal(at_s.size) - variance / 2
        )
        mean_s = events.service.slots / events.node.service_rate
        outputs = events.node.tokens_out * service_s / mean_s
        return [at_s, service_s, tiers, _tokens(prompts, 0), _tokens(outputs, 1)]

    def _fold(self, counts: DayCounts) -> None:
        for place, tally in enumerate(self._tallies):
            waits_s = np.array(counts.waits_s[place], dtype=np.float32)
            tally.add(waits_s)
            self._within[place] += np.count_nonzero(waits_s <= self.events.slo_wait_s)
            for outcome, number in counts.refused[place].items():
                self._refused[place, _OUTCOMES.index(outcome)] += number
        self._offered += counts.offered
        self._lost += counts.lost
        bins = (np.array(counts.refused_at_s) // BIN_S).astype(np.int64)
        np.add.at(self._refused_by_bin, bins, 1)

    def result(self) -> MonthResult:
        """Return what the days done cost, refused and made wait. InvalidInput before the first."""
        if self._days_done == 0:
            raise InvalidInput("no day is simulated yet", hint="Call advance() first")
        done = min(self._days_done * DAY_BINS, self.events.rates_rps.size)
        counts = np.sum([tally.counts for tally in self._tallies], axis=0)
        all_waits = WaitTally(counts, max(tally.longest_s for tally in self._tallies))
        lost, refused = float(self._lost.sum()), float(self._refused.sum())
        totals = Totals(
            offered=float(self._offered.sum()),
            refused=refused,
            served=all_waits.total - lost,
            lost=lost,
            within_slo=float(self._within.sum()) - lost,
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
        return tuple(self._tier(place) for place in range(len(TIERS)) if self._offered[place])

    def _tier(self, place: int) -> TierMonth:
        tally, offered = self._tallies[place], int(self._offered[place])
        p50, p95, p99 = tally.quantiles(_SHARES[:3])
        by = Counter({_OUTCOMES[n]: int(v) for n, v in enumerate(self._refused[place]) if v})
        within = int(self._within[place] - self._lost[place])
        lost = int(self._lost[place])
        return TierMonth(TIERS[place], offered, by.total(), lost, by, p50, p95, p99, within / offered)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all that the days done left behind; the day under way is done again."""
        found = {f"events_{name}": values for name, values in self.events.state().items()}
        for place, tally in enumerate(self._tallies):
            found[f"wait_keys_{place}"], found[f"wait_counts_{place}"] = tally.sparse()
        longest = np.array([tally.longest_s for tally in self._tallies])
        return found | {
            "days": np.array([self._days_done]),
            "longest_s": longest,
            "counts": np.concatenate((self._offered, self._lost, self._within, self._refused.ravel())),
            "refused_by_bin": self._refused_by_bin,
        }

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on from a `state` of the same inputs. After InvalidInput (it does not fit) begin anew."""
        misfit = InvalidInput("the snapshot does not fit", hint="Start the simulation anew")
        now = self.state()
        if set(state) != set(now) or any(state[name].dtype != now[name].dtype for name in now):
            raise misfit
        fixed = ("days", "longest_s", "counts", "refused_by_bin")
        if any(state[name].shape != now[name].shape for name in fixed):
            raise misfit
        days = int(state["days"][0])
        if not 0 <= days <= self.days or state["counts"].min() < 0:
            raise misfit
        tallies = [
            restored(
                state[f"wait_keys_{place}"], state[f"wait_counts_{place}"], float(state["longest_s"][place])
            )
            for place in range(len(TIERS))
        ]
        prefix = "events_"
        self.events.restore(
            {name.removeprefix(prefix): state[name] for name in state if name.startswith(prefix)}
        )
        tiers = len(TIERS)
        self._offered, self._lost, self._within = state["counts"][: 3 * tiers].reshape(3, tiers).copy()
        self._refused = state["counts"][3 * tiers :].reshape(tiers, len(_OUTCOMES)).copy()
        self._refused_by_bin = state["refused_by_bin"].copy()
        self._tallies, self._days_done, self._day = tallies, days, None


def _tokens(values: NDArray[np.float64], least: int) -> NDArray[np.int64]:
    return np.maximum(np.rint(values), least).astype(np.int64)


def explained(run: GateRun, events: MonthResult) -> list[str]:
    """Return in sentences what the gate does that one queue before the same nodes does not."""
    gate = run.result()
    points = 100 * (gate.refused_share - events.refused_share)
    lines = [
        f"The gate refuses {points:+.2f} points of the requests against one queue before the same slots, "
        "with the same requests, service times and nodes."
    ]
    tiers = run.tiers()
    refused = sum((Counter(one.refused_by) for one in tiers), Counter[Outcome]())
    early = refused[Outcome.REJECTED_TOO_LATE]
    if early:
        lines.append(
            f"{early / refused.total():.0%} of what it refuses is refused at the door: it expects too long "
            "a wait, instead of letting them wait for nothing. It expects from what drained lately."
        )
    if len(tiers) > 1 and refused:
        shares = ", ".join(f"{one.tier.value} {one.refused_share:.2%}" for one in tiers)
        weights = "/".join(str(run.rules.tier_weights[one.tier]) for one in tiers)
        lines.append(
            f"It divides what the nodes serve by the tiers' weights ({weights}): refused {shares}."
        )
    if run.rules.kv_tokens is not None:
        lines.append(
            f"A node takes what fits into its {run.rules.kv_tokens:,} KV tokens by the prompt and a high "
            "quantile of earlier answers; one queue counts slots only."
        )
    longest = run.events.strategy.max_wait_s
    if longest is None or not LEAST_WAIT_S <= longest <= MOST_WAIT_S:
        said = "no bound" if longest is None else f"{longest:g} s"
        lines.append(
            f"The longest wait asked for is {said}; a policy allows {LEAST_WAIT_S:g} to {MOST_WAIT_S:g} s."
        )
    return lines
