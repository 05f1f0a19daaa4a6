"""Traffic for the simulated engine, and the windows a scraper would see of it. For tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np

from fleet.engine import Engine
from fleet.engine_profile import EngineProfile
from fleet.engine_request import EngineRequest
from fleet.health import TimedWindow
from fleet.readings import PageReading, PageState
from fleet.windows import window

PROMPT = 500
OUTPUT = 300.0
OUTPUT_CV = 0.8


def run_engine(
    profile: EngineProfile,
    rate: Callable[[float], float],
    seconds: float,
    seed: int,
    *,
    period_s: float = 10.0,
    prompt: int = PROMPT,
    output: float = OUTPUT,
) -> Iterator[TimedWindow]:
    """Yield one window a period, under Poisson arrivals of `rate(t)` req/s and lognormal outputs."""
    engine, rng = Engine(profile), np.random.default_rng(seed)
    variance = math.log1p(OUTPUT_CV**2)
    count, before, end = 0, None, 0.0
    while end < seconds:
        start, end = end, end + period_s
        arrivals = rng.uniform(start, end, rng.poisson(rate(start) * period_s))
        for at in sorted(arrivals):
            tokens = max(1, round(rng.lognormal(math.log(output) - variance / 2, math.sqrt(variance))))
            tokens = min(tokens, profile.max_model_len - prompt - 1)
            engine.submit(EngineRequest(str(count), prompt, tokens), float(at))
            count += 1
        engine.advance(end)
        page = PageReading("simulated", "vllm", "prometheus_text", PageState.OK, (engine.reading(),))
        if before is not None:
            yield TimedWindow(end, window(before, page, period_s)[0])
        before = page


def wave(mean: float, share: float = 0.5, cycle_s: float = 3600.0) -> Callable[[float], float]:
    """Return a rate that swings by `share` around `mean` once a cycle."""
    return lambda t: mean * (1 + share * math.sin(2 * math.pi * t / cycle_s))


@cache
def measured_capacity(profile: EngineProfile, seed: int) -> float:
    """Return requests/s finished in an hour of overload, after ten minutes to fill up.

    What arrives is 1.3 times what slots and the first slope alone would allow: more than any limit.
    """
    step_s = profile.alpha_s + (profile.beta_s + profile.gamma_s * PROMPT / OUTPUT) * profile.max_num_seqs
    flood = 1.3 * profile.max_num_seqs / (OUTPUT * step_s)
    windows = list(run_engine(profile, lambda _: flood, 3600, seed))[60:]
    tokens = sum(w.window.generation_tokens or 0 for w in windows)
    return tokens / sum(w.window.length_s for w in windows) / OUTPUT
