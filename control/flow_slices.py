"""From a round to slices of flow: what each pool, tier and the fleet did, summed over who reported.

Counts are requests, times seconds. Engines count for their pool while their node takes work and has a
sample; a gateway's queue counts with its own reading before. Prevents: the queue of a gateway that could
not be read taken for a queue that emptied, and a node that joined taken for a burst.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from control.rounds import GatewayResult, Round
from fleet.flow_minutes import FlowSlice, StageCount
from fleet.histograms import merge
from fleet.load import OWN_LIMITS
from fleet.outcomes import SHED, TIERS, Outcome, Tier
from fleet.policy import Policy
from fleet.readings import EngineWindow, Histogram
from fleet.slo import Objective
from fleet.slo_windows import GoodCount, good_count

Subject = tuple[str, str]  # scope, name
FLEET: Subject = ("fleet", "")
_EVICTED = frozenset({Outcome.EVICTED_WAIT, Outcome.EVICTED_DISPLACED})
CAPACITY_REFUSALS = SHED - OWN_LIMITS
_FAILED = frozenset({Outcome.UPSTREAM_ERROR, Outcome.UPSTREAM_TIMEOUT})


@dataclass(frozen=True, slots=True)
class TierCount:
    """What all gateways counted for one tier in one round."""

    offered: int
    queued: int | None
    slice_: FlowSlice


@dataclass(frozen=True, slots=True)
class RoundSlices:
    """A round's slices, and arrivals for bursts."""

    slices: dict[Subject, FlowSlice]
    offered: dict[Subject, tuple[int, float]]  # arrivals at the door, covered seconds
    waiting: dict[Subject, int]


@dataclass(slots=True)
class Slicer:
    """Turns rounds into slices; remembers each gateway's queues to know how they grew."""

    _queued: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])

    def take(
        self, round_: Round, working: Iterable[str], policy: Policy | None, objective: Objective
    ) -> RoundSlices:
        """Return the slices of a round. `working`: nodes that take work."""
        at_s, names = round_.at.timestamp(), set(working)
        windows: dict[str, list[EngineWindow]] = {}
        for result in round_.nodes:
            if result.node in names:
                found = [s.window for s in result.samples if s.covered_s is not None]
                windows.setdefault(result.pool, []).extend(found)
        slices: dict[Subject, FlowSlice] = {
            ("pool", pool): engine_slice(at_s, parts, objective) for pool, parts in windows.items() if parts
        }
        tiers = self._tiers(round_, at_s, policy, objective)
        slices |= {("tier", tier.value): count.slice_ for tier, count in tiers.items()}
        engines = [window for parts in windows.values() for window in parts]
        if engines:
            slices[FLEET] = _fleet(engine_slice(at_s, engines, objective), tiers)
        is_read = bool(tiers) or not round_.gateways
        return RoundSlices(slices, _offered(slices, tiers), _waiting(windows, tiers, is_read=is_read))

    def _tiers(
        self, round_: Round, at_s: float, policy: Policy | None, objective: Objective
    ) -> dict[Tier, TierCount]:
        """Return what every tier did; nothing unless every gateway was read."""
        if not round_.gateways or any(result.flows is None for result in round_.gateways):
            self._queued = {}
            return {}
        before, self._queued = self._queued, _queues(round_.gateways)
        found: dict[Tier, TierCount] = {}
        for tier in TIERS:
            grown = [
                None if key not in before else self._queued[key] - before[key]
                for key in self._queued
                if key[1] == tier.value
            ]
            known = [growth for growth in grown if growth is not None]
            growth = sum(known) if known and len(known) == len(grown) else None
            count = tier_count(round_, at_s, tier, growth, policy, objective)
            if count is not None:
                found[tier] = count
        return found


def _queues(gateways: Sequence[GatewayResult]) -> dict[tuple[str, str], int]:
    """Return the queue of each gateway and tier; a tier not on the page yet has none."""
    queued: dict[tuple[str, str], int] = {}
    for result in gateways:
        for tier in TIERS:
            flows = [flow for flow in result.flows or () if flow.tier == tier.value]
            queued[result.gateway, tier.value] = sum(flow.queued_requests or 0 for flow in flows)
    return queued


