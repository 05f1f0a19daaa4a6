"""Everything a gate says in a long seeded history: `python -m tests.compiled.decisions SEED STEPS`.

Prints which way the hot modules run, then a line for each thing the gate decided, every number in full.
Two runs are to be compared byte by byte. Times are seconds of the history's own clock.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from compiled import load
from fleet.gate import Dispatch, Evicted, Gate, Lease, NodeState, Queued, Refused, Request, Started, Ticket
from fleet.messages import Assignment
from fleet.outcomes import TIERS, Outcome

TENANTS = ("a", "b", "c", "d")
MODELS = ("llama", "adapter", "other")
NODES = tuple(f"n{place}" for place in range(6))
ENDPOINTS = ("chat", "completions", "embeddings")


def assignment(rng: random.Random, generation: int) -> Assignment:
    """Return rules of any kind: small quotas, size classes, nodes of any role, limits enforced or not."""
    quota = {
        "tokens_per_minute": rng.choice((60_000, 600_000)),
        "burst_tokens": rng.choice((20_000, 80_000)),
        "max_in_flight_tokens": rng.choice((20_000, 60_000)),
        "max_concurrent_requests": rng.choice((5, 40)),
    }
    rules = {"allowed_tiers": [tier.value for tier in TIERS], "tier": "batch"}
    names = [name for name in TENANTS if rng.random() < 0.95]
    nodes = [
        {
            "name": name,
            "pool": rng.choice(("main", "main", "long")),
            "base_url": "http://127.0.0.1:1",
            "models": rng.sample(MODELS, 2),
            "role": rng.choice((None, None, None, "decode", "prefill")),
            "draining": rng.random() < 0.1,
        }
        for name in NODES
        if rng.random() < 0.85
    ]
    tiers = {
        tier.value: {
            "weight": weight,
            "queue_timeout_s": wait_s,
            "max_queued_requests": rng.choice((8, 30)),
            "max_requeues": 0 if tier is TIERS[0] else rng.choice((0, 2)),
        }
        for tier, weight, wait_s in zip(TIERS, (70, 25, 5), (1.5, 6.0, 8.0), strict=True)
    }
    classes = [
        {"name": "short", "max_tokens": 2_000, "kv_share_ratio": 1.0},
        {"name": "large", "max_tokens": 100_000, "kv_share_ratio": 0.5, "pool": rng.choice((None, "long"))},
    ]
    modes = ("enforce", "enforce", "shadow", "off")
    limiters = ("tokens_per_minute", "in_flight_tokens", "concurrent_requests")
    policy = {
        "tiers": tiers,
        "tenants": {name: quota | rules | {"weight": rng.choice((1, 3))} for name in names},
        "admission": {
            "order": rng.choice(("fifo", "sjf_aging")),
            "reservation": rng.choice(("quantile", "overbook")),
            "size_classes": classes,
            "max_waiting_tokens": 60_000,
        },
        "limiters": {name: rng.choice(modes) for name in limiters},
        "routing": {"prefix_affinity": rng.random() < 0.5},
    }
    shares = {name: quota | {"over_budget": rng.random() < 0.05} for name in names}
    made = {"gateway": "gw1", "epoch": 1, "generation": generation, "revision": 1, "policy": policy}
    made |= {"shares": shares, "kv_share_ratio": 1.0, "nodes": nodes, "credentials": []}
    return Assignment.model_validate(made)


class History:
    """A gate, what happens to it, and what it says."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.gate = Gate(random.Random(seed), prior_output_tokens=400, max_queued_requests=40)
        self.now_s, self.number, self.generation = 100.0, 0, 0
        self.live: dict[int, Lease] = {}
        self.waiting: dict[int, Ticket] = {}
        self.apply()

    def say(self, *words: object) -> None:
        """Print what was decided; floats by their shortest exact form."""
        print(f"{self.now_s!r}", *(repr(word) if isinstance(word, float) else word for word in words))

    def apply(self) -> None:
        """Push new rules and nodes."""
        self.generation += 1
        self.gate.apply(assignment(self.rng, self.generation), self.now_s)
        self.observe()

    def observe(self) -> None:
        """See every node: most are well, some are sick, full, old or silent about their cache."""
        rng = self.rng
        states = [
            NodeState(
                name,
                rng.random() < 0.97,
                self.now_s - (30.0 if rng.random() < 0.05 else 0.0),
                rng.choice((20_000, 20_000, 20_000, 20_000, 8_000, None)),
                rng.choice((0.0, 0.0, 0.0, 0.3, 0.95, None)),
                rng.choice((0, 3, None)),
                rng.choice((0, 2, None)),
            )
            for name in NODES
        ]
        self.gate.observe(states, self.now_s)
        self.poll()

    def poll(self) -> None:
        """Take what was started, evicted and taken back."""
        for one in self.gate.recalls.requeued():
            self.live.pop(one.lease.lease_id)
            self.waiting[one.ticket.ticket_id] = one.ticket
            self.say("requeued", one.lease.lease_id, one.ticket.ticket_id)
        for event in self.gate.poll(self.now_s):
            ticket = self.waiting.pop(event.ticket.ticket_id)
            if isinstance(event, Started):
                self.live[event.lease.lease_id] = event.lease
                self.say("started", ticket.ticket_id, event.node, *_lease(event.lease))
            else:
                assert isinstance(event, Evicted)
                wait = (event.retry_after_s, event.retry_after_ms)
                self.say("evicted", ticket.ticket_id, event.outcome, event.reason, *wait)

    def offer(self) -> None:
        """Offer a request of any kind."""
        rng = self.rng
        self.number += 1
        asked = Request(
            f"r{self.number}",
            rng.choice((*TENANTS, *TENANTS, *TENANTS, "nobody")),
            rng.choice((*TIERS, None)),
            rng.choice(MODELS),
            rng.choice(ENDPOINTS),
            rng.choice((0, 50, 700, 700, 3_000, 3_000, 9_000)),
            rng.choice((None, 0, 100, 1_500)),
            prefix_key=rng.choice((None, "p", "q")),
        )
        decision = self.gate.offer(asked, self.now_s)
        if isinstance(decision, Dispatch):
            self.live[decision.lease.lease_id] = decision.lease
            self.say("dispatch", decision.node, *_lease(decision.lease))
        elif isinstance(decision, Queued):
            ticket = decision.ticket
            self.waiting[ticket.ticket_id] = ticket
            self.say("queued", ticket.ticket_id, ticket.tier, ticket.tokens, ticket.deadline_s, ticket.key)
        else:
            assert isinstance(decision, Refused)
            wait = (decision.retry_after_s, decision.retry_after_ms)
            self.say("refused", decision.outcome, decision.reason, *wait, decision.limit)
        self.poll()

    def end(self) -> None:
        """End any lease, in any way."""
        rng = self.rng
        lease = self.live.pop(rng.choice(sorted(self.live)))
        outcome = rng.choice((Outcome.COMPLETED, Outcome.COMPLETED, Outcome.CLIENT_GONE))
        usage: dict[str, Any] = {
            "prompt_tokens": rng.choice((None, 10, 700)),
            "output_tokens": rng.choice((None, 5, 300)),
        }
        self.say("ended", self.gate.release(lease, outcome=outcome, now_s=self.now_s, **usage))
        self.poll()

    def step(self) -> None:
        """Let one thing happen."""
        rng, chance = self.rng, self.rng.random()
        if chance < 0.005:
            self.apply()
        elif chance < 0.08:
            self.observe()
        elif chance < 0.53:
            self.offer()
        elif chance < 0.73 and self.live:
            self.end()
        elif chance < 0.78 and self.live:
            lease = self.live[rng.choice(sorted(self.live))]
            self.gate.extend(lease, rng.choice((1, 500, 3_000)), self.now_s)
        elif chance < 0.82 and self.waiting:
            ticket = self.waiting.pop(rng.choice(sorted(self.waiting)))
            self.say("left", self.gate.cancel(ticket, self.now_s))
            self.poll()
        else:
            self.now_s += rng.choice((0.001, 0.01, 0.1, 0.4))
            self.poll()


def _lease(lease: Lease) -> tuple[object, ...]:
    held = lease.held
    return (
        lease.lease_id, lease.tier, lease.size_class, lease.prompt_tokens, lease.output_tokens,
        lease.tokens, lease.queued_s, lease.rule, lease.candidates, lease.room_tokens, lease.would_refuse,
        None if held is None else (held.tokens, held.variance),
    )  # fmt: skip


def main() -> None:
    """Run one history and print it."""
    seed, steps = (int(word) for word in sys.argv[1:])
    print(load.state())
    history = History(seed)
    for number in range(steps):
        history.step()
        if number % 500 == 0:
            print(history.gate.snapshot(history.now_s), history.gate.next_deadline_s())


if __name__ == "__main__":
    main()
