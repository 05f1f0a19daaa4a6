"""How long one admission decision takes, and whether it stays flat.

Times are microseconds of processor time, medians of rounds; growth is a ratio to the smallest case. Prints
one JSON object. Prevents: a gate that is fast in an empty test and slow in front of a full queue.

    python -m benchmarks.gate [--rounds 31] [--nodes 12]
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
from statistics import median

from compiled import load
from fleet.gate import Dispatch, Gate, NodeState, Request, Started
from fleet.messages import Assignment
from fleet.outcomes import Outcome, Tier

MODEL = "llama"
_NODE_TOKENS = 600_000
_PAIRS = 200


def assignment(tenants: int, nodes: int) -> Assignment:
    """Return an assignment of `tenants` without effective limits and `nodes` of 600,000 KV tokens."""
    tiers = {
        "interactive": {"weight": 70, "queue_timeout_s": 600, "max_queued_requests": 100_000},
        "batch": {"weight": 25, "queue_timeout_s": 600, "max_queued_requests": 100_000},
        "best_effort": {"weight": 5, "queue_timeout_s": 600, "max_queued_requests": 100_000},
    }
    limits = {
        "tokens_per_minute": 10**12,
        "burst_tokens": 10**12,
        "max_in_flight_tokens": 10**12,
        "max_concurrent_requests": 10**6,
    }
    names = [f"t{number}" for number in range(tenants)]
    quota = {"tier": "interactive", "allowed_tiers": [tier.value for tier in Tier]} | limits
    targets = [
        {"name": f"n{number}", "pool": "main", "base_url": "http://127.0.0.1:1", "models": [MODEL]}
        for number in range(nodes)
    ]
    return Assignment.model_validate(
        {
            "gateway": "gw1",
            "epoch": 1,
            "generation": 1,
            "revision": 1,
            "policy": {"tiers": tiers, "tenants": dict.fromkeys(names, quota)},
            "shares": dict.fromkeys(names, limits),
            "kv_share_ratio": 1.0,
            "nodes": targets,
            "credentials": [],
        }
    )


def request(number: int, tenants: int, rng: random.Random) -> Request:
    """Return a request of 500 prompt tokens and 50 to 950 output tokens."""
    tier = (Tier.INTERACTIVE, Tier.BATCH, Tier.BEST_EFFORT)[number % 3]
    return Request(f"r{number}", f"t{number % tenants}", tier, MODEL, "chat", 500, rng.randint(50, 950))


class Bench:
    """A gate with a number of requests queued behind full nodes (0: half-empty nodes)."""

    def __init__(self, tenants: int, queued: int, nodes: int) -> None:
        self.rng = random.Random(1)
        self.tenants = tenants
        self.nodes = nodes
        self.gate = Gate(self.rng)
        self.now_s = 0.0
        self.number = 0
        self.leases: list[Dispatch | Started] = []
        self.gate.apply(assignment(tenants, nodes), 0.0)
        self.observe()
        waiting = 0
        while waiting < queued or (not queued and len(self.leases) < nodes * 200):
            waiting += not self.offer()

    def observe(self) -> None:
        """See all nodes."""
        self.gate.observe(
            [NodeState(f"n{n}", True, self.now_s, _NODE_TOKENS, 0.0, 0, 0) for n in range(self.nodes)],
            self.now_s,
        )
        self.leases += [one for one in self.gate.poll(self.now_s) if isinstance(one, Started)]

    def offer(self) -> bool:
        """Offer one more request; say whether it started."""
        self.number += 1
        decision = self.gate.offer(request(self.number, self.tenants, self.rng), self.now_s)
        if isinstance(decision, Dispatch):
            self.leases.append(decision)
        return isinstance(decision, Dispatch)

    def round_us(self) -> float:
        """Return microseconds for one offer, one release and the poll after it, mean of a round."""
        self.now_s += 0.5
        self.observe()
        rng = self.rng
        rng.shuffle(self.leases)
        asked = [request(self.number + n, self.tenants, rng) for n in range(_PAIRS)]
        self.number += _PAIRS
        gate, leases = self.gate, self.leases
        began_ns = time.process_time_ns()
        for one in asked:
            self.now_s += 1e-4
            now_s = self.now_s
            decision = gate.offer(one, now_s)
            if isinstance(decision, Dispatch):
                leases.append(decision)
            ended = leases.pop().lease
            gate.release(
                ended, prompt_tokens=500, output_tokens=300, outcome=Outcome.COMPLETED, now_s=now_s
            )
            deadline_s = gate.next_deadline_s()
            if deadline_s is not None and deadline_s <= now_s:
                leases += [event for event in gate.poll(now_s) if isinstance(event, Started)]
        return (time.process_time_ns() - began_ns) / 1000 / _PAIRS


def measure(tenants: int, queued: int, nodes: int, rounds: int) -> float:
    """Return the median microseconds of one offer + release (+ poll where something waits)."""
    bench = Bench(tenants, queued, nodes)
    return median(bench.round_us() for _ in range(rounds))


def main() -> None:
    """Measure all cases and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--nodes", type=int, default=12)
    options = parser.parse_args()
    cases = [(10, 0), (1000, 0), (10, 100), (10, 10_000), (1000, 100), (1000, 10_000)]
    took_us = {case: measure(*case, options.nodes, options.rounds) for case in cases}
    many_nodes_us = measure(1000, 10_000, 4 * options.nodes, options.rounds)
    result = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "hot_modules": load.state(),
        "nodes": options.nodes,
        "offer_release_poll_us": {
            f"{t} tenants, {q} queued": round(us, 2) for (t, q), us in took_us.items()
        },
        "growth": {
            "1000 tenants to 10, nothing queued": round(took_us[1000, 0] / took_us[10, 0], 2),
            "1000 tenants to 10, 10000 queued": round(took_us[1000, 10_000] / took_us[10, 10_000], 2),
            "10000 queued to 100, 1000 tenants": round(took_us[1000, 10_000] / took_us[1000, 100], 2),
            "four times the nodes": round(many_nodes_us / took_us[1000, 10_000], 2),
        },
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
