"""What a policy leaves without a node, against what the gate itself says to such requests."""

from __future__ import annotations

from typing import Any

from gate_world import MODEL, assignment, node, open_gate, request, tenant
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.gate import Refused
from fleet.messages import Assignment
from fleet.outcomes import TIERS, Outcome
from fleet.unserved import newly_unserved

SHORT = {"name": "short", "max_tokens": 1_000, "kv_share_ratio": 0.5}
LONG = {"name": "long", "max_tokens": 10_000, "kv_share_ratio": 1.0}

PRICES = ["on_demand", "spot"]


def world(*classes: dict[str, Any], nodes: list[dict[str, Any]]) -> Assignment:
    tiers = [tier.value for tier in TIERS]
    acme = tenant(allowed_tiers=tiers)
    return assignment({"acme": acme}, nodes=nodes, admission={"size_classes": list(classes)})


def said(before: Assignment | None, after: Assignment) -> list[str]:
    return newly_unserved(None if before is None else before.policy, after.policy, after.nodes)


def test_a_class_bound_to_a_models_only_nodes_leaves_its_other_requests_without_one() -> None:
    nodes = [node("n1", pool="a"), node("n2", pool="a")]
    before, after = world(nodes=nodes), world(LONG | {"pool": "a"}, nodes=nodes)
    assert said(before, after) == [
        f"No node of {MODEL} takes requests outside the size classes bound to a: they are refused as "
        "no_nodes, those that wait now as well."
    ]
    assert said(after, after) == []  # it was so already
    assert said(before, world(LONG | {"pool": "a"}, nodes=[*nodes, node("n3", pool="b")])) == []
    draining = node("n3", pool="b", draining=True)
    assert said(before, world(LONG | {"pool": "a"}, nodes=[*nodes, draining])) != []


def test_a_class_bound_to_a_pool_without_the_model_is_named() -> None:
    nodes = [node("n1", pool="a")]
    (line,) = said(world(nodes=nodes), world(SHORT | {"pool": "b"}, nodes=nodes))
    assert line.startswith(f"No node of {MODEL} is in pool b, to which size class short is bound:")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(PRICES)), min_size=1, max_size=3),
    st.sampled_from([None, "a", "b"]),
    st.sampled_from([None, "a", "b"]),
)
def test_it_says_so_of_exactly_what_the_gate_refuses_for_want_of_a_node(
    nodes: list[tuple[str, str]], short: str | None, long: str | None
) -> None:
    made = world(
        SHORT | {"pool": short},
        LONG | {"pool": long},
        nodes=[
            node(f"n{place}", pool=pool, price_class=price) for place, (pool, price) in enumerate(nodes)
        ],
    )
    # 500 tokens are short, 5,000 long, 50,000 in no class. What is refused by tier must be named by tier.
    sizes = {500: "short" if short else "", 5_000: "long" if long else "", 50_000: ""}
    refused = set[tuple[str, str]]()
    for tokens, part in sizes.items():
        for tier in TIERS:
            asked = request(tier=tier, prompt_tokens=tokens - 100, max_tokens=100)
            decision = open_gate(made).offer(asked, 0.0)
            if isinstance(decision, Refused) and decision.outcome is Outcome.NO_NODES:
                refused.add((part, tier.value))
    told = set[tuple[str, str]]()
    for line in said(None, made):
        part = next((name for name in ("short", "long") if f"size class {name} is bound" in line), "")
        named = [tier.value for tier in TIERS if f" {tier.value}" in line.partition(":")[0]]
        told |= {(part, tier) for tier in named or [tier.value for tier in TIERS]}
    assert told == refused
