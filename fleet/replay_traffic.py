"""Made traffic for replays and studies: kinds of requests of several tenants, with bursts.

Rates are requests/s, times seconds, lengths tokens (lognormal). Same generator state, same traffic.
Prevents: disciplines compared on equal lengths and even arrivals, where all of them look alike.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from fleet.errors import InvalidInput
from fleet.gate_replay import Arrival
from fleet.offers import Request
from fleet.outcomes import Tier

MODEL = "simulated"
#: Clients round their max_tokens up to a multiple of this; the answer is shorter.
MAX_TOKENS_STEP = 256
MAX_REQUESTS = 1_000_000


@dataclass(frozen=True, slots=True)
class RequestKind:
    """One sort of request: who sends it, how long it is."""

    name: str  # the size class it is shown as
    share: float  # of the requests; normalised over the kinds
    tier: Tier
    tenants: tuple[tuple[str, float], ...]  # name, share inside the kind
    prompt_tokens: float  # mean
    output_tokens: float  # mean
    prompt_cv: float = 1.0
    output_cv: float = 0.8
    most_prompt_tokens: int = 120_000
    most_output_tokens: int = 2_000


#: Chats of two tenants, one of them the loud one; jobs of two more; one request in 140 is a long context.
MIXED = (
    RequestKind("short", 0.85, Tier.INTERACTIVE, (("acme", 0.75), ("globex", 0.25)), 300, 150),
    RequestKind("medium", 0.143, Tier.BATCH, (("initech", 0.6), ("umbrella", 0.4)), 900, 300),
    RequestKind("long", 0.007, Tier.BEST_EFFORT, (("hooli", 1.0),), 50_000, 400, 0.4, 0.5),
)


@dataclass(frozen=True, slots=True)
class Bursts:
    """Every `every_s` seconds the rate is `factor` times the base for `length_s` seconds."""

    every_s: float = 240.0
    length_s: float = 40.0
    factor: float = 2.5

    @classmethod
    def within(cls, duration_s: float, factor: float) -> Bursts:
        """Return bursts of which at least one lies whole within `duration_s`."""
        every_s = min(240.0, duration_s)
        return cls(every_s, every_s / 6, factor)

    def base_of(self, mean_rate: float) -> float:
        """Return the rate outside bursts that gives `mean_rate` over all."""
        part = self.length_s / self.every_s
        return mean_rate / (1 - part + part * self.factor)

    def is_on(self, at_s: float) -> bool:
        """Say whether a burst is on; one begins half a period in."""
        return (at_s + self.every_s / 2) % self.every_s < self.length_s


def lognormal(rng: random.Random, mean: float, cv: float, most: int) -> int:
    """Return a length in 1..`most` of a lognormal distribution; constant when `cv` is 0."""
    if cv <= 0:
        return max(1, min(most, round(mean)))
    variance = math.log1p(cv * cv)
    return max(1, min(most, round(rng.lognormvariate(math.log(mean) - variance / 2, math.sqrt(variance)))))


def mixed_traffic(
    rng: random.Random,
    rate: float,
    duration_s: float,
    kinds: Sequence[RequestKind] = MIXED,
    bursts: Bursts | None = None,
) -> list[Arrival]:
    """Return Poisson arrivals of mean `rate` over `duration_s`, faster in bursts.

    The endpoint of a request names its kind: lengths are learned by endpoint. Raises InvalidInput for
    nothing to send, or over a million requests.
    """
    if rate <= 0 or duration_s <= 0 or not kinds or rate * duration_s > MAX_REQUESTS:
        raise InvalidInput(
            f"{rate:g} requests/s for {duration_s:g} s of {len(kinds)} kinds",
            field="rate",
            hint=f"Both above 0, at most {MAX_REQUESTS:,} requests",
        )
    base = rate if bursts is None else bursts.base_of(rate)
    peak = base if bursts is None else base * max(1.0, bursts.factor)
    shares = [kind.share for kind in kinds]
    found: list[Arrival] = []
    at_s = 0.0
    while True:
        at_s += rng.expovariate(peak)
        if at_s >= duration_s:
            return found
        if bursts is not None and rng.random() * peak >= base * (
            bursts.factor if bursts.is_on(at_s) else 1.0
        ):
            continue
        found.append(_arrival(rng, rng.choices(kinds, shares)[0], at_s, len(found)))


def _arrival(rng: random.Random, kind: RequestKind, at_s: float, number: int) -> Arrival:
    names, parts = zip(*kind.tenants, strict=True)
    tenant = rng.choices(names, parts)[0]
    prompt = lognormal(rng, kind.prompt_tokens, kind.prompt_cv, kind.most_prompt_tokens)
    output = lognormal(rng, kind.output_tokens, kind.output_cv, kind.most_output_tokens)
    most = -(-output // MAX_TOKENS_STEP) * MAX_TOKENS_STEP
    return Arrival(at_s, Request(f"r{number}", tenant, kind.tier, MODEL, kind.name, prompt, most), output)
