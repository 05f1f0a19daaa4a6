"""The gate while its world changes: nodes, models, roles, pools of size classes and rules come and go.

Seeded histories of pushes, readings and requests. After every step what is held is the sum of what lives;
at the end, in a world that has room for all, nobody is left behind.
"""

from __future__ import annotations

import random
from typing import Any

import gate_oracles as oracles
import pytest
from gate_world import assignment, node, request, state, tenant

from fleet.gate import Dispatch, Gate, Lease, Queued, Started, Ticket
from fleet.messages import Assignment
from fleet.outcomes import TIERS, Outcome

TENANTS = ("a", "b", "c")
MODELS = ("llama", "adapter", "other")
CAPACITY = 20_000


def any_world(rng: random.Random) -> Assignment:
    """Return an assignment of up to five nodes, of any models, roles, pools and rules."""
    nodes = [
        node(
            f"n{place}",
            models=rng.sample(MODELS, rng.randint(1, 2)),
            pool=rng.choice(("main", "long")),
            role=rng.choice((None, None, None, "decode", "prefill")),
            price_class=rng.choice(("spot", "on_demand")),
            draining=rng.random() < 0.1,
        )
        for place in range(5)
        if rng.random() < 0.7
    ]
    classes: list[dict[str, Any]] = [
        {"name": name, "max_tokens": most, "kv_share_ratio": 1.0, "pool": rng.choice((None, "long"))}
        for name, most in (("short", 2_000), ("large", 100_000))
        if rng.random() < 0.7
    ]
    return assignment(
        {name: tenant(weight=rng.choice((1, 3))) for name in TENANTS if name == "a" or rng.random() < 0.8},
        nodes=nodes,
        tiers={tier: {"max_requeues": rng.choice((0, 3))} for tier in ("batch", "best_effort")},
        kv_share_ratio=rng.choice((1.0, 1.0, 1.0, 1e-6)),
        admission={
            "order": rng.choice(("fifo", "sjf_aging")),
            "reservation": rng.choice(("quantile", "overbook")),
            "size_classes": classes,
        },
        routing={"prefix_affinity": rng.random() < 0.5},
    )


class World:
    """A gate and all that it was told and said."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.gate = Gate(random.Random(seed), prior_output_tokens=400, max_queued_requests=25)
        self.now_s, self.number = 100.0, 0
        self.live: dict[int, Lease] = {}
        self.waiting: dict[int, Ticket] = {}
        self.push(any_world(self.rng))

    def push(self, made: Assignment) -> None:
        self.made = made
        self.gate.apply(made, self.now_s)
        self.observe()

    def observe(self) -> None:
        names = [target.name for target in self.made.nodes]
        self.gate.observe(
            [state(name, self.now_s, kv_capacity_tokens=CAPACITY) for name in names], self.now_s
        )
        self.poll()

    def poll(self) -> None:
        for one in self.gate.recalls.requeued():
            assert self.live.pop(one.lease.lease_id) is one.lease
            self.waiting[one.ticket.ticket_id] = one.ticket
        for event in self.gate.poll(self.now_s):
            del self.waiting[event.ticket.ticket_id]
            if isinstance(event, Started):
                self.live[event.lease.lease_id] = event.lease

    def offer(self) -> None:
        self.number += 1
        asked = request(
            self.number,
            tenant=self.rng.choice(TENANTS),
            tier=self.rng.choice(TIERS),
            model=self.rng.choice(MODELS),
            prompt_tokens=self.rng.choice((0, 50, 700, 3_000, 9_000)),
            max_tokens=self.rng.choice((None, 0, 100, 1_500)),
            prefix_key=self.rng.choice((None, "p")),
        )
        decision = self.gate.offer(asked, self.now_s)
        if isinstance(decision, Dispatch):
            self.live[decision.lease.lease_id] = decision.lease
        elif isinstance(decision, Queued):
            self.waiting[decision.ticket.ticket_id] = decision.ticket
        self.poll()

    def end(self, number: int) -> None:
        usage = {"prompt_tokens": None, "output_tokens": 50, "outcome": Outcome.COMPLETED}
        assert self.gate.release(self.live.pop(number), **usage, now_s=self.now_s)
        self.poll()

    def step(self) -> None:
        chance, rng = self.rng.random(), self.rng
        if chance < 0.04:
            self.push(any_world(rng))
        elif chance < 0.15:
            self.observe()
        elif chance < 0.65:
            self.offer()
        elif chance < 0.75 and self.live:
            self.end(rng.choice(sorted(self.live)))
        elif chance < 0.82 and self.live:
            self.gate.extend(
                self.live[rng.choice(sorted(self.live))], rng.choice((1, 500, 3_000)), self.now_s
            )
        elif chance < 0.87 and self.waiting:
            assert self.gate.cancel(self.waiting.pop(rng.choice(sorted(self.waiting))), self.now_s)
            self.poll()
        else:
            self.now_s += rng.choice((0.0, 0.01, 0.1, 1.5))  # more than one deadline may have passed
            self.poll()
        oracles.g1_in_flight_is_the_sum_of_live_leases(
            self.gate.snapshot(self.now_s), self.live.values(), self.waiting.values()
        )


@pytest.mark.parametrize("seeds", [range(40), range(40, 80)], ids=["first", "second"])
def test_whatever_the_world_becomes_nothing_leaks_and_nobody_is_left_behind(seeds: range) -> None:
    requeued = 0
    for seed in seeds:
        world = World(seed)
        for _ in range(300):
            world.step()
            requeued += sum(one.requeues > 0 for one in world.waiting.values())
        roomy = [node(f"m{place}", models=list(MODELS)) for place in range(40)]
        world.push(assignment({name: tenant() for name in TENANTS}, nodes=roomy))
        assert not world.waiting  # each had a node that could take it at once
        for number in sorted(world.live):
            world.end(number)
        snapshot = world.gate.snapshot(world.now_s)
        assert (snapshot.in_flight_requests, snapshot.in_flight_tokens) == (0, 0)
        assert set(snapshot.nodes) == {
            target.name for target in world.made.nodes
        }  # those that left are gone
        assert all(use.requests == use.tokens == 0 for use in snapshot.tenants.values())
        assert world.gate.next_deadline_s() is None
    assert requeued > 0
