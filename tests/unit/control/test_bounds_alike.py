"""A document at a bound passes everywhere, one above it nowhere (I20), and says which field it is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from control.assignments import build, encode
from fleet.errors import InvalidPolicy
from fleet.messages import parse_assignment
from fleet.policy import MAX_QUEUED_REQUESTS, MAX_TENANTS, canonical_json, default_policy, parse
from tests.oracles import history as h
from tests.oracles.history import History
from tests.oracles.invariants import i20_bounded_policy

TENANT = {
    "tier": "interactive",
    "allowed_tiers": ["interactive"],
    "tokens_per_minute": 1,
    "burst_tokens": 1,
    "max_in_flight_tokens": 1,
    "max_concurrent_requests": 1,
}


def tenants(document: dict[str, Any], above: int) -> None:
    document["tenants"] = {f"t{number}": TENANT for number in range(MAX_TENANTS + above)}


def queued(document: dict[str, Any], above: int) -> None:
    document["tiers"]["batch"]["max_queued_requests"] = MAX_QUEUED_REQUESTS // 3 + above


def classes(document: dict[str, Any], above: int) -> None:
    document["admission"]["size_classes"] = [
        {"name": f"c{number}", "max_tokens": 1_000 * (number + 1), "kv_share_ratio": 0.5}
        for number in range(8 + above)
    ]


def requests(document: dict[str, Any], above: int) -> None:
    document["tenants"] = {"acme": TENANT | {"max_concurrent_requests": 1_000_000 + above}}


BOUNDS: dict[str, Callable[[dict[str, Any], int], None]] = {
    "tenants": tenants,
    "queued requests": queued,
    "size classes": classes,
    "concurrent requests": requests,
}


def at_the_gateway(document: dict[str, Any]) -> None:
    """Send the document to a gateway inside an assignment that is right otherwise."""
    made = encode(build(default_policy(), 1, ["gw-1"], [], [], ()))["gw-1"]
    body = made.body(epoch=1, generation=1)
    before = canonical_json(default_policy().as_document())
    assert before in body
    share = {name: 1 for name in TENANT if name.startswith(("tokens", "burst", "max"))}
    shares = canonical_json({name: share | {"over_budget": False} for name in document["tenants"]})
    body = body.replace(before, canonical_json(document)).replace(b'"shares":{}', b'"shares":' + shares)
    parse_assignment(body)


@pytest.mark.parametrize("name", BOUNDS)
def test_a_bound_is_the_same_where_it_is_typed_and_where_it_is_enforced(name: str) -> None:
    seen = History(name)
    for above in (0, 1):
        document = default_policy().as_document()
        BOUNDS[name](document, above)
        for place, read in (("commands", parse), ("gateway", at_the_gateway)):
            is_accepted = True
            try:
                read(document)
            except InvalidPolicy as exc:
                is_accepted = not exc.field  # a refusal without its field is none
            seen.add(h.Bounded(name, place, is_above=bool(above), is_accepted=is_accepted))
    i20_bounded_policy(seen)
