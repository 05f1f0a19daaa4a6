"""The latency-throughput curve by simulation: the real gate before one engine, rate by rate.

Rates are requests/s of one engine, times seconds. Confirms `fleet.goodput`, whose chain knows no steps
that differ by the prompts they carry. Prevents: an admitted rate advised by a formula alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from fleet.discipline_study import NO_LIMIT, study_policy
from fleet.engine_profile import EngineProfile
from fleet.errors import InvalidInput
from fleet.gate_replay import Progress, replay
from fleet.goodput import EngineModel
from fleet.outcomes import Tier
from fleet.replay_outcomes import Group, Objectives, groups
from fleet.replay_servers import ReplayNode
from fleet.replay_traffic import RequestKind, mixed_traffic

TENANT = "all"
#: The beginning of a run is not shown: the engine starts empty.
WARM_UP_SHARE = 0.2
_LARGEST_PROMPT, _LARGEST_OUTPUT = 200_000, 20_000


@dataclass(frozen=True, slots=True)
class SimulatedPoint:
    """What one rate came to. `group` is of the requests after the warm-up."""

    rate: float  # offered
    batch: int
    group: Group
    goodput: float  # requests/s within every objective

    @property
    def throughput(self) -> float:
        """Return requests/s that completed."""
        return self.rate * self.group.completed / self.group.offered if self.group.offered else 0.0


def profile_of(model: EngineModel, batch: int) -> EngineProfile:
    """Return an engine that behaves as the model does at its mix, with `batch` slots and ample KV.

    Raises InvalidInput when prompts alone would take more than the whole slope.
    """
    prompt_s = model.prompt_s_per_token * model.prompt_tokens / model.output_tokens
    if prompt_s > model.curve.slope_s * (1 + 1e-9):
        raise InvalidInput(
            f"prompts alone take {prompt_s:.3g} s of the {model.curve.slope_s:.3g} s a sequence adds",
            field="prompt_s_per_token",
            hint="Give fewer seconds a prompt token: the slope holds them already",
        )
    curve = model.curve
    knee = None if curve.knee is None else max(1, round(curve.knee))
    return EngineProfile(
        name="modelled",
        alpha_s=curve.intercept_s,
        beta_s=max(0.0, curve.slope_s - prompt_s),
        gamma_s=model.prompt_s_per_token,
        knee_seqs=knee,
        beta_past_knee_s=None if knee is None else max(0.0, curve.last_slope_s - prompt_s),
        max_num_seqs=batch,
        max_num_batched_tokens=max(batch, model.max_num_batched_tokens),
        num_gpu_blocks=10_000_000,
        max_model_len=_LARGEST_PROMPT + _LARGEST_OUTPUT,
    )


def simulate_point(
    model: EngineModel,
    rate: float,
    batch: int,
    objectives: Objectives,
    *,
    seconds: float = 600.0,
    seed: int = 1,
    admitted_rate: float | None = None,
    timeout_s: float = 600.0,
) -> SimulatedPoint:
    """Return what `seconds` of Poisson arrivals at `rate` see.

    `admitted_rate`: a quota in tokens a minute refuses what is above it. `timeout_s`: longest wait.
    """
    kind = RequestKind(
        "all",
        1.0,
        Tier.INTERACTIVE,
        ((TENANT, 1.0),),
        model.prompt_tokens,
        model.output_tokens,
        model.prompt_cv,
        model.output_cv,
        _LARGEST_PROMPT,
        _LARGEST_OUTPUT,
    )
    arrivals = mixed_traffic(random.Random(seed), rate, seconds, (kind,))
    if not arrivals:
        raise InvalidInput(
            f"no request arrives at {rate:g}/s within {seconds:g} s",
            field="seconds",
            hint="Simulate longer",
        )
    node = ReplayNode("engine", profile_of(model, batch), max_num_seqs=batch)
    tokens = model.prompt_tokens + model.output_tokens
    quota = NO_LIMIT if admitted_rate is None else max(1, round(60 * admitted_rate * tokens))
    policy = study_policy([TENANT], timeout_s=timeout_s, tokens_per_minute=quota)
    result = replay(policy, arrivals, [node], seed=seed)
    warm_s = WARM_UP_SHARE * seconds
    found = groups(result, lambda place: arrivals[place].at_s >= warm_s, objectives)
    group = found.get(True) or found[False]
    return SimulatedPoint(rate, batch, group, rate * group.good_share)


def simulate_curve(
    model: EngineModel,
    rates: Sequence[float],
    batch: int,
    objectives: Objectives,
    *,
    seconds: float = 600.0,
    seed: int = 1,
    on_progress: Progress | None = None,
) -> tuple[SimulatedPoint, ...]:
    """Return a point for every rate; those done so far when `on_progress` (done, of) says stop."""
    found: list[SimulatedPoint] = []
    for rate in rates:
        if on_progress is not None and not on_progress(len(found), len(rates)):
            return tuple(found)
        found.append(simulate_point(model, rate, batch, objectives, seconds=seconds, seed=seed))
    if on_progress is not None:
        on_progress(len(found), len(rates))
    return tuple(found)


def rates_around(best: float, saturation: float, count: int = 9) -> list[float]:
    """Return `count` rates from a fifth of `best` past it up to 10 % above saturation."""
    last = max(1.1 * saturation, best)
    ratio = (last / (best / 5)) ** (1 / max(1, count - 1))
    return [best / 5 * math.pow(ratio, place) for place in range(count)]
