"""Nobody starves: the theorem of start-time fair queueing, held at every start of a backlogged gate.

While two flows are backlogged, the tokens each started by its weight differ by at most one largest request
of each, by its weight. Source: Goyal, Vin, Cheng, "Start-time Fair Queuing" (SIGCOMM 1996), theorem 1.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

from gate_world import Server, assignment, node, open_gate, request, tenant
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.gate import Dispatch, Lease, Queued
from fleet.outcomes import TIERS

SIZES = st.lists(st.integers(1, 5_000), min_size=60, max_size=60)
TENANTS = ("a", "b", "c")


def held_at_every_start(
    started: list[Lease], key: Callable[[Lease], str], weights: dict[str, int], largest: dict[str, int]
) -> None:
    """Check each pair over every interval that ends at a start, from the beginning on."""
    served = dict.fromkeys(weights, 0)
    for lease in started:
        served[key(lease)] += lease.tokens
        for one, other in combinations(weights, 2):
            apart = abs(served[one] / weights[one] - served[other] / weights[other])
            assert apart <= largest[one] / weights[one] + largest[other] / weights[other]


def one_at_a_time(server: Server, asked: list[dict[str, object]], sizes: list[int]) -> list[Lease]:
    """Queue requests behind one that runs, end one after the other; return starts until a flow is empty."""
    held = server.offer(request(tenant="filler"))
    assert isinstance(held, Dispatch)
    for number, size in enumerate(sizes):
        changes = asked[number % len(asked)]
        queued = server.offer(request(number, prompt_tokens=size, max_tokens=0, **changes))
        assert isinstance(queued, Queued)
    server.started.clear()
    per_flow = len(sizes) // len(asked)
    left = {str(one): per_flow for one in asked}
    names = {str(number): str(asked[number % len(asked)]) for number in range(len(sizes))}
    while True:
        server.step(0.01)
        flow = names[server.started[-1].request.request_id[1:]]
        left[flow] -= 1
        if not left[flow]:
            return server.started


def slot() -> dict[str, object]:
    return node("n1", max_num_seqs=1, kv_capacity_tokens=10**6)


@settings(max_examples=60, deadline=None)
@given(sizes=SIZES, interactive=st.integers(1, 97), batch=st.integers(1, 97))
def test_tiers_stay_within_one_request_of_their_shares(sizes: list[int], interactive: int, batch: int):
    batch = min(batch, 99 - interactive)
    shares = (interactive, batch, 100 - interactive - batch)
    tiers = {
        tier.value: {"weight": weight, "queue_timeout_s": 600}
        for tier, weight in zip(TIERS, shares, strict=True)
    }
    tenants = {"acme": tenant(), "filler": tenant()}
    made = assignment(tenants, nodes=[slot()], tiers=tiers, admission={"order": "fifo"})
    started = one_at_a_time(Server(open_gate(made)), [{"tier": tier} for tier in TIERS], sizes)
    weights = {tier.value: weight for tier, weight in zip(TIERS, shares, strict=True)}
    largest = {tier.value: max(sizes[place::3]) for place, tier in enumerate(TIERS)}
    # the filler's 1,000 tokens started first, in its own tier
    largest["interactive"] = max(largest["interactive"], 1_000)
    held_at_every_start(started, lambda lease: lease.tier.value, weights, largest)


@settings(max_examples=60, deadline=None)
@given(
    sizes=SIZES,
    weights=st.tuples(*[st.integers(1, 50)] * 3),
    order=st.sampled_from(("fifo", "sjf_aging")),
)
def test_tenants_of_a_tier_stay_within_one_request_of_their_shares(
    sizes: list[int], weights: tuple[int, int, int], order: str
):
    by_name: dict[str, int] = dict(zip(TENANTS, weights, strict=True))
    tenants = {name: tenant(weight=weight) for name, weight in by_name.items()} | {"filler": tenant()}
    tiers = {tier.value: {"queue_timeout_s": 600} for tier in TIERS}
    made = assignment(tenants, nodes=[slot()], tiers=tiers, admission={"order": order})
    started = one_at_a_time(Server(open_gate(made)), [{"tenant": name} for name in TENANTS], sizes)
    largest = {name: max(sizes[place::3]) for place, name in enumerate(TENANTS)}
    held_at_every_start(started, lambda lease: lease.account, by_name, largest)