def engine_slice(at_s: float, windows: Sequence[EngineWindow], objective: Objective) -> FlowSlice:
    """Return what engines did together; a sum is None where one of them does not say."""
    length_s = sum(w.length_s for w in windows) / len(windows)
    running, waiting = _sum([w.running for w in windows]), _sum([w.waiting for w in windows])
    first, queue = _merged(windows, "ttft_s"), _merged(windows, "queue_wait_s")
    itl = [h.sum for w in windows if (h := w.histograms.get("itl_s")) is not None]
    known = [value for value in itl if value is not None]
    decoding = sum(known) / length_s if known and len(known) == len(windows) else None
    prefilling = None if running is None or decoding is None else max(0.0, running - decoding)
    left = [_left(w) for w in windows]
    return FlowSlice(
        at_s,
        length_s,
        arrivals=_sum([w.arrivals for w in windows]),
        departures=_sum(left),
        inside=None if running is None or waiting is None else float(running + waiting),
        time=_merged(windows, "e2e_s"),
        ttft=first,
        stages={
            "engine_queue": _stage(None if waiting is None else float(waiting), queue),
            "prefill": _stage(prefilling, _merged(windows, "prefill_s")),
            "decode": _stage(decoding, _merged(windows, "decode_s")),
        },
        good=None
        if first is None
        else good_count(objective, first, lost=sum(w.errors or 0 for w in windows)),
    )


def _left(window: EngineWindow) -> int | None:
    if window.completed is None:
        return None
    return window.completed + (window.errors or 0) + (window.aborted or 0)


def _stage(held: float | None, times: Histogram | None) -> StageCount:
    return StageCount(held, None, None) if times is None else StageCount(held, times.count, times.sum)


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _merged(windows: Sequence[EngineWindow], name: str) -> Histogram | None:
    """Return the histogram of all; None when one that finished something does not have it."""
    found = [w.histograms.get(name) for w in windows]
    known = [h for h in found if h is not None]
    if any(h is None and w.completed for h, w in zip(found, windows, strict=True)):
        return None
    return merge(_by_edges(known))


def _by_edges(parts: Sequence[Histogram]) -> list[Histogram]:
    """Return one histogram for each set of bounds: a thousand engines have one or two sets."""
    groups: dict[tuple[float, ...], list[Histogram]] = {}
    for part in parts:
        groups.setdefault(part.edges, []).append(part)
    merged: list[Histogram] = []
    for edges, same in groups.items():
        counts = tuple(map(sum, zip(*(h.counts for h in same), strict=True)))
        sums = [h.sum for h in same if h.sum is not None]
        merged.append(Histogram(edges, counts, sum(sums) if len(sums) == len(same) else None))
    return merged


def tier_count(
    round_: Round,
    at_s: float,
    tier: Tier,
    growth: int | None,
    policy: Policy | None,
    objective: Objective,
) -> TierCount | None:
    """Return a tier's queue at all gateways together; None when no gateway counted a whole round.

    Those who waited in vain count as leaving after the tier's timeout. `growth`: of the queue.
    """
    flows = [f for r in round_.gateways for f in r.flows or () if f.tier == tier.value]
    counted = [f for f in flows if f.covered_s is not None]
    if not counted:
        return None
    outcomes = {o: sum(f.outcomes.get(o.value, 0) for f in counted) for o in Outcome}
    offered = sum(f.offered or 0 for f in counted)
    evicted = sum(outcomes[o] for o in _EVICTED)
    turned_away = sum(outcomes[o] for o in SHED - _EVICTED) + outcomes[Outcome.DRAINING]
    admitted = offered - turned_away
    queued = sum(f.queued_requests or 0 for f in flows)
    waits = merge(_by_edges([h for f in counted if (h := f.histograms.get("queue_wait_s")) is not None]))
    first = merge(_by_edges([h for f in counted if (h := f.histograms.get("ttft_s")) is not None]))
    timeout_s = None if policy is None else policy.tiers[tier].queue_timeout_s
    lost = sum(outcomes[o] for o in CAPACITY_REFUSALS | _FAILED)
    part = FlowSlice(
        at_s,
        sum(f.covered_s or 0.0 for f in counted) / len(counted),
        arrivals=None if growth is None else max(0, admitted),
        departures=None if growth is None else max(0, admitted - growth),
        inside=float(queued),
        time=waits,
        time_extra_s=evicted * timeout_s if timeout_s is not None else 0.0 if not evicted else None,
        unserved=evicted,
        ttft=first,
        stages={"gateway_queue": _queue_stage(float(queued), waits, evicted, timeout_s)},
        good=good_count(objective, first, lost=lost) if first is not None or lost else None,
    )
    return TierCount(offered, queued, part)


