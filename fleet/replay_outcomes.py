"""What a replay did to each tenant, tier and size class: counts, refusals, waits, latencies.

Times are seconds, shares ratios of *offered* requests. A latency is of completed requests only, so it
stands beside the share that was refused. Prevents: a discipline praised for the latency of whom it let in.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fleet.gate_replay import Arrival, ReplayResult
from fleet.outcomes import SHED, Outcome

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Quantiles:
    """p50, p95 and p99 of some requests; None where there were none."""

    count: int
    p50: float | None
    p95: float | None
    p99: float | None
    mean: float | None


@dataclass(frozen=True, slots=True)
class Objectives:
    """What counts as good. None: not asked."""

    ttft_s: float | None = 0.5
    itl_s: float | None = None  # mean gap between two tokens of one request
    e2e_s: float | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """One tenant, tier, size class, or all."""

    name: str
    offered: int
    completed: int
    refused: Mapping[Outcome, int]  # by reason; shed at the door or out of the queue
    queued_s: Quantiles  # of those that started
    ttft_s: Quantiles
    itl_s: Quantiles  # mean gap of each request
    e2e_s: Quantiles
    good: int  # completed within every objective
    output_tokens: int  # of completed requests

    @property
    def refused_share(self) -> float:
        """Return the part of offered requests that was refused."""
        return sum(self.refused.values()) / self.offered if self.offered else 0.0

    @property
    def good_share(self) -> float:
        """Return the part of offered requests that was completed within the objectives."""
        return self.good / self.offered if self.offered else 0.0


def quantiles(values: Sequence[float]) -> Quantiles:
    """Return the least value that half, 95 % and 99 % of `values` do not exceed; NaN are left out."""
    known = sorted(value for value in values if not math.isnan(value))
    if not known:
        return Quantiles(0, None, None, None, None)

    def at(share: float) -> float:
        return known[max(0, math.ceil(share * len(known)) - 1)]

    return Quantiles(len(known), at(0.5), at(0.95), at(0.99), sum(known) / len(known))


def by_tenant(result: ReplayResult, objectives: Objectives | None = None) -> dict[str, Group]:
    """Return each tenant's group, by name."""
    return groups(result, lambda place: result.arrivals[place].request.tenant, objectives)


def by_tier(result: ReplayResult, objectives: Objectives | None = None) -> dict[str, Group]:
    """Return each tier's group, as asked for; "unknown" for tenants without a policy."""
    return groups(result, lambda place: result.tiers[place] or "unknown", objectives)


def by_tenant_and_tier(
    result: ReplayResult, objectives: Objectives | None = None
) -> dict[tuple[str, str], Group]:
    """Return the group of each tenant in each tier."""
    return groups(
        result,
        lambda place: (result.arrivals[place].request.tenant, result.tiers[place] or "unknown"),
        objectives,
    )


def overall(result: ReplayResult, objectives: Objectives | None = None) -> Group:
    """Return all requests as one group."""
    found = groups(result, lambda _: "all", objectives)
    return found.get("all") or _group("all", result, [], Objectives())


def groups(
    result: ReplayResult, key: Callable[[int], Key], objectives: Objectives | None = None
) -> dict[Key, Group]:
    """Return the group of every key; `key` is asked with the place of each offered arrival."""
    places: defaultdict[Key, list[int]] = defaultdict(list)
    for place in range(result.done):
        places[key(place)].append(place)
    asked = objectives or Objectives()
    return {
        one: _group(str(one), result, found, asked) for one, found in sorted(places.items(), key=_first)
    }


def _first(item: tuple[object, list[int]]) -> str:
    return str(item[0])


def itl_of(arrival: Arrival, first_s: float, e2e_s: float) -> float:
    """Return the mean gap between tokens; NaN for an answer of one token."""
    return (e2e_s - first_s) / (arrival.output_tokens - 1) if arrival.output_tokens > 1 else math.nan


def _group(name: str, result: ReplayResult, places: Sequence[int], asked: Objectives) -> Group:
    outcomes = Counter(result.outcomes[place] for place in places)
    done = [place for place in places if result.outcomes[place] is Outcome.COMPLETED]
    ttft = [result.first_s[place] for place in done]
    e2e = [result.e2e_s[place] for place in done]
    itl = [itl_of(result.arrivals[p], f, e) for p, f, e in zip(done, ttft, e2e, strict=True)]
    return Group(
        name=name,
        offered=len(places),
        completed=len(done),
        refused={o: n for o, n in sorted(outcomes.items(), key=_most) if o is not None and o in SHED},
        queued_s=quantiles([result.queued_s[place] for place in places]),
        ttft_s=quantiles(ttft),
        itl_s=quantiles(itl),
        e2e_s=quantiles(e2e),
        good=sum(map(_is_good(asked), ttft, itl, e2e)),
        output_tokens=sum(result.arrivals[place].output_tokens for place in done),
    )


def _most(item: tuple[Outcome | None, int]) -> tuple[int, str]:
    return -item[1], str(item[0])


def _is_good(asked: Objectives) -> Callable[[float, float, float], bool]:
    bounds = (asked.ttft_s, asked.itl_s, asked.e2e_s)

    def is_good(*values: float) -> bool:
        return not any(
            bound is not None and value > bound for bound, value in zip(bounds, values, strict=True)
        )

    return is_good


def weighted_quantile(gaps: Sequence[tuple[float, int]], share: float) -> float | None:
    """Return the gap that `share` of all tokens do not exceed; None without tokens."""
    ordered = sorted(gaps)
    wanted = share * sum(weight for _, weight in ordered)
    passed = 0
    for gap, weight in ordered:
        passed += weight
        if passed >= wanted:
            return gap
    return None
