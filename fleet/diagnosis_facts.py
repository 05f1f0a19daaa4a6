"""What an interval of evidence adds up to: per pool, per tenant, for the fleet. The input of every cause.

Rates are per second of covered time, times seconds, sizes tokens. Windows are added first, quantiles taken
last. Prevents: each cause computing its own notion of "waiting", "full" and "slow".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fleet.diagnosis_engine_facts import EngineFacts
from fleet.diagnosis_evidence import Evidence, FlowEvidence, FlowSlice
from fleet.histograms import merge, quantile
from fleet.readings import Histogram


def p(histogram: Histogram | None, q: float) -> float | None:
    """Return the quantile's estimate (the last bound where it is beyond), None when empty."""
    found = None if histogram is None else quantile(histogram, q)
    return None if found is None else found.estimate


def above(histogram: Histogram | None, threshold: float) -> float | None:
    """Return the share of observations surely above `threshold`: in buckets that begin at or past it."""
    if histogram is None or histogram.count <= 0:
        return None
    lower = (0.0, *histogram.edges)
    return (
        sum(n for low, n in zip(lower, histogram.counts, strict=True) if low >= threshold) / histogram.count
    )


def known_sum(values: Iterable[float | None]) -> float | None:
    """Return the sum, None as soon as one part is unknown or there is none."""
    parts = list(values)
    known = [v for v in parts if v is not None]
    return sum(known) if known and len(known) == len(parts) else None


@dataclass(frozen=True)
class FlowFacts:
    """One tenant in one tier over the interval."""

    evidence: FlowEvidence

    @property
    def tenant(self) -> str:
        return self.evidence.tenant

    @property
    def tier(self) -> str:
        return self.evidence.tier

    def total(self, of: Callable[[FlowSlice], int | None]) -> int | None:
        known = [v for s in self.evidence.slices if (v := of(s)) is not None]
        return sum(known) if known else None

    @cached_property
    def tokens(self) -> int | None:
        """Prompt and output tokens used."""
        prompt, output = self.total(lambda s: s.prompt_tokens), self.total(lambda s: s.output_tokens)
        return None if prompt is None and output is None else (prompt or 0) + (output or 0)

    @cached_property
    def ttft(self) -> Histogram | None:
        return merge([s.ttft for s in self.evidence.slices if s.ttft is not None])

    @cached_property
    def queue_wait(self) -> Histogram | None:
        return merge([s.queue_wait for s in self.evidence.slices if s.queue_wait is not None])


@dataclass(frozen=True)
class PoolFacts:
    """The engines of one pool."""

    name: str
    engines: tuple[EngineFacts, ...]

    @cached_property
    def lengths(self) -> Histogram | None:
        """Prompt lengths of finished requests."""
        return self.histogram("prompt_tokens")

    @cached_property
    def _merged(self) -> dict[str, Histogram | None]:
        return {}

    def histogram(self, name: str) -> Histogram | None:
        """Return one histogram of all engines together, None when none exports it."""
        if name not in self._merged:
            self._merged[name] = merge([h for e in self.engines if (h := e.histogram(name)) is not None])
        return self._merged[name]

    def share(self, states: Iterable[bool]) -> float:
        """Return the share of engines of which something holds."""
        return sum(states) / max(1, len(self.engines))


