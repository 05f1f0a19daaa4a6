"""The signals of a round beside balance: bursts, KV, hot nodes, shares, longest waits, repetitions.

Unix seconds; values in the units of `fleet.flow_signals`. Keeps minutes of history per engine, tenant and
subject, bounded by what is registered. Prevents: an alarm on one round's count, and a signal of a node
that takes no work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from control.assess import Assessment
from control.flow_slices import CAPACITY_REFUSALS, RoundSlices, Subject
from control.freshness import Freshness
from control.repeat_signals import RepeatWatch, Use, added, mean_tokens
from control.rounds import Round
from fleet.bursts import BASELINE_S, BURST_S, GUARD_S, Counted, burst
from fleet.fairness import Fairness, TenantUse, fairness, longest_wait
from fleet.flow_signals import FlowRule, FlowSignal
from fleet.histograms import merge
from fleet.kv_forecast import HISTORY_S, KvForecast, KvPoint, kv_forecast
from fleet.outcomes import TIERS, Tier
from fleet.percentages import percent
from fleet.policy import Policy
from fleet.readings import Histogram
from fleet.skew import skew

SHARE_S = 300.0  # shares of tenants are taken over this long
WAIT_S = 60.0
_COUNTED_KEPT = 4_000


@dataclass(slots=True)
class SignalBook:
    """The history behind the signals. Owned by the thread that judges rounds."""

    counted: dict[Subject, deque[Counted]] = field(default_factory=dict[Subject, deque[Counted]])
    _kv: dict[tuple[str, str], deque[KvPoint]] = field(
        default_factory=dict[tuple[str, str], deque[KvPoint]]
    )
    _uses: dict[tuple[str, str], deque[Use]] = field(default_factory=dict[tuple[str, str], deque[Use]])
    _repeats: RepeatWatch = field(default_factory=RepeatWatch)
    _waits: deque[tuple[float, dict[str, Histogram]]] = field(
        default_factory=deque[tuple[float, dict[str, Histogram]]]
    )
    _timeouts: dict[Tier, list[tuple[float, float]]] = field(
        default_factory=dict[Tier, list[tuple[float, float]]]
    )  # of each tier, newest last: when it was last in force, and how long who came then may wait

    def take(
        self, round_: Round, assessment: Assessment, slices: RoundSlices, policy: Policy | None
    ) -> list[FlowSignal]:
        """Add a round and return its signals."""
        at_s = round_.at.timestamp()
        self._count(at_s, slices)
        self._take_kv(round_, at_s)
        self._take_uses(round_, at_s)
        found = self._bursts(at_s, round_.period_s)
        working = {s.node.name: s for s in assessment.nodes if s.node.takes_work}
        fresh = {name for name, state in working.items() if state.freshness is Freshness.FRESH}
        found += self._kv_signals(working, fresh)
        found += _hot_nodes(assessment, fresh)
        found += self._tier_signals(round_, at_s, policy)
        is_heard = all(result.flows is not None for result in round_.gateways)
        found += self._repeats.signals(at_s, self._uses, is_heard=is_heard)
        return found

    def remember(self, subject: Subject, counted: Counted) -> None:
        """Take a count of an earlier process as baseline."""
        self.counted.setdefault(subject, deque[Counted](maxlen=_COUNTED_KEPT)).append(counted)

    # ---- bursts ------------------------------------------------------------------------------------------

    def _count(self, at_s: float, slices: RoundSlices) -> None:
        for subject, (arrivals, covered_s) in slices.offered.items():
            kept = self.counted.setdefault(subject, deque[Counted](maxlen=_COUNTED_KEPT))
            kept.append(Counted(at_s, arrivals, covered_s))
        horizon_s = at_s - BASELINE_S - BURST_S - GUARD_S - 120.0
        for subject in list(self.counted):
            kept = self.counted[subject]
            while kept and kept[0].at_s <= horizon_s:
                kept.popleft()
            if not kept:
                del self.counted[subject]

    def _bursts(self, at_s: float, period_s: float) -> list[FlowSignal]:
        found: list[FlowSignal] = []
        for (scope, name), kept in self.counted.items():
            seen = burst(kept, at_s, period_s=period_s)
            who, detail = _who(scope, name), dict[str, object]()
            if seen is None:
                words = f"{who}: arrivals have no baseline yet"
            else:
                words = (
                    f"{who}: {seen.rate:.3g} req/s over 90 s, {seen.ratio:.1f} times the usual "
                    f"{seen.baseline:.3g} req/s"
                )
                detail |= {"rate": seen.rate, "baseline": seen.baseline, "minutes": seen.baseline_minutes}
                detail["by"] = self._largest(at_s) if scope == "fleet" else None
            found.append(
                FlowSignal(FlowRule.BURST, scope, name, None if seen is None else seen.ratio, words, detail)
            )
        return found

    def _largest(self, at_s: float) -> str | None:
        """Return "tenant/tier" with the most requests of the last 90 seconds."""
        sums = {
            key: sum(use.offered for use in uses if use.at_s > at_s - BURST_S)
            for key, uses in self._uses.items()
        }
        key = max(sums, key=lambda one: sums[one], default=None)
        return None if key is None or not sums[key] else "/".join(key)

    # ---- nodes -------------------------------------------------------------------------------------------

    def _take_kv(self, round_: Round, at_s: float) -> None:
        for result in round_.nodes:
            for sample in result.samples:
                w = sample.window
                if w.kv_used_ratio is None:
                    continue
                points = self._kv.setdefault((result.node, sample.engine), deque[KvPoint]())
                points.append(
                    KvPoint(
                        at_s, w.kv_used_ratio, w.running, w.waiting, w.preemptions, w.kv_capacity_tokens
                    )
                )
        for key in list(self._kv):
            points = self._kv[key]
            while points and points[0].at_s <= at_s - HISTORY_S:
                points.popleft()
            if not points:
                del self._kv[key]

    def _kv_signals(self, working: Iterable[str], fresh: set[str]) -> list[FlowSignal]:
        of_node: dict[str, list[KvForecast]] = {}
        for (node, _), points in self._kv.items():
            if node in fresh and (forecast := kv_forecast(list(points))) is not None:
                of_node.setdefault(node, []).append(forecast)
        found: list[FlowSignal] = []
        for node in working:
            forecasts = of_node.get(node, [])
            worst = max(forecasts, key=lambda f: (f.forecast_ratio or 0.0, f.used_ratio), default=None)
            value = None if worst is None else worst.forecast_ratio
            found.append(
                FlowSignal(FlowRule.KV_EXHAUSTION, "node", node, value, _kv_words(node, worst), _kv(worst))
            )
        return found

    # ---- tiers -------------------------------------------------------------------------------------------

    def _take_uses(self, round_: Round, at_s: float) -> None:
        uses: dict[tuple[str, str], Use] = {}
        waits: dict[str, list[Histogram]] = {}
        for result in round_.gateways:
            for flow in result.flows or ():
                key = (flow.tenant, flow.tier)
                shed = sum(flow.outcomes.get(o.value, 0) for o in CAPACITY_REFUSALS)
                tokens = (flow.prompt_tokens or 0) + (flow.output_tokens or 0)
                one = Use(
                    at_s,
                    flow.offered or 0,
                    flow.repeated,
                    flow.dispatched or 0,
                    shed,
                    tokens,
                    flow.queued_requests or 0,
                )
                uses[key] = added(uses[key], one) if key in uses else one
                if (wait := flow.histograms.get("queue_wait_s")) is not None:
                    waits.setdefault(flow.tier, []).append(wait)
        for key, use in uses.items():
            self._uses.setdefault(key, deque[Use]()).append(use)
        for key in list(self._uses):
            kept = self._uses[key]
            while kept and kept[0].at_s <= at_s - SHARE_S:
                kept.popleft()
            if not kept:
                del self._uses[key]
        merged = {tier: found for tier, parts in waits.items() if (found := merge(parts)) is not None}
        self._waits.append((at_s, merged))
        while self._waits[0][0] <= at_s - WAIT_S:
            self._waits.popleft()

    def fairness(self, tier: Tier, policy: Policy | None) -> Fairness | None:
        """Return how a tier was shared over the last five minutes."""
        uses: list[TenantUse] = []
        for (tenant, of_tier), rounds in self._uses.items():
            if of_tier != tier.value:
                continue
            found = None if policy is None else policy.tenant(tenant)
            served = sum(use.tokens for use in rounds)
            dispatched = sum(use.dispatched for use in rounds)
            missed = sum(use.shed for use in rounds) + rounds[-1].queued
            each = served / dispatched if dispatched else 0.0
            waited = sum(1 for use in rounds if use.queued or use.shed)
            uses.append(
                TenantUse(
                    tenant,
                    1.0 if found is None else float(found.weight),
                    served,
                    served + missed * (each or mean_tokens(self._uses, tier)),
                    is_backlogged=missed > 0 and 2 * waited >= len(rounds),
                )
            )
        return fairness(uses)

    def _tier_signals(self, round_: Round, at_s: float, policy: Policy | None) -> list[FlowSignal]:
        found: list[FlowSignal] = []
        for tier in TIERS:
            if not any(of_tier == tier.value for _, of_tier in self._uses):
                continue
            found.append(self._unfairness(tier, policy))
            found.append(self._starvation(round_, at_s, tier, policy))
        return found

    def _unfairness(self, tier: Tier, policy: Policy | None) -> FlowSignal:
        shared = self.fairness(tier, policy)
        if shared is None or shared.worst is None:
            value = None if shared is None else 0.0
            words = f"{tier.words}: " + (
                "too few tokens served to judge shares" if shared is None else "nobody waits for its share"
            )
            return FlowSignal(
                FlowRule.UNFAIRNESS, "tier", tier.value, value, words, {"shares": _shares(shared)}
            )
        worst = shared.worst
        words = (
            f"{tier.words}: {worst.tenant} got {percent(worst.share)} of the tokens where "
            f"{percent(worst.entitled)} was its due"
        )
        detail: dict[str, object] = {"jain": shared.jain, "tenant": worst.tenant, "shares": _shares(shared)}
        return FlowSignal(FlowRule.UNFAIRNESS, "tier", tier.value, worst.shortfall, words, detail)

    def _allowed_s(self, tier: Tier, policy: Policy | None, at_s: float) -> float | None:
        """Return the longest that anybody in the window may have waited.

        Who came before a timeout was lowered keeps the old one.
        """
        if policy is None:
            return None
        timeout_s = policy.tiers[tier].queue_timeout_s
        known = self._timeouts.setdefault(tier, [])
        if known:
            known[-1] = (at_s, known[-1][1])  # in force until now, or still
        if not known or known[-1][1] != timeout_s:
            known.append((at_s, timeout_s))
        known[:] = [one for one in known if sum(one) + WAIT_S >= at_s]
        return max(one for _, one in known)

    def _starvation(self, round_: Round, at_s: float, tier: Tier, policy: Policy | None) -> FlowSignal:
        oldest = [
            result.oldest_wait_s[tier.value]
            for result in round_.gateways
            if tier.value in result.oldest_wait_s
        ]
        waits = merge(found[tier.value] for _, found in self._waits if tier.value in found)
        longest_s = longest_wait(max(oldest, default=None), waits)
        allowed_s = self._allowed_s(tier, policy, at_s)
        if longest_s is None or allowed_s is None:
            return FlowSignal(
                FlowRule.STARVATION, "tier", tier.value, None, f"{tier.words}: longest wait not known"
            )
        words = f"{tier.words}: somebody waited {longest_s:.3g} s of the {allowed_s:g} s allowed"
        detail: dict[str, object] = {"longest_wait_s": longest_s, "allowed_s": allowed_s}
        return FlowSignal(FlowRule.STARVATION, "tier", tier.value, longest_s / allowed_s, words, detail)


def _hot_nodes(assessment: Assessment, fresh: set[str]) -> list[FlowSignal]:
    pools: dict[str, dict[str, float]] = {}
    of_pool = {s.node.name: s.node.pool for s in assessment.nodes}
    for verdict in assessment.verdicts:
        rho = verdict.health.rho.value
        if verdict.scope == "node" and verdict.name in fresh and rho is not None:
            pools.setdefault(of_pool[verdict.name], {})[verdict.name] = rho
    found: list[FlowSignal] = []
    seen: set[str] = set()
    for pool, loads in pools.items():
        uneven = skew(loads)
        for one in () if uneven is None else uneven.nodes:
            seen.add(one.node)
            words = f"{one.node}: rho {one.load:.2f}, the others of {pool} {one.peers:.2f}"
            detail: dict[str, object] = {"rho": one.load, "peers": one.peers, "pool": pool}
            found.append(FlowSignal(FlowRule.HOT_NODE, "node", one.node, one.ratio, words, detail))
    for name, pool in of_pool.items():
        if name in fresh and name not in seen:
            idle = pools.get(pool, {}).get(name) == 0.0
            found.append(
                FlowSignal(
                    FlowRule.HOT_NODE,
                    "node",
                    name,
                    0.0 if idle else None,
                    f"{name}: " + ("nothing to carry" if idle else "nothing to compare with"),
                    {"pool": pool},
                )
            )
    return found


def _kv_words(node: str, found: KvForecast | None) -> str:
    if found is None or found.forecast_ratio is None:
        return f"{node}: KV use has no history yet"
    words = f"{node}: KV {percent(found.used_ratio)} full"
    if found.exhausted_in_s is None:
        words += ", not filling"
    else:
        words += f", exhausted in {found.exhausted_in_s / 60:.1f} min"
    if found.running_growth_per_min is not None and abs(found.running_growth_per_min) >= 0.5:
        words += f", {found.running_growth_per_min:+.0f} running a minute"
    if found.oversubscription is not None and found.oversubscription > 1:
        words += f", wanted {found.oversubscription:.2f} times over"
    if found.preemptions:
        lost = (
            ""
            if found.recomputed_tokens is None
            else f" (about {found.recomputed_tokens:,.0f} tokens again)"
        )
        words += f", {found.preemptions} preemptions{lost}"
    return words


def _kv(found: KvForecast | None) -> dict[str, object]:
    if found is None:
        return {}
    return {
        "used_ratio": found.used_ratio,
        "growth_per_min": found.growth_per_min,
        "exhausted_in_s": found.exhausted_in_s,
        "running_growth_per_min": found.running_growth_per_min,
        "preemptions": found.preemptions,
        "recomputed_tokens": found.recomputed_tokens,
        "oversubscription": found.oversubscription,
    }


def _shares(found: Fairness | None) -> list[dict[str, object]]:
    return [
        {
            "tenant": share.tenant,
            "weight_ratio": share.weight_ratio,
            "share": share.share,
            "entitled": share.entitled,
            "is_backlogged": share.is_backlogged,
        }
        for share in (() if found is None else found.shares[:50])
    ]


def _who(scope: str, name: str) -> str:
    if scope == "tier":
        return f"tier {Tier(name).words}"
    return "the fleet" if scope == "fleet" else f"{scope} {name}"
