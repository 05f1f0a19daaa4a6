"""The strategies worth comparing on a traffic, sized from it, and what can be said against admission.

Rates are requests/s, durations seconds, money US dollars. Sized by the traffic's own percentiles: nothing
here knows a guide's five nodes. Prevents: a comparison that leaves out the real autoscaler, and advice
that forgets when admission is the wrong answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal

from fleet.comparison import Candidate, Comparison, Outcome
from fleet.cost import FLAT_PEAK_TO_MEAN, TARGET_RHO
from fleet.errors import InvalidInput
from fleet.percentages import percent
from fleet.strategies import MAX_NODES, Autoscaler, BurstPool, Mode, Strategy
from fleet.traffic_shape import BurstDurations, TrafficShape

MAX_WAIT_S = 1.5
COLD_START_S = 240.0
WARM_S = 180.0
STABILISATION_S = 300.0
SPOT_NODES = 2
#: From this on, a burst lasts long enough for an autoscaler to meet it.
COLD_STARTS_A_BURST = 3.0


def nodes_for(rate_rps: float, service_rate: float) -> int:
    """Return the nodes that serve a rate; a hundredth over a whole number is not another node."""
    return max(1, math.ceil(rate_rps / service_rate - 0.01))


def catalogue(
    shape: TrafficShape,
    service_rate: float,
    spot_usd_per_hour: Decimal,
    *,
    cold_start_s: float = COLD_START_S,
    max_wait_s: float = MAX_WAIT_S,
) -> list[Candidate]:
    """Return six strategies sized for a traffic: nodes for the peak, for its 90th percentile, and scaled.

    Autoscalers go from 60 % of the percentile's nodes to what the peak needs at rho 0.85. Raises
    InvalidInput if that is more than a strategy may have.
    """
    peak, usual = nodes_for(shape.peak_rps, service_rate), nodes_for(shape.p90_rps, service_rate)
    least = max(1, math.floor(0.6 * usual))
    most = max(peak, nodes_for(shape.peak_rps / TARGET_RHO, service_rate))
    if most > MAX_NODES:
        raise InvalidInput(
            f"the peak of {shape.peak_rps:,.6g} requests/s needs {most:,} nodes of {service_rate:g}",
            field="/mu",
            hint=f"At most {MAX_NODES:,}: check mu and the mean rate, or give the strategies",
        )

    def scaled(mode: Mode) -> Autoscaler:
        return Autoscaler(mode, TARGET_RHO, least, most, STABILISATION_S, cold_start_s)

    pool = BurstPool(SPOT_NODES, spot_usd_per_hour, WARM_S, 0.9, 0.75, STABILISATION_S)
    return [
        Candidate("Static peak", Strategy(peak, max_wait_s)),
        Candidate("Static + admission", Strategy(usual, max_wait_s)),
        Candidate("Static + admission + spot", Strategy(usual, max_wait_s, burst=pool)),
        Candidate("Reactive, no admission", Strategy(usual, None, scaled(Mode.REACTIVE))),
        Candidate("Reactive + admission", Strategy(usual, max_wait_s, scaled(Mode.REACTIVE))),
        Candidate("Predictive + admission", Strategy(usual, max_wait_s, scaled(Mode.PREDICTIVE))),
    ]


def uses_admission_alone(found: Outcome) -> bool:
    """Say whether it refuses what is too much and adds no nodes for it."""
    strategy = found.candidate.strategy
    return strategy.max_wait_s is not None and strategy.autoscaler is None and strategy.burst is None


def against_admission(
    compared: Comparison,
    shape: TrafficShape,
    bursts: BurstDurations,
    *,
    refusal_usd: float,
    refusal_acceptable: bool,
    cold_start_s: float = COLD_START_S,
) -> list[str]:
    """Return when admission, or admission alone, is the wrong answer here; empty if nothing speaks so."""
    found: list[str] = []
    if not refusal_acceptable:
        found.append(_no_refusals(compared))
    if shape.peak_to_mean < FLAT_PEAK_TO_MEAN:
        found.append(
            f"Admission is the wrong answer: peak / mean is {shape.peak_to_mean:.2f}. There is no peak to "
            "shed; buy what the mean needs."
        )
    refusing = [o for o in compared.outcomes if uses_admission_alone(o) and o.stand.missed > 0]
    for one in refusing:
        better = _better(one, compared.outcomes, refusal_usd)
        if better is not None:
            found.append(
                f"{one.name} alone is the wrong answer at {refusal_usd:g} USD a refusal: {better.name} "
                f"costs {better.cost_usd:,.0f} USD and refuses "
                f"{percent(better.month.refused_share, 2)}, against "
                f"{one.cost_usd:,.0f} and {percent(one.month.refused_share, 2)}."
            )
    if refusing and bursts.median_s is not None:
        found.append(_by_duration(bursts, bursts.median_s, cold_start_s))
    return found


def _no_refusals(compared: Comparison) -> str:
    spotless = [o for o in compared.outcomes if o.stand.missed == 0]
    start = "Admission is the wrong answer: refusals are not acceptable, and it works by refusing."
    if not spotless:
        return f"{start} None of these strategies serves everybody in time; provision more."
    least = min(spotless, key=lambda o: o.cost_usd)
    return f"{start} {least.name} serves everybody in time for {least.cost_usd:,.0f} USD."


def _better(one: Outcome, others: Sequence[Outcome], refusal_usd: float) -> Outcome | None:
    """Return the cheapest that adds nodes instead, if it is cheaper than `one` with its refusals."""
    rivals = [o for o in others if not uses_admission_alone(o)]
    best = min(rivals, key=lambda o: o.stand.total_usd(refusal_usd), default=None)
    is_better = best is not None and best.stand.total_usd(refusal_usd) < one.stand.total_usd(refusal_usd)
    return best if is_better else None


def _by_duration(bursts: BurstDurations, median_s: float, cold_start_s: float) -> str:
    ratio = median_s / cold_start_s if cold_start_s > 0 else math.inf
    which = "Bursts as given" if bursts.is_given else f"Bursts above {bursts.capacity_rps:.3g} requests/s"
    text = f"{which} last {duration(median_s)} (median), a node starts in {duration(cold_start_s)}: "
    if ratio >= COLD_STARTS_A_BURST:
        return text + "long enough for an autoscaler, so admission alone refuses what nodes would serve."
    if ratio <= 1:
        return (
            text + "an autoscaler comes too late; admission with head-room, or a schedule, is the answer."
        )
    return text + "an autoscaler meets a part of them; compare the refusals."


def duration(seconds: float) -> str:
    """Return a length of time in the unit people would say."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
