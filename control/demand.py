"""Demand as the gateways count it: what is offered, what callers' own limits refuse, by tier.

Counts are requests and tokens per round, times Unix seconds. Owned by the loop that judges rounds. A
gateway that missed rounds counts as it did in the last minutes, never as none, and is named with its
silence: then the sum is no exact number. Prevents: demand measured only at the engines while the gateways
refuse it, refusals by a tenant's own limits taken for a fleet that is full, and the demand of a gateway
that was killed told as the present one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from control.fleet_facts import FleetFacts
from control.gateway_scrape import FlowWindow
from control.scrape import Round
from fleet.health_reading import Offered
from fleet.load import OWN_LIMITS
from fleet.outcomes import Outcome
from fleet.tier_load import TierDemand

FAST_S, SLOW_S = 60.0, 300.0
#: Rounds older than this are forgotten; room for late ones beyond the slow window.
RECENT_S = 360.0
#: Share of a window each gateway must have covered for its counts to stand for demand.
MIN_COVERAGE = 0.8
#: Gateways that count less than this share of what the engines saw are being bypassed.
MIN_GATEWAY_SHARE = 0.9


@dataclass(slots=True)
class _Counts:
    """What one tier of one gateway did in one round."""

    offered: int = 0
    limited: int = 0
    repeated: int = 0
    completed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0

    def add(self, flow: FlowWindow) -> None:
        self.offered += flow.offered or 0
        self.limited += sum(n for name, n in flow.outcomes.items() if name in OWN_LIMITS)
        self.repeated += flow.repeated or 0
        self.completed += flow.outcomes.get(Outcome.COMPLETED.value, 0)
        self.prompt_tokens += flow.prompt_tokens or 0
        self.output_tokens += flow.output_tokens or 0


@dataclass(frozen=True, slots=True)
class _Offer:
    """What one gateway counted in one round."""

    at_s: float
    covered_s: float
    queued: int | None
    tiers: Mapping[str, _Counts] = field(default_factory=dict[str, _Counts])

    def sum_of(self, read: Callable[[_Counts], int], tier: str | None = None) -> int:
        if tier is not None:
            return read(self.tiers[tier]) if tier in self.tiers else 0
        return sum(read(counts) for counts in self.tiers.values())


@dataclass(frozen=True, slots=True)
class _Span:
    """A look-back: how long, and what a gateway must have covered of it."""

    at_s: float
    seconds: float

    def of(self, offers: Iterable[_Offer]) -> list[_Offer]:
        return [o for o in offers if self.at_s - self.seconds < o.at_s <= self.at_s]


class Demand:
    """The last minutes of every gateway."""

    def __init__(self) -> None:
        self._offers: dict[str, deque[_Offer]] = {}

    def take(self, round_: Round, facts: FleetFacts) -> None:
        """Add a round; forget gateways that are gone and rounds that are old."""
        names = {target.name for target in facts.gateways}
        self._offers = {name: offers for name, offers in self._offers.items() if name in names}
        at_s = round_.at.timestamp()
        for result in round_.gateways:
            offers = self._offers.setdefault(result.gateway, deque[_Offer]())
            while offers and offers[0].at_s <= at_s - RECENT_S:
                offers.popleft()
            if result.flows is not None:
                offers.append(_offer(at_s, round_.period_s, result.flows))

    def offered(self, round_: Round, facts: FleetFacts, reached: int) -> Offered | None:
        """Return demand at all gateways, or None unless all of them counted it and none is bypassed.

        `reached` is how many requests the engines saw in the fast window.
        """
        fast, slow = self._spans(round_)
        fast_n, slow_n = (
            self._count(facts, fast, lambda c: c.offered),
            self._count(facts, slow, lambda c: c.offered),
        )
        if fast_n is None or slow_n is None:
            return None
        sent = fast_n[0] / fast_n[1] * fast.seconds  # what was counted may span minutes
        if sent < MIN_GATEWAY_SHARE * reached - 3.0 * reached**0.5:
            return None
        silent = self._silent(round_, facts)
        queued = [offers[-1].queued for offers in self._offers.values() if offers]
        waiting = [n for n in queued if n is not None]
        limited = [self._count(facts, span, lambda c: c.limited) or (0, 0.0) for span in (fast, slow)]
        repeated = [self._count(facts, span, lambda c: c.repeated) or (0, 0.0) for span in (fast, slow)]
        return Offered(
            *fast_n,
            *slow_n,
            waiting=sum(waiting) if waiting else None,
            fast_limited=min(limited[0][0], fast_n[0]),
            slow_limited=min(limited[1][0], slow_n[0]),
            fast_repeated=min(repeated[0][0], fast_n[0]),
            slow_repeated=min(repeated[1][0], slow_n[0]),
            silent=silent,
            heard_rate=self._heard_rate(fast, facts, {name for name, _ in silent}) if silent else None,
        )

    def _silent(self, round_: Round, facts: FleetFacts) -> tuple[tuple[str, float], ...]:
        """Return the gateways that said nothing this round, with the seconds since they last did."""
        at_s = round_.at.timestamp()
        heard_at = {name: offers[-1].at_s for name, offers in self._offers.items() if offers}
        ages = ((target.name, at_s - heard_at.get(target.name, at_s)) for target in facts.gateways)
        return tuple((name, age_s) for name, age_s in ages if age_s > 0)

    def _heard_rate(self, fast: _Span, facts: FleetFacts, silent: set[str]) -> float:
        """Return the competing requests/s that gateways told of in the fast window, all of it counted."""
        offered = limited = repeated = 0.0
        for target in facts.gateways:
            offers = fast.of(self._offers.get(target.name, ()))
            covered_s = sum(o.covered_s for o in offers)
            seconds = max(covered_s, fast.seconds) if target.name in silent else covered_s
            if seconds > 0:
                offered += sum(o.sum_of(lambda c: c.offered) for o in offers) / seconds
                limited += sum(o.sum_of(lambda c: c.limited) for o in offers) / seconds
                repeated += sum(o.sum_of(lambda c: c.repeated) for o in offers) / seconds
        return max(0.0, offered - limited - max(0.0, repeated - limited))

    def tiers(self, round_: Round, facts: FleetFacts) -> list[TierDemand]:
        """Return each tier's demand over the fast window, its tokens over the slow; [] where unknown."""
        fast, slow = self._spans(round_)
        names = sorted({tier for offers in self._offers.values() for o in offers for tier in o.tiers})
        found: list[TierDemand] = []
        for name in names:
            offered = self._count(facts, fast, lambda c: c.offered, name)
            limited = self._count(facts, fast, lambda c: c.limited, name)
            repeated = self._count(facts, fast, lambda c: c.repeated, name)
            if offered is None or limited is None or repeated is None:
                return []
            seen = [o for offers in self._offers.values() for o in slow.of(offers)]
            found.append(
                TierDemand(
                    name,
                    arrival_rate=offered[0] / offered[1],
                    limited_rate=min(limited[0], offered[0]) / offered[1],
                    repeated_rate=min(repeated[0], offered[0]) / offered[1],
                    completed=sum(o.sum_of(lambda c: c.completed, name) for o in seen),
                    prompt_tokens=sum(o.sum_of(lambda c: c.prompt_tokens, name) for o in seen),
                    output_tokens=sum(o.sum_of(lambda c: c.output_tokens, name) for o in seen),
                )
            )
        return found

    def _spans(self, round_: Round) -> tuple[_Span, _Span]:
        at_s, period_s = round_.at.timestamp(), round_.period_s
        return _Span(at_s, max(FAST_S, 2 * period_s)), _Span(at_s, max(SLOW_S, 4 * period_s))

    def _count(
        self, facts: FleetFacts, span: _Span, read: Callable[[_Counts], int], tier: str | None = None
    ) -> tuple[int, float] | None:
        """Return (requests, covered seconds) of all gateways together over `span`.

        A gateway that missed some rounds counts with its rate of the last five minutes: without it, demand
        would fall to what the engines let in, just when refusals are many. None where even that is thin.
        """
        if not facts.gateways:
            return None
        rate, covered_s = 0.0, 0.0
        wanted_s = MIN_COVERAGE * min(span.seconds, FAST_S)
        for target in facts.gateways:
            held = self._offers.get(target.name, ())
            offers = span.of(held)
            if sum(o.covered_s for o in offers) < wanted_s:
                offers = list(held)
            covered = sum(o.covered_s for o in offers)
            if covered < wanted_s:
                return None
            rate += sum(o.sum_of(read, tier) for o in offers) / covered
            covered_s = max(covered_s, covered)
        return round(rate * covered_s), covered_s


def _offer(at_s: float, period_s: float, flows: Iterable[FlowWindow]) -> _Offer:
    """Return one gateway's round. An idle gateway's page has no flows yet: it counted nothing."""
    tiers: dict[str, _Counts] = {}
    covered: list[float] = []
    queued: list[int] = []
    for flow in flows:
        tiers.setdefault(flow.tier, _Counts()).add(flow)
        covered.append(flow.covered_s or 0.0)
        if flow.queued_requests is not None:
            queued.append(flow.queued_requests)
    return _Offer(at_s, max(covered, default=period_s), sum(queued) if queued else None, tiers)
