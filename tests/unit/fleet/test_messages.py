"""A gateway takes no assignment it could not be brought away from, and names the field it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleet.errors import InvalidPolicy
from fleet.messages import MAX_COUNTER, parse_assignment
from fleet.policy import default_policy


def document() -> dict[str, Any]:
    policy = default_policy().as_document()
    quota = {
        "tokens_per_minute": 9,
        "burst_tokens": 9,
        "max_in_flight_tokens": 9,
        "max_concurrent_requests": 9,
    }
    policy["tenants"] = {"acme": {"tier": "batch", "allowed_tiers": ["batch"], **quota}}
    return {
        "gateway": "gw-1",
        "epoch": 1,
        "generation": 1,
        "revision": 1,
        "policy": policy,
        "shares": {"acme": quota},
        "kv_share_ratio": 0.5,
        "nodes": [{"name": "n1", "pool": "p", "base_url": "http://127.0.0.1:1", "models": ["m"]}],
        "credentials": [{"key_id": "k", "sha256": "0" * 64, "tenant": "acme"}],
    }


def refusal(**changes: Any) -> str | None:
    with pytest.raises(InvalidPolicy) as refused:
        parse_assignment(json.dumps(document() | changes).encode())
    return refused.value.field


def test_what_is_sent_is_what_is_read():
    first = parse_assignment(json.dumps(document()).encode())
    assert parse_assignment(first.model_dump_json(by_alias=True).encode()) == first


@pytest.mark.parametrize("field", ["epoch", "generation"])
def test_no_counter_is_taken_that_no_controller_could_pass(field: str):
    # The controller overtakes what a gateway holds by one; JSON's exact integers end at 2^53.
    assert parse_assignment(json.dumps(document() | {field: MAX_COUNTER}).encode())
    for value in (MAX_COUNTER + 1, 2**63, 10**400, -1, "1", True, None):
        assert refusal(**{field: value}) == f"/{field}"


def test_a_tenant_without_a_share_is_told_at_the_shares():
    assert refusal(shares={}) == "/shares"


@pytest.mark.parametrize(
    ("part", "change", "pointer"),
    [
        ("nodes", {"models": []}, "/nodes/0/models"),
        ("nodes", {"models": ["a\x00b"]}, "/nodes/0/models/0"),
        ("nodes", {"models": ["m" * 201]}, "/nodes/0/models/0"),
        ("nodes", {"draining": "1"}, "/nodes/0/draining"),
        ("nodes", {"kv_capacity_tokens": 10**30}, "/nodes/0/kv_capacity_tokens"),
        ("nodes", {"max_num_seqs": True}, "/nodes/0/max_num_seqs"),
        ("credentials", {"key_id": ""}, "/credentials/0/key_id"),
        ("credentials", {"key_id": "a\nb"}, "/credentials/0/key_id"),
    ],
)
def test_a_part_that_cannot_be_used_is_refused(part: str, change: dict[str, Any], pointer: str):
    assert refusal(**{part: [document()[part][0] | change]}) == pointer
