"""Gateways together hold exactly the quota, and never more while it moves."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.assignments import SPLIT_FIELDS, Targets, build, content, encode, must_give_up, must_wait
from fleet.errors import Conflict
from fleet.messages import Assignment, Credential, NodeTarget, TenantShare, parse_assignment
from fleet.policy import Policy, canonical_json, default_policy, parse

NODES = [
    NodeTarget(name=name, pool="main", base_url=f"http://{name}:8000", models=("m",))
    for name in ("n1", "n2")
]
KEYS = [Credential(key_id="k1", sha256="0" * 64, tenant="acme")]


def policy(tokens: int, *tenants: str) -> Policy:
    made = default_policy().as_document()
    made["tenants"] = {
        tenant: {
            "tier": "batch",
            "allowed_tiers": ["batch"],
            "tokens_per_minute": tokens,
            "burst_tokens": tokens // 2,
            "max_in_flight_tokens": tokens * 3 + 1,
            "max_concurrent_requests": 5,
        }
        for tenant in tenants
    }
    return parse(made)


@given(st.integers(0, 10**9), st.integers(1, 12))
def test_shares_add_up_to_the_quota(tokens: int, gateways: int) -> None:
    made = build(policy(tokens, "acme", "b"), 3, [f"gw-{n}" for n in range(gateways)], NODES, KEYS, ["b"])
    for tenant in ("acme", "b"):
        quota = policy(tokens, tenant).tenants[tenant]
        for field in SPLIT_FIELDS:
            parts = [getattr(one.shares[tenant], field) for one in made.values()]
            assert sum(parts) == getattr(quota, field)
            assert max(parts) - min(parts) <= 1
    assert sum(one.kv_share_ratio for one in made.values()) == pytest.approx(1)
    assert {one.shares["b"].over_budget for one in made.values()} == {True}
    assert {one.shares["acme"].over_budget for one in made.values()} == {False}


def test_a_gateway_reads_what_was_built_to_the_same_digest() -> None:
    odd = NodeTarget(name="n3", pool="main", base_url="http://n3:8000", models=('zoë/"x\\',))
    built = build(policy(601, "acme", "b"), 3, ["gw-1", "gw-2"], [*NODES, odd], KEYS, [])
    made, target = built["gw-2"], encode(built)["gw-2"]
    read = parse_assignment(target.body(epoch=4, generation=9))
    assert read == made.model_copy(update={"epoch": 4, "generation": 9})
    assert target.digest == read.digest() == made.digest()
    assert b"{" + b"".join(target.pieces) == canonical_json(content(made))
    stored = json.loads(json.dumps(content(made)))
    assert Assignment.model_validate(stored | {"epoch": 0, "generation": 1}).digest() == made.digest()


def test_order_of_inputs_changes_nothing() -> None:
    one = build(policy(7, "a", "b"), 3, ["gw-1", "gw-2"], NODES, KEYS, [])
    other = build(policy(7, "b", "a"), 3, ["gw-2", "gw-1"], NODES[::-1], KEYS, [])
    assert {name: made.digest() for name, made in one.items()} == {
        name: made.digest() for name, made in other.items()
    }


def test_single_units_of_many_tenants_spread_over_gateways() -> None:
    made = build(policy(1, *(f"t{n}" for n in range(200))), 3, ["gw-1", "gw-2"], [], [], [])
    units = [sum(share.tokens_per_minute for share in one.shares.values()) for one in made.values()]
    assert sum(units) == 200
    assert min(units) > 50


def test_without_gateways_there_is_nothing_to_build_for() -> None:
    with pytest.raises(Conflict):
        build(policy(1, "a"), 1, [], [], [], [])


def share(tokens: int) -> dict[str, TenantShare]:
    return {
        "acme": TenantShare(
            tokens_per_minute=tokens, burst_tokens=0, max_in_flight_tokens=0, max_concurrent_requests=0
        )
    }


def test_a_newcomer_waits_until_others_gave_up_their_part() -> None:
    wanted = {"a": share(200), "b": share(200), "c": share(200)}
    held = {"a": share(300), "b": share(300)}
    assert must_wait(wanted, held) == {"c"}
    assert must_give_up(wanted, held) == {"a", "b"}
    assert must_wait(wanted, {"a": share(200), "b": share(300)}) == {"c"}
    assert must_wait(wanted, {"a": share(200), "b": share(200)}) == set()


def test_a_raised_quota_waits_for_nobody() -> None:
    assert must_wait({"a": share(400), "b": share(400)}, {"a": share(300), "b": share(300)}) == set()
    assert must_wait({"a": share(200), "b": share(200)}, {"a": share(300), "b": share(300)}) == set()


amounts = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 50).map(share), min_size=1)


@given(amounts, amounts)
def test_pushing_whoever_need_not_wait_never_exceeds_the_larger_of_both_totals(
    wanted: dict[str, dict[str, TenantShare]], held: dict[str, dict[str, TenantShare]]
) -> None:
    # Each push alone, whichever comes first: the sum stays within what is desired or what was held before.
    def total(shares: dict[str, dict[str, TenantShare]]) -> int:
        return sum(shares[name]["acme"].tokens_per_minute for name in wanted if name in shares)

    for name in wanted.keys() - must_wait(wanted, held):
        after = held | {name: wanted[name]}
        assert total(after) <= max(total(wanted), total(held))


def test_a_build_is_kept_until_something_it_was_made_from_changes() -> None:
    targets = Targets()
    made = policy(601, "acme")
    first = targets.of(made, 3, ["gw-1", "gw-2"], NODES, KEYS, [])
    assert targets.of(policy(601, "acme"), 3, ["gw-2", "gw-1"], NODES[::-1], KEYS, []) is first
    fresh = build(made, 3, ["gw-1", "gw-2"], NODES, KEYS, [])
    assert {name: target.digest for name, target in first.items()} == {
        name: one.digest() for name, one in fresh.items()
    }
    changed = [
        targets.of(policy(602, "acme"), 3, ["gw-1", "gw-2"], NODES, KEYS, []),
        targets.of(made, 4, ["gw-1", "gw-2"], NODES, KEYS, []),
        targets.of(made, 3, ["gw-1"], NODES, KEYS, []),
        targets.of(made, 3, ["gw-1", "gw-2"], [NODES[0]], KEYS, []),
        targets.of(made, 3, ["gw-1", "gw-2"], NODES, [], []),
        targets.of(made, 3, ["gw-1", "gw-2"], NODES, KEYS, ["acme"]),
    ]
    digests = {first["gw-1"].digest} | {one["gw-1"].digest for one in changed}
    assert len(digests) == 7
