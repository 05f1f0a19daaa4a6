"""Causes that show in the steps of engines: prompts that make everybody wait for the next token.

Times are seconds, sizes tokens, ratios 0..1. The cost of a prompt token is fitted, never assumed. Prevents:
a token budget called too large because the batch is, and prefill blamed for a slow GPU.
"""

from __future__ import annotations

import numpy as np

from fleet.diagnosis_engine_facts import EngineFacts
from fleet.diagnosis_engines import (
    budget_of,
    engines_named,
    has_memory,
    has_queue,
    is_step_bound,
    mean_step,
)
from fleet.diagnosis_evidence import Cause, Finding, Number, Series
from fleet.diagnosis_facts import Facts, PoolFacts, above, p
from fleet.diagnosis_prefill import StepModel, step_model
from fleet.percentages import percent
from fleet.readings import EngineWindow

#: Of the time between two tokens; at half, decoding runs at half its pace.
PREFILL_SHARE = 0.42


def token_budget(facts: Facts, pool: PoolFacts) -> Finding | None:
    """Steps too long for the goal because they may carry too many prompt tokens, or too short to feed "
    "slots."""
    starved = [e for e in pool.engines if has_queue(e) and has_memory(e) and is_step_bound(e)]
    starved = [e for e in starved if _has_free_slots(e)]
    if starved:
        return _budget_too_small(pool, starved)
    model = step_model(pool.engines)
    goals = facts.evidence.goals
    late = above(pool.histogram("itl_s"), goals.itl_p99_s)
    if model is None or late is None or late <= 0.01:
        return None
    return _budget_too_large(facts, pool, model, late)


def _has_free_slots(engine: EngineFacts) -> bool:
    slots = engine.evidence.launch.max_num_seqs
    running = engine.while_waiting(engine.running)
    return bool(len(running)) and (slots is None or float(np.median(running)) < 0.9 * slots)


def _budget_too_small(pool: PoolFacts, starved: list[EngineFacts]) -> Finding:
    engine = starved[0]
    budget, carried = budget_of(engine), mean_step(engine)
    return Finding(
        Cause.TOKEN_BUDGET,
        0.9,
        f"max-num-batched-tokens {budget:.0f} starves {engines_named(pool, starved)}",
        f"Steps of {engine.name} carry {carried or 0:.0f} tokens on average, about all they may, while "
        "requests wait for their prefill with places and memory free.",
        (
            Number("tokens a step may carry", budget, "tokens"),
            Number("tokens a step carries, mean", carried, "tokens"),
            Number("rounds with a queue", engine.waiting_share, "ratio"),
            Number("running while others waited", float(np.median(engine.while_waiting(engine.running)))),
        ),
        "Raise --max-num-batched-tokens to 8192",
        "flag:--max-num-batched-tokens",
        "Prompts are computed in fewer steps: time to first token falls, time between tokens rises.",
        tuple(e.name for e in starved),
        (engine.series("waiting", "requests", lambda w: w.waiting),),
    )


def _budget_too_large(facts: Facts, pool: PoolFacts, model: StepModel, late: float) -> Finding | None:
    goals = facts.evidence.goals
    if model.largest_step_tokens * model.per_token_s < goals.itl_p99_s * 0.6:
        return None  # the longest steps are not long because of prompts
    whole = [e for e in pool.engines if e.evidence.launch.chunked_prefill is False]
    median_s = p(pool.histogram("itl_s"), 0.5)
    budget = next((b for e in pool.engines if (b := budget_of(e))), None)
    room_s = max(goals.itl_p99_s - model.decode_s, 0.01)
    advised = max(512, int(2 ** np.floor(np.log2(max(room_s / model.per_token_s, 512)))))
    engine = max(pool.engines, key=lambda e: above(e.histogram("itl_s"), goals.itl_p99_s) or 0.0)
    said = [e.evidence.launch.chunked_prefill for e in pool.engines]
    unknown = ("chunked_prefill (register it with the pool)",) if all(s is None for s in said) else ()
    knob = "Start engines with --enable-chunked-prefill" if whole else "Lower --max-num-batched-tokens"
    return Finding(
        Cause.TOKEN_BUDGET,
        0.93 if whole else 0.8,
        ("chunked prefill is off" if whole else "steps may carry too many prompt tokens")
        + f": everybody's tokens wait for one prompt on {engines_named(pool, list(pool.engines))}",
        f"A step without a prompt takes {model.decode_s * 1000:.0f} ms, one with "
        f"{model.largest_step_tokens:.0f} "
        "prompt tokens about "
        f"{(model.decode_s + model.largest_step_tokens * model.per_token_s) * 1000:.0f} ms; "
        f"{percent(late, 1)} of the gaps between tokens exceed {goals.itl_p99_s * 1000:.0f} ms.",
        (
            Number("gaps over the goal", late, "ratio"),
            Number("gap between tokens, median", median_s, "s"),
            Number("prefill cost", model.per_token_s * 1e6, "us a token"),
            Number("largest steps seen", model.largest_step_tokens, "tokens"),
            Number("tokens a step may carry", budget, "tokens"),
        ),
        f"{knob}; {advised} tokens a step keep the goal",
        "flag:--enable-chunked-prefill" if whole else "flag:--max-num-batched-tokens",
        f"The longest gaps fall to about {(model.decode_s + advised * model.per_token_s) * 1000:.0f} ms; "
        "time to "
        "first token of long prompts grows.",
        tuple(e.name for e in (whole or pool.engines)),
        (_gap_series(engine),),
        unknown,
    )


def prefill_interference(facts: Facts, pool: PoolFacts) -> Finding | None:
    """Prefill takes so much of each step that running requests are slowed, and new ones start late."""
    model = step_model(pool.engines)
    itl = pool.histogram("itl_s")
    if model is None or itl is None or not itl.sum or not itl.count or not facts.is_bad:
        return None
    mean_s = itl.sum / itl.count
    if model.prefill_share < PREFILL_SHARE or model.decode_s > facts.evidence.goals.itl_mean_s:
        return None
    engine = max(pool.engines, key=lambda e: e.batch or 0.0)
    return Finding(
        Cause.PREFILL_INTERFERENCE,
        min(0.95, 0.6 + model.prefill_share / 2),
        f"prefill slows decoding on {engines_named(pool, list(pool.engines))}",
        f"{percent(model.prefill_share)} of the time between two tokens goes to other requests' prompts: "
        f"{mean_s * 1000:.0f} ms on average, where decoding alone takes {model.decode_s * 1000:.0f} ms.",
        (
            Number("gap between tokens, mean", mean_s, "s"),
            Number("of it decoding alone", model.decode_s, "s"),
            Number("prefill share of a gap", model.prefill_share, "ratio"),
            Number("prefill cost", model.per_token_s * 1e6, "us a token"),
            Number("prompt tokens a step", model.prefill_tokens, "tokens"),
        ),
        "Give prefill and decode pools of their own, or lower --max-num-batched-tokens",
        "flag:--max-num-batched-tokens",
        f"Time between tokens falls towards {model.decode_s * 1000:.0f} ms; time to first token depends "
        "on the "
        "prefill pool alone.",
        tuple(e.name for e in pool.engines),
        (_gap_series(engine),),
    )


def _gap_series(engine: EngineFacts) -> Series:
    def mean_gap(w: EngineWindow) -> float | None:
        itl = w.histograms.get("itl_s")
        return itl.sum / itl.count if itl is not None and itl.sum is not None and itl.count else None

    return engine.series("gap between tokens, mean", "s", mean_gap)
