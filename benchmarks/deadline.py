"""How often the deadline rule is right: of what it refuses, what would not have started in time.

One in twenty of the requests it refuses, drawn by chance, is let in instead and watched. `precision`: of
those, how many were late (evicted at their timeout). `late_or_half`: late, or waited over half of it.
`recall`: of all that was or would have been late, how much was refused at the door. `factor` times
the timeout is the wait from which on requests are refused: 1 is the gate's rule. `rate`: what drains what
stands before a request. `model` is the gate's: all tiers together, shared by weight with those that wait.
`line` is what the request's own tier got lately. `served_ratio` are completed requests, `evicted_ratio`
those that were let in by the rule and were late, both of all. Prevents: an estimator tuned to a figure that
none can reach.

    python -m benchmarks.deadline [--requests 12000] [--factors 0.7 1 1.5] [--rates model line]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.gate import assignment
from compiled import load
from fleet.budget import NodeBudget
from fleet.drain import DrainMeter
from fleet.gate_replay import Arrival, _Replay  # pyright: ignore[reportPrivateUsage]
from fleet.lines import Line
from fleet.offers import Refused, Request, Ticket
from fleet.outcomes import TIERS, Outcome, Tier
from fleet.replay_servers import ReplayNode

MODEL = "llama"
SLOTS = 16
NODES = 4
SECONDS_A_TOKEN = 0.02
MEAN_OUTPUT = 200
PROBED = 0.05
TIMEOUTS_S = {Tier.INTERACTIVE: 1.5, Tier.BATCH: 30.0, Tier.BEST_EFFORT: 30.0}


def traffic(load_ratio: float, count: int, seed: int) -> list[Arrival]:
    """Return Poisson arrivals in three tiers of equal weight; answers vary as exponentials do."""
    rng = random.Random(seed)
    rate = load_ratio * NODES * SLOTS / (MEAN_OUTPUT * SECONDS_A_TOKEN)
    at_s, found = 0.0, list[Arrival]()
    for number in range(count):
        at_s += rng.expovariate(rate)
        output = 1 + int(rng.expovariate(1 / MEAN_OUTPUT))
        tenant, tier = f"t{rng.randrange(9)}", rng.choice(TIERS)
        request = Request(f"r{number}", tenant, tier, MODEL, "chat", 500, 2_000)
        found.append(Arrival(at_s, request, output))
    return found


class Door:
    """Stands in for the deadline rule of one gate: refuses beyond `factor` timeouts, lets some in."""

    def __init__(self, run: _Replay, factor: float, seed: int) -> None:
        self.bounds = run.gate._bounds  # pyright: ignore[reportPrivateUsage]
        self.backlog = run.gate._backlog  # pyright: ignore[reportPrivateUsage]
        self.refuse = run.gate._refusals.refuse  # pyright: ignore[reportPrivateUsage]
        self.factor, self.rng = factor, random.Random(seed)
        self.probed: dict[str, float] = {}  # request -> expected wait by its timeout
        self.bounds.refusal = self.refusal  # type: ignore[method-assign]

    def refusal(self, ticket: Ticket, now_s: float) -> Refused | None:
        timeout_s = TIMEOUTS_S[ticket.tier]
        wait_s = ticket.expected_wait_s = self.backlog.expected_wait_s(ticket, now_s)
        if wait_s is None or wait_s <= self.factor * timeout_s:
            return None
        if self.rng.random() < PROBED:
            self.probed[ticket.request.request_id] = wait_s / timeout_s
            return None
        return self.refuse(Outcome.REJECTED_TOO_LATE, "too late")


class LineRates:
    """Has a backlog expect waits by what each model and tier got lately, where that is known."""

    def __init__(self, run: _Replay) -> None:
        self.backlog = run.gate._backlog  # pyright: ignore[reportPrivateUsage]
        self.meters: dict[Line, DrainMeter] = {}
        self.as_it_is = self.backlog.expected_wait_s
        self.joins, self.leaves, self.starts = self.backlog.join, self.backlog.leave, self.backlog.start
        self.backlog.expected_wait_s = self.expected_wait_s  # type: ignore[method-assign]
        self.backlog.join, self.backlog.leave = self.join, self.leave  # type: ignore[method-assign]
        self.backlog.start = self.start  # type: ignore[method-assign]

    def meter(self, line: Line) -> DrainMeter:
        return self.meters.setdefault(line, DrainMeter())

    def join(self, ticket: Ticket, now_s: float) -> None:
        self.joins(ticket, now_s)
        if ticket.line.requests == 1:
            self.meter(ticket.line).set_busy(True, now_s)

    def leave(self, ticket: Ticket, now_s: float) -> None:
        self.leaves(ticket, now_s)
        if not ticket.line.requests:
            self.meter(ticket.line).set_busy(False, now_s)

    def start(self, ticket: Ticket, book: NodeBudget, *, in_turn: bool, now_s: float) -> None:
        self.starts(ticket, book, in_turn=in_turn, now_s=now_s)
        self.meter(ticket.line).add(ticket.tokens, now_s)

    def expected_wait_s(self, ticket: Ticket, now_s: float) -> float | None:
        by_model = self.as_it_is(ticket, now_s)
        rate = self.meter(ticket.line).tokens_per_s(now_s)
        if rate is None or by_model is None:
            return by_model
        return self.backlog.queue.tokens_ahead(ticket, is_fifo=False) / rate


def measure(load_ratio: float, rate: str, factor: float, count: int, seed: int) -> list[dict[str, Any]]:
    """Return the figures of one run, by tier."""
    nodes = [
        ReplayNode(f"n{n}", kv_capacity_tokens=10**9, max_num_seqs=SLOTS, prefill_s_per_token=0.0,
                   decode_s_per_token=SECONDS_A_TOKEN) for n in range(NODES)
    ]  # fmt: skip
    arrivals = traffic(load_ratio, count, seed)
    policy = assignment(9, 1).policy
    tiers = policy.tiers.model_copy(
        update={
            tier.value: policy.tiers[tier].model_copy(
                update={"queue_timeout_s": TIMEOUTS_S[tier], "max_queued_requests": 100_000}
            )
            for tier in TIERS
        }
    )
    run = _Replay(policy.model_copy(update={"tiers": tiers}), arrivals, nodes, seed, 200, 0.5)
    if rate == "line":
        LineRates(run)
    door = Door(run, factor, seed)
    result = run.run(None)
    found: list[dict[str, Any]] = []
    for tier in TIERS:
        places = [place for place, one in enumerate(arrivals) if one.request.tier is tier]
        outcomes = [result.outcomes[place] for place in places]
        probed = [place for place in places if arrivals[place].request.request_id in door.probed]
        late = [place for place in probed if result.outcomes[place] is Outcome.EVICTED_WAIT]
        half = sum(result.queued_s[place] > TIMEOUTS_S[tier] / 2 for place in probed)
        refused = outcomes.count(Outcome.REJECTED_TOO_LATE) + len(probed)
        missed = outcomes.count(Outcome.EVICTED_WAIT) - len(late)
        right = refused * len(late) / len(probed) if probed else 0.0
        found.append(
            {
                "load": load_ratio,
                "rate": rate,
                "factor": factor,
                "tier": tier.value,
                "refused": refused,
                "probed": len(probed),
                "precision": round(len(late) / len(probed), 3) if probed else None,
                "late_or_half": round((len(late) + half) / len(probed), 3) if probed else None,
                "recall": round(right / (right + missed), 3) if right + missed else None,
                "served_ratio": round(outcomes.count(Outcome.COMPLETED) / len(places), 4),
                "evicted_ratio": round(missed / len(places), 4),
            }
        )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one JSON object a line, by load, factor and tier."""
    parser = argparse.ArgumentParser(description="How often the deadline rule is right")
    parser.add_argument("--requests", type=int, default=12_000)
    parser.add_argument("--factors", type=float, nargs="+", default=[0.7, 1.0, 1.5])
    parser.add_argument("--loads", type=float, nargs="+", default=[1.5, 3.0])
    parser.add_argument("--rates", choices=["model", "line"], nargs="+", default=["model", "line"])
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    if load.state() == load.COMPILED:  # the rule is replaced in place: in plain Python only
        again = [sys.executable, "-m", "benchmarks.deadline", *sys.argv[1:]]
        os.execve(sys.executable, again, os.environ | {load.SWITCH: "0"})
    for ratio in given.loads:
        for rate in given.rates:
            for factor in given.factors:
                for line in measure(ratio, rate, factor, given.requests, given.seed):
                    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
