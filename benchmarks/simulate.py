"""Claim: a hundred strategies' fluid months take seconds, a month of every request ten; plain Python more.

Processor seconds of this process on one core, medians of rounds, compiled beforehand (what the first took
stands beside it). The plain twin is the same loop uncompiled, over one day, as is a textbook event loop (a
heap of departures, as discrete-event libraries do it). The fluid twin is shown a month, events a day.
Prints one JSON object. Prevents: a "fast" that is the compiler's cache, and a ratio without its other side.

    python -m benchmarks.simulate [--rounds 3] [--gate] [--events]
"""

from __future__ import annotations

import argparse
import gc
import heapq
import json
import math
import time
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from statistics import median

import numpy as np

from benchmarks.parse import machine
from compiled import load
from control.rate_profile_files import bundled_profile
from fleet import fluid_kernel
from fleet.comparison_catalogue import catalogue
from fleet.engine import Engine
from fleet.engine_group import EngineGroup
from fleet.engine_profile import H100_70B_FP8, EngineProfile
from fleet.engine_request import EngineRequest
from fleet.fluid import BIN_S, DAY_BINS, kernel_arguments, simulate
from fleet.gate_month import GateRun
from fleet.gate_rules import GateRules, flows_of_tiers
from fleet.month_result import NodeClass
from fleet.outcomes import Tier
from fleet.simulate import EventRun, ServiceModel
from fleet.strategies import Strategy
from fleet.traffic_shape import traffic_shape

NODE = NodeClass()
DAYS = 30


