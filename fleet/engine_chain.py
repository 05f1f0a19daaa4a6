"""A continuous-batching engine as a birth-death chain.

A decode step with b sequences takes tau(b) = alpha + m b seconds, m = beta + gamma I / O (prefill rides
along). Admitted requests never wait for a server, they slow each other. Rates are per second, times are
seconds, I and O mean prompt and output tokens. Prevents: a fixed service rate for a server whose rate
depends on how many it serves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fleet.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class EngineChain:
    """Steady state of an engine with `slots` sequences and a bounded queue."""

    mu_sat: float  # req/s at a full batch
    p_block: float  # share of arrivals refused
    b_mean: float  # mean sequences in decode
    itl_mean_s: float  # mean time between two tokens of a request
    queue_mean: float


def step_slope_s(beta: float, gamma: float, prompt_tokens: float, output_tokens: float) -> float:
    """Return m = beta + gamma I / O, seconds a step grows per sequence at a fixed mix."""
    return beta + gamma * prompt_tokens / output_tokens


def engine_chain(
    lam: float,
    output_tokens: float,
    prompt_tokens: float,
    *,
    alpha: float,
    beta: float,
    gamma: float,
    slots: int,
    queue: int,
) -> EngineChain:
    """Return the steady state with Poisson arrivals of `lam` > 0 and departure rate n / (O tau(n)).

    Weights are kept as logarithms relative to the largest, so overload and 10^4 slots are exact alike.
    """
    if slots < 1 or queue < 0 or lam <= 0 or output_tokens <= 0:
        raise InvalidInput(
            f"lam {lam}, O {output_tokens}, B {slots}, Q {queue} out of range",
            hint="lam > 0, O > 0, B >= 1, Q >= 0",
        )
    slope = step_slope_s(beta, gamma, prompt_tokens, output_tokens)
    states = np.arange(slots + queue + 1, dtype=np.float64)
    busy = np.minimum(states, slots)
    rates = busy[1:] / (output_tokens * (alpha + slope * busy[1:]))
    logs = np.concatenate((np.zeros(1), np.cumsum(math.log(lam) - np.log(rates))))
    weights = np.exp(logs - logs.max())
    shares = weights / weights.sum()
    p_block, b_mean = float(shares[-1]), float((busy * shares).sum())
    served = lam * (1 - p_block)
    if p_block > 0.5:  # 1 - p_block would cancel deep in overload; what is served is the mean rate
        served = float((np.concatenate((np.zeros(1), rates)) * shares).sum())
    return EngineChain(
        mu_sat=slots / (output_tokens * (alpha + slope * slots)),
        p_block=p_block,
        b_mean=b_mean,
        itl_mean_s=b_mean / (served * output_tokens),
        queue_mean=float((np.maximum(states - slots, 0) * shares).sum()),
    )
