"""What an incident is: a fleet, its traffic, its settings and what is wrong with it, as data.

Rates are requests/s, times seconds of simulated time, lengths tokens. `causes` must be found; `also` are
present by construction and may be named too. Prevents: a cause credited to a diagnosis that only the
simulator knew of.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from fleet.diagnosis_evidence import Cause, Launch
from fleet.engine_profile import EngineProfile
from simfleet.virtual_fleet import Call, Front, Trouble

LENGTH_S = 600.0
RAMP_S = 300.0
BATCH_PRIORITY = 10


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lognormal lengths; a `tall_share` of them is drawn around `tall_mean` instead."""

    mean: float
    cv: float = 0.6
    tall_share: float = 0.0
    tall_mean: float = 0.0

    @property
    def overall_mean(self) -> float:
        return (1 - self.tall_share) * self.mean + self.tall_share * self.tall_mean

    def draw(self, rng: random.Random) -> int:
        """Return one length, at least 1."""
        if self.tall_share and rng.random() < self.tall_share:
            return max(1, round(rng.uniform(0.75, 1.25) * self.tall_mean))
        variance = math.log(1 + self.cv**2)
        return max(1, round(rng.lognormvariate(math.log(self.mean) - variance / 2, math.sqrt(variance))))


@dataclass(frozen=True, slots=True)
class Stream:
    """One tenant's traffic: Poisson with the rate of the phase that holds."""

    tenant: str
    prompt: Lengths
    output: Lengths
    phases: tuple[tuple[float, float], ...]  # (until, requests/s); the last one holds to the end
    tier: str = "interactive"
    priority: int = 0
    heavy_share: float = 0.0  # of requests in the first `heavy_sessions` sessions
    heavy_sessions: int = 1

    def calls(self, rng: random.Random, length_s: float) -> Iterator[Call]:
        """Yield calls in order of time."""
        busy = self.phases[0][1]
        ramp = [(RAMP_S * (step / 10 - 1), busy * step / 10) for step in range(1, 10)]
        begin_s = -RAMP_S
        for until_s, rate in [*ramp, (0.0, 0.9 * busy), *self.phases]:
            end_s = min(until_s, length_s)
            now_s = begin_s
            while rate > 0 and (now_s := now_s + rng.expovariate(rate)) < end_s:
                yield Call(
                    now_s,
                    self.tenant,
                    self.tier,
                    self.prompt.draw(rng),
                    self.output.draw(rng),
                    self.priority,
                    self._session(rng),
                )
            begin_s = end_s

    def _session(self, rng: random.Random) -> int:
        if self.heavy_share and rng.random() < self.heavy_share:
            return rng.randrange(self.heavy_sessions)
        return rng.randrange(10**6)


@dataclass(frozen=True, slots=True)
class Incident:
    """One fleet in one situation."""

    name: str
    causes: frozenset[Cause]
    nodes: int
    profile: EngineProfile
    streams: tuple[Stream, ...]
    front: Front = field(default_factory=Front)
    troubles: tuple[Trouble, ...] = ()
    also: frozenset[Cause] = frozenset()
    launch: Launch | None = None  # what the operator registered; None: what the engines run with
    order: str | None = "sjf_aging"  # of the gateways' queue, as the policy says
    length_s: float = LENGTH_S
    seed: int = 0
    weights: dict[str, float] = field(default_factory=dict[str, float])

    def calls(self) -> Iterator[Call]:
        """Yield the calls of every stream in order of time, cut to what the engine takes.

        Before 0 comes a ramp of RAMP_S from a tenth of the first phase's rate to nine: a fleet has a past,
        and its capacity is learnt from all loads it has seen.
        """
        limit = min(self.profile.max_model_len, self.profile.kv_capacity_tokens)
        parts = [
            stream.calls(random.Random(f"{self.name}/{self.seed}/{number}"), self.length_s)
            for number, stream in enumerate(self.streams)
        ]
        for call in heapq.merge(*parts, key=lambda c: c.at_s):
            prompt = min(call.prompt_tokens, limit - 2)
            yield replace(
                call, prompt_tokens=prompt, output_tokens=min(call.output_tokens, limit - 1 - prompt)
            )

    @property
    def registered(self) -> Launch:
        """Return the launch settings an operator would have registered."""
        p = self.profile
        known = Launch(p.max_num_seqs, p.max_num_batched_tokens, p.scheduling_policy, p.chunked_prefill)
        return known if self.launch is None else self.launch