def _queue_stage(held: float, waits: Histogram | None, evicted: int, timeout_s: float | None) -> StageCount:
    if evicted and timeout_s is None:
        return StageCount(held, None, None)
    served, waited_s = (0, 0.0) if waits is None else (waits.count, waits.sum)
    if waited_s is None:
        return StageCount(held, None, None)
    return StageCount(held, served + evicted, waited_s + evicted * (timeout_s or 0.0))


def _fleet(engines: FlowSlice, tiers: dict[Tier, TierCount]) -> FlowSlice:
    """Return the fleet: engines, and in front of them the gateways' queues where those are known."""
    queues = [count.slice_ for count in tiers.values()]
    growths = [
        None if q.arrivals is None or q.departures is None else q.arrivals - q.departures for q in queues
    ]
    known = [growth for growth in growths if growth is not None]
    if engines.arrivals is None or len(known) != len(growths):
        arrivals = None
    else:
        arrivals = max(0, engines.arrivals + sum(known))
    waited = [q.time.sum for q in queues if q.time is not None] + [q.time_extra_s for q in queues]
    waited_s = [seconds for seconds in waited if seconds is not None]
    goods = [q.good for q in queues if q.good is not None]
    good = sum(goods, GoodCount()) if goods else engines.good
    return FlowSlice(
        engines.at_s,
        engines.length_s,
        arrivals=arrivals,
        departures=engines.departures,
        inside=None if engines.inside is None else engines.inside + sum(q.inside or 0.0 for q in queues),
        time=engines.time,
        # those who waited in vain held places too, and are no departures of the fleet
        time_extra_s=sum(waited_s) if len(waited_s) == len(waited) else None,
        ttft=engines.ttft,
        stages=_queue_of(queues) | engines.stages,
        good=good,
    )


def _queue_of(queues: Sequence[FlowSlice]) -> dict[str, StageCount]:
    parts = [q.stages["gateway_queue"] for q in queues]
    if not parts:
        return {}
    sums = [p.time_sum_s for p in parts if p.time_sum_s is not None]
    whole = len(sums) == len(parts)
    return {
        "gateway_queue": StageCount(
            sum(p.held or 0.0 for p in parts),
            sum(p.left or 0 for p in parts) if whole else None,
            sum(sums) if whole else None,
        )
    }


def _offered(
    slices: dict[Subject, FlowSlice], tiers: dict[Tier, TierCount]
) -> dict[Subject, tuple[int, float]]:
    """Return arrivals at the door with the seconds they were counted in."""
    found = {
        subject: (part.arrivals, part.length_s)
        for subject, part in slices.items()
        if subject[0] == "pool" and part.arrivals is not None
    }
    for tier, count in tiers.items():
        found["tier", tier.value] = (count.offered, count.slice_.length_s)
    if tiers:
        lengths = [count.slice_.length_s for count in tiers.values()]
        found[FLEET] = (sum(count.offered for count in tiers.values()), max(lengths))
    elif FLEET in slices and (arrivals := slices[FLEET].arrivals) is not None:
        found[FLEET] = (arrivals, slices[FLEET].length_s)
    return found


def _waiting(
    windows: dict[str, list[EngineWindow]], tiers: dict[Tier, TierCount], *, is_read: bool
) -> dict[Subject, int]:
    """Return who waits now: in the engines of a pool, in a tier's queues, anywhere.

    `is_read`: the gateways' queues are known; else who waits anywhere is not.
    """
    found: dict[Subject, int] = {}
    total: int | None = sum(count.queued or 0 for count in tiers.values()) if is_read else None
    for pool, parts in windows.items():
        waiting = _sum([w.waiting for w in parts])
        if waiting is not None:
            found["pool", pool] = waiting
        total = None if total is None or (parts and waiting is None) else total + (waiting or 0)
    for tier, count in tiers.items():
        if count.queued is not None:
            found["tier", tier.value] = count.queued
    if total is not None and windows:
        found[FLEET] = total
    return found