@dataclass(frozen=True)
class Facts:
    """The whole interval, ready to be judged."""

    evidence: Evidence

    @cached_property
    def engines(self) -> tuple[EngineFacts, ...]:
        return tuple(EngineFacts(e) for e in self.evidence.engines)

    @cached_property
    def pools(self) -> tuple[PoolFacts, ...]:
        names = sorted({e.evidence.pool for e in self.engines})
        return tuple(
            PoolFacts(name, tuple(e for e in self.engines if e.evidence.pool == name)) for name in names
        )

    @cached_property
    def flows(self) -> tuple[FlowFacts, ...]:
        return tuple(FlowFacts(f) for f in self.evidence.flows)

    @cached_property
    def offered_rate(self) -> float | None:
        """Demand: what the gateways counted at the door, else what reached the engines."""
        at_engines = known_sum(e.arrival_rate for e in self.engines)
        offered = known_sum(f.total(lambda s: s.offered) for f in self.flows)
        seconds = self.flow_seconds
        at_door = offered / seconds if offered is not None and seconds else None
        if at_door is None or at_engines is None:
            return at_engines if at_door is None else at_door
        return max(at_door, at_engines)

    @cached_property
    def flow_seconds(self) -> float:
        """Time the gateways covered."""
        covered: dict[float, float] = {}
        for flow in self.flows:
            for s in flow.evidence.slices:
                covered[s.ended_at_s] = max(covered.get(s.ended_at_s, 0.0), s.covered_s)
        return sum(covered.values())

    @cached_property
    def service_rate(self) -> float | None:
        """mu of all engines, requests/s; one without an estimate counts as its pool's median."""
        return self._sum_of(lambda e: e.capacity.requests_per_s)

    @cached_property
    def hardware_rate(self) -> float | None:
        return self._sum_of(lambda e: e.hardware_rate)

    @cached_property
    def expected_hardware_rate(self) -> float | None:
        """Like `hardware_rate`, with the slope as it was seen."""
        return self._sum_of(lambda e: e.open_rate(1.0))

    def _sum_of(self, of: Callable[[EngineFacts], float | None]) -> float | None:
        total = 0.0
        for pool in self.pools:
            known = [v for e in pool.engines if (v := of(e))]
            if not known:
                return None
            median = float(np.median(known))
            total += sum((of(e) or median) * self._present(e) for e in pool.engines)
        return total or None

    def _present(self, engine: EngineFacts) -> float:
        """Return the part of the interval an engine was there: less than 1 where its node fell silent."""
        quiet = {node.node for node in self.evidence.quiet}
        longest_s = max(e.seconds for e in self.engines)
        if engine.evidence.node not in quiet or longest_s <= 0:
            return 1.0
        return min(1.0, engine.seconds / longest_s)

    @cached_property
    def rho(self) -> float | None:
        """Demand / capacity over the whole interval."""
        return (
            self.offered_rate / self.service_rate
            if self.offered_rate is not None and self.service_rate
            else None
        )

    @cached_property
    def ttft(self) -> Histogram | None:
        """Time to first token: at the gateways where they measured it, else at the engines."""
        at_engines = merge([h for e in self.engines if (h := e.histogram("ttft_s")) is not None])
        return self._ttft_at_door or at_engines

    @cached_property
    def _ttft_at_door(self) -> Histogram | None:
        at_door = merge([h for f in self.flows if (h := f.ttft) is not None])
        return at_door if at_door is not None and at_door.count else None

    @property
    def ttft_at(self) -> str | None:
        """Where `ttft` was measured, None where nowhere."""
        if self.ttft is None:
            return None
        return "engines" if self._ttft_at_door is None else "gateways"

    @cached_property
    def itl(self) -> Histogram | None:
        return merge([h for e in self.engines if (h := e.histogram("itl_s")) is not None])

    @cached_property
    def refused_share(self) -> float | None:
        offered = known_sum(f.total(lambda s: s.offered) for f in self.flows)
        refused = known_sum(f.total(lambda s: s.refused) for f in self.flows)
        return refused / offered if offered and refused is not None else None

    @cached_property
    def is_slow_to_start(self) -> bool | None:
        """Whether more than the allowed part of requests waits longer than promised for a first token."""
        late = above(self.ttft, self.evidence.goals.ttft_s)
        return None if late is None else late > 1 - self.evidence.goals.attainment_ratio

    @cached_property
    def is_slow_to_stream(self) -> bool | None:
        """Whether tokens follow each other too slowly: on average, or one gap in a hundred."""
        itl, goals = self.itl, self.evidence.goals
        if itl is None or itl.sum is None or not itl.count:
            return None
        late = above(itl, goals.itl_p99_s) or 0.0
        return itl.sum / itl.count > goals.itl_mean_s or late > 0.01

    @cached_property
    def is_bad(self) -> bool | None:
        """Whether users notice: slow to start, slow to stream, or refused."""
        signs = (self.is_slow_to_start, self.is_slow_to_stream)
        refused = self.refused_share
        if any(signs) or (refused or 0.0) > 1 - self.evidence.goals.attainment_ratio:
            return True
        return None if all(sign is None for sign in signs) and refused is None else False