def cpu_s(work: Callable[[], object]) -> float:
    """Return the processor seconds that `work` takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def plain_fluid(rates: np.ndarray, strategy: Strategy) -> None:
    """Run the fluid loop uncompiled: what it would cost in plain Python."""
    a = kernel_arguments(strategy)
    series = [np.zeros(rates.size) for _ in range(4)]
    loop = fluid_kernel.run_bins.py_func
    loop(
        rates, BIN_S, NODE.service_rate, strategy.nodes, a.max_wait_s, a.periods, a.scaler, a.plan, a.pool,
        a.burst_nodes, *series,
    )  # fmt: skip


def textbook_events(rates: np.ndarray, servers: int, patience_s: float, seed: int) -> tuple[int, int]:
    """Simulate one queue with a heap of departures, an arrival at a time; return (offered, refused)."""
    rng = np.random.default_rng(seed)
    times = np.sort(
        np.concatenate(
            [k * BIN_S + rng.random(n) * BIN_S for k, n in enumerate(rng.poisson(rates * BIN_S))]
        )
    )
    services = ServiceModel().draw(rng, times.size, NODE)
    busy: list[float] = []
    waiting: deque[tuple[float, float]] = deque()
    refused = 0
    for at_s, service_s in zip(times.tolist(), services.tolist(), strict=True):
        while busy and busy[0] <= at_s:
            free_s = heapq.heappop(busy)
            while waiting and free_s - waiting[0][0] > patience_s:
                waiting.popleft()
                refused += 1
            if waiting:
                heapq.heappush(busy, free_s + waiting.popleft()[1])
        if len(busy) < servers:
            heapq.heappush(busy, at_s + service_s)
        else:
            waiting.append((at_s, service_s))
    return times.size, refused


def gate_run(rates: np.ndarray, engine: EngineProfile | None) -> GateRun:
    """Return days of traffic through the real gate, before engines or drawn service times."""
    service = ServiceModel(36 if engine is None else engine.max_num_seqs)
    events = EventRun(rates, Strategy(5, 1.5), NODE, service, keeps_waits=False)
    shares = {Tier.INTERACTIVE: 0.6, Tier.BATCH: 0.3, Tier.BEST_EFFORT: 0.1}
    return GateRun(events, GateRules(flows_of_tiers(shares), engine=engine))


def gate_us(rates: np.ndarray, engine: EngineProfile | None) -> float:
    """Return processor time a request through the gate, in us."""
    run = gate_run(rates, engine)

    def all_of_it() -> None:
        while not run.is_done:
            run.advance()

    gc.collect()
    gc.disable()  # as the processes that do days
    spent_s = cpu_s(all_of_it)
    gc.enable()
    return spent_s / run.requests_done * 1e6


def engines_us(step_by_step: bool, requests: int = 5_000, rate_rps: float = 2.7) -> float:
    """Return processor time a request in one engine at 0.9 of what it serves, in us."""
    rng = np.random.default_rng(1)
    at_s = np.cumsum(rng.exponential(1 / rate_rps, requests)).tolist()
    prompts, answers = (
        np.maximum(1, mean * rng.lognormal(-0.235, 0.686, requests)).astype(int).tolist()
        for mean in (500, 300)
    )

    def stepwise() -> None:
        engine = Engine(H100_70B_FP8)
        for n, now_s in enumerate(at_s):
            engine.advance(now_s)
            engine.submit(EngineRequest(str(n), prompts[n], answers[n]), now_s)
        while engine.next_step_end_s is not None:
            engine.advance(engine.next_step_end_s)

    def together() -> None:
        group = EngineGroup(H100_70B_FP8, places=512)
        group.add("a")
        for n, now_s in enumerate([*at_s, math.inf]):
            while group.run_until(now_s) is not None:
                pass
            if n < requests:
                group.submit(n, "a", prompts[n], answers[n], now_s)

    return cpu_s(stepwise if step_by_step else together) / requests * 1e6


def gate_figures(month: np.ndarray, rounds: int) -> dict[str, float]:
    """Measure the real gate over every twelfth 10 s of a day, and the engines apart."""
    part = month[:DAY_BINS:12].copy()
    gate_us(part[:20], H100_70B_FP8)  # compile
    engines_us(False, 100)
    found = {
        "gate_us_a_request_drawn_times": median(gate_us(part, None) for _ in range(rounds)),
        "gate_us_a_request_with_engines": median(gate_us(part, H100_70B_FP8) for _ in range(rounds)),
        "engine_us_a_request_step_by_step": median(engines_us(True) for _ in range(rounds)),
        "engine_us_a_request_together": median(engines_us(False) for _ in range(rounds)),
    }
    found["engine_step_by_step_over_together"] = (
        found["engine_us_a_request_step_by_step"] / found["engine_us_a_request_together"]
    )
    whole_s = float(month.sum() * BIN_S) * found["gate_us_a_request_with_engines"] / 1e6
    return found | {"gate_month_core_s_at_this_pace": whole_s}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gate", action="store_true", help="Also the real gate and engines (a minute)")
    parser.add_argument("--events", action="store_true", help="Also a whole month of events (minutes)")
    asked = parser.parse_args()
    month = bundled_profile("C").month()
    strategies = [one.strategy for one in catalogue(traffic_shape(month), 3.0, Decimal(16))]
    first_s = cpu_s(lambda: [simulate(month, one, NODE) for one in strategies])
    hundred = [strategies[n % len(strategies)] for n in range(100)]
    fluid_s = median(
        cpu_s(lambda: [simulate(month, one, NODE) for one in hundred]) for _ in range(asked.rounds)
    )
    day = month[:DAY_BINS]
    plain_s = median(cpu_s(lambda: plain_fluid(day, strategies[4])) for _ in range(asked.rounds)) * DAYS
    kernel_s = median(cpu_s(lambda: simulate(month, strategies[4], NODE)) for _ in range(asked.rounds))
    five = Strategy(5, 1.5)

    def one_day() -> None:
        EventRun(day, five, NODE, keeps_waits=False).advance()

    one_day()
    events_s = median(cpu_s(one_day) for _ in range(asked.rounds))
    textbook_s = median(cpu_s(lambda: textbook_events(day, 5 * 36, 1.5, 1)) for _ in range(asked.rounds))
    found: dict[str, object] = {
        "machine": machine(),
        "first_six_fluid_months_s": first_s,
        "hundred_fluid_months_s": fluid_s,
        "fluid_month_s": kernel_s,
        "fluid_month_plain_python_s": plain_s,
        "fluid_plain_over_compiled": plain_s / kernel_s,
        "event_day_s": events_s,
        "event_day_requests": float(day.sum() * BIN_S),
        "event_requests_per_s": float(day.sum() * BIN_S) / events_s,
        "event_day_textbook_python_s": textbook_s,
        "event_textbook_over_compiled": textbook_s / events_s,
    }
    if asked.gate:
        found |= gate_figures(month, asked.rounds)
    if asked.events:
        run = EventRun(month, five, NODE, keeps_waits=False)

        def whole() -> None:
            while not run.is_done:
                run.advance()

        found["event_month_s"] = cpu_s(whole)
        found["event_month_requests"] = run.result().offered
    print(json.dumps({"hot_modules": load.state(), **found}, indent=1))


if __name__ == "__main__":
    main()
