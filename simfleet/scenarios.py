"""Named load situations as data, for tests and forecasts in virtual time.

Loads are multiples of what the profile can serve at the scenario's own mix, times are seconds, lengths
are tokens. Prevents: each test inventing its own "overload" and none of them meaning the same.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from fleet.engine_profile import EngineProfile, throughput_at_batch
from fleet.errors import NotFound


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of constant load."""

    length_s: float
    load_ratio: float  # arrival rate / service rate


@dataclass(frozen=True, slots=True)
class Scenario:
    """One situation a node can be in."""

    name: str
    question: str  # what an operator should be able to tell from it
    phases: tuple[Phase, ...]
    mean_prompt_tokens: float = 500.0
    mean_output_tokens: float = 300.0
    output_cv: float = 0.8
    long_share: float = 0.0  # of requests with `long_prompt_tokens` instead
    long_prompt_tokens: int = 12_000

    @property
    def length_s(self) -> float:
        return sum(phase.length_s for phase in self.phases)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a scenario."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    is_long: bool


SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("idle", "Does a nearly idle node stay quiet for a day?", (Phase(86_400, 0.02),)),
        Scenario("steady", "What does a healthy node at 70 % look like?", (Phase(3600, 0.70),)),
        Scenario("overload_110", "Is it told from full but stable?", (Phase(1800, 1.10),)),
        Scenario(
            "burst",
            "Is a 90 s burst told from lasting overload, and does the queue drain?",
            (Phase(600, 0.60), Phase(90, 1.80), Phase(900, 0.60)),
        ),
        Scenario(
            "long_context_blocking",
            "Who suffers when a few prompts are very long?",
            (Phase(1800, 0.60),),
            long_share=0.02,
        ),
    )
}


def scenario_named(name: str) -> Scenario:
    """Return the named scenario. Raises NotFound with the names there are."""
    if name not in SCENARIOS:
        raise NotFound(f"there is no scenario {name!r}", hint=f"Use one of: {', '.join(SCENARIOS)}")
    return SCENARIOS[name]


def service_rate(scenario: Scenario, profile: EngineProfile) -> float:
    """Return mu, requests/s, of one node at the scenario's mix with every slot taken."""
    mean_prompt = (
        scenario.mean_prompt_tokens * (1 - scenario.long_share)
        + scenario.long_prompt_tokens * scenario.long_share
    )
    return throughput_at_batch(profile, profile.max_num_seqs, mean_prompt, scenario.mean_output_tokens)


def arrivals(scenario: Scenario, profile: EngineProfile, seed: int) -> Iterator[Arrival]:
    """Yield Poisson arrivals of every phase in order of time, the same for the same seed."""
    rng = random.Random(f"{scenario.name}/{seed}")
    variance = math.log(1 + scenario.output_cv**2)
    mu = math.log(scenario.mean_output_tokens) - variance / 2
    capacity = service_rate(scenario, profile)
    end_s = 0.0
    for phase in scenario.phases:
        now_s, end_s = end_s, end_s + phase.length_s
        while (now_s := now_s + rng.expovariate(phase.load_ratio * capacity)) < end_s:
            is_long = rng.random() < scenario.long_share
            prompt = scenario.long_prompt_tokens if is_long else round(scenario.mean_prompt_tokens)
            room = min(profile.max_model_len, profile.kv_capacity_tokens) - prompt
            output = max(1, round(rng.lognormvariate(mu, math.sqrt(variance))))
            yield Arrival(now_s, prompt, min(output, room), is_long)
