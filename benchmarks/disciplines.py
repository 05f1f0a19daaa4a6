"""What replays cost beside the gate they replay, and what disciplines and engines give over several seeds.

Times are microseconds of processor time a request, medians of rounds; the bare loop calls the same gate
with nothing recorded, in the same run. Prints one JSON object. Prevents: a replay whose bookkeeping costs
more than the decisions, and a published gain confirmed by one lucky seed.

    python -m benchmarks.disciplines [--requests 100000 --rounds 5 --seeds 6]
"""

from __future__ import annotations

import argparse
import heapq
import json
import platform
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

from benchmarks.gate import assignment
from compiled import load
from fleet.discipline_study import COMPARISONS, StudySettings, run_comparison
from fleet.engine_profile import H100_70B_FP8
from fleet.gate import Gate
from fleet.gate_replay import OBSERVE_EVERY_S, Arrival, assignment_of, replay
from fleet.offers import Dispatch, Request
from fleet.outcomes import Outcome, Tier
from fleet.policy import Policy
from fleet.replay_servers import PacedServers, ReplayNode
from fleet.replay_traffic import MIXED, Bursts, mixed_traffic

MODEL = "llama"
RATE = 30.0
TENANTS = 100


def traffic(count: int) -> list[Arrival]:
    """Return Poisson arrivals at 30/s of 100 tenants in three tiers, answered within what is reserved."""
    rng = random.Random(1)
    at_s, found = 0.0, list[Arrival]()
    for number in range(count):
        at_s += rng.expovariate(RATE)
        tier = (Tier.INTERACTIVE, Tier.BATCH, Tier.BEST_EFFORT)[number % 3]
        output = rng.randint(50, 500)
        request = Request(f"r{number}", f"t{number % TENANTS}", tier, MODEL, "chat", 500, output)
        found.append(Arrival(at_s, request, output))
    return found


def bare_loop(policy: Policy, arrivals: Sequence[Arrival], nodes: Sequence[ReplayNode]) -> int:
    """Offer and release at the same times as a replay would, keep nothing. Return how many started."""
    gate, servers = Gate(random.Random(1)), PacedServers(nodes)
    gate.apply(assignment_of(policy, nodes, [MODEL]), 0.0)
    ends: list[tuple[float, int, Dispatch]] = []
    next_s, started = 0.0, 0
    for place, arrival in enumerate(arrivals):
        now_s = arrival.at_s
        if now_s >= next_s:
            gate.observe(servers.states(now_s), now_s)
            next_s = now_s + OBSERVE_EVERY_S
        while ends and ends[0][0] <= now_s:
            end_s, ended, dispatch = heapq.heappop(ends)
            gate.release(
                dispatch.lease,
                prompt_tokens=500,
                output_tokens=arrivals[ended].output_tokens,
                outcome=Outcome.COMPLETED,
                now_s=end_s,
            )
        decision = gate.offer(arrival.request, now_s)
        if isinstance(decision, Dispatch):
            started += 1
            heapq.heappush(ends, (now_s + 0.011 + 0.04 * arrival.output_tokens, place, decision))
    return started


def us_a_request(run: Callable[[], object], count: int) -> float:
    """Return microseconds of processor time a request."""
    began_ns = time.process_time_ns()
    run()
    return (time.process_time_ns() - began_ns) / 1000 / count


def costs(count: int, rounds: int) -> dict[str, object]:
    """Measure the replay beside the bare loop, round by round, and one before engines."""
    policy, arrivals = assignment(TENANTS, 1).policy, traffic(count)
    nodes = [ReplayNode(f"n{n}", kv_capacity_tokens=1_600_000) for n in range(10)]
    engine = replace(H100_70B_FP8, max_num_seqs=256)
    engines = [ReplayNode(f"n{n}", engine) for n in range(10)]
    few = arrivals[: count // 10]
    pairs = [
        (
            us_a_request(lambda: bare_loop(policy, arrivals, nodes), count),
            us_a_request(lambda: replay(policy, arrivals, nodes), count),
        )
        for _ in range(rounds)
    ]
    with_engines = median(
        us_a_request(lambda: replay(policy, few, engines), len(few)) for _ in range(rounds)
    )
    bare, whole = (median(pair[side] for pair in pairs) for side in (0, 1))
    return {
        "requests": count,
        "bare_gate_loop_us": round(bare, 2),
        "replay_us": round(whole, 2),
        "replay_per_s": round(1e6 / whole),
        "replay_to_bare": round(median(b / a for a, b in pairs), 2),
        "replay_before_engines_us": round(with_engines, 2),
    }


def gains(seeds: int) -> dict[str, object]:
    """Return what the published directions come to, over seeds: least, mean, most."""
    settings = StudySettings(nodes=2)
    times: dict[str, list[float]] = {"continuous to static": [], "SJF p99 change": [], "longest gap": []}
    for seed in range(1, seeds + 1):
        arrivals = mixed_traffic(random.Random(seed), 27.0, 240.0, MIXED, Bursts())
        tenants = sorted({one.request.tenant for one in arrivals})
        for key, name in zip(("batching", "order", "chunking"), times, strict=True):
            comparison = COMPARISONS[key](settings, tenants)
            comparison = replace(comparison, cases=comparison.cases[:2])
            found = run_comparison(comparison, arrivals, settings)
            if found is None:
                continue
            first, second = found.results
            if key == "batching":
                times[name].append(second.tokens_per_s / first.tokens_per_s)
            elif key == "order":
                times[name].append((second.all.ttft_s.p99 or 0) / (first.all.ttft_s.p99 or 1) - 1)
            else:
                times[name].append((second.gap_max_s or 0) / (first.gap_max_s or 1))
    return {
        name: {"least": round(min(v), 3), "mean": round(sum(v) / len(v), 3), "most": round(max(v), 3)}
        for name, v in times.items()
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=6)
    options = parser.parse_args()
    result = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "hot_modules": load.state(),
        "costs": costs(options.requests, options.rounds),
        "gains": gains(options.seeds),
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
