"""Every wrong leaf of a policy is refused with its field named; nothing is read as what it is not."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from fleet.errors import InvalidPolicy
from fleet.policy import default_policy, parse

WRONG_TYPES = (None, "1", "NaN", "true", True, [], {}, [None], -1, 10**400)
#: Where one of the wrong types is a right one, by the field's name.
RIGHT = {
    "engine_priority": (-1,),
    "monthly_budget_usd": (None, "1"),
    "default_tenant": (None,),
    "prefix_affinity": (True,),
    "size_classes": ([],),
    "spot_tiers": ([],),
    "name": ("1", "true"),
    "admission": ({},),
    "limiters": ({},),
    "max_waiting_requests": (None,),
    "max_waiting_tokens": (None,),
    "routing": ({},),
    "ejection": ({},),
    "retry_after": ({},),
    "slo": ({},),
}


def full_document() -> dict[str, Any]:
    """Return a valid policy that names every field."""
    document = default_policy().as_document()
    document["tenants"] = {
        "acme": {
            "tier": "batch",
            "allowed_tiers": ["batch"],
            "weight": 2,
            "tokens_per_minute": 1000,
            "burst_tokens": 500,
            "max_in_flight_tokens": 4000,
            "max_concurrent_requests": 4,
            "monthly_budget_usd": "10.00",
            "over_budget": "refuse",
        }
    }
    document["default_tenant"] = "acme"
    document["admission"]["size_classes"] = [{"name": "small", "max_tokens": 900, "kv_share_ratio": 0.5}]
    return document


def paths(part: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every member, parts and leaves."""
    members = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, value in members:
        yield (*at, key)
        yield from paths(value, (*at, key))


def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    document = copy.deepcopy(full_document())
    part = document
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return document


def pointer(path: tuple[Any, ...]) -> str:
    return "".join(f"/{part}" for part in path)


def test_the_full_document_is_valid():
    assert parse(full_document()).tenant("anybody") is not None


@pytest.mark.parametrize("path", list(paths(full_document())), ids=pointer)
def test_a_wrong_type_is_refused_with_its_field(path: tuple[Any, ...]):
    for value in WRONG_TYPES:
        if any(value == right and type(value) is type(right) for right in RIGHT.get(str(path[-1]), ())):
            continue
        for document in (changed(path, value), json.dumps(changed(path, value))):
            with pytest.raises(InvalidPolicy) as refused:
                parse(document)
            said = str(refused.value.field)
            # emptying the tenants is told where the tenant is missed
            is_named = pointer(path).startswith(said) or said.startswith(pointer(path))
            assert said, f"{pointer(path)} = {value!r}: no field named"
            assert is_named or (path == ("tenants",) and said == "/default_tenant")


def test_true_and_text_are_not_numbers():
    for value in (True, "1", "1.0"):
        with pytest.raises(InvalidPolicy) as refused:
            parse(changed(("tiers", "best_effort", "queue_timeout_s"), value))
        assert refused.value.field == "/tiers/best_effort/queue_timeout_s"


def test_an_unknown_default_tenant_is_named():
    with pytest.raises(InvalidPolicy) as refused:
        parse(changed(("default_tenant",), "nobody"))
    assert refused.value.field == "/default_tenant"
    assert "nobody" in refused.value.message


def test_a_name_given_twice_is_refused():
    text = json.dumps(full_document())
    quota = json.dumps(full_document()["tenants"]["acme"])
    with pytest.raises(InvalidPolicy) as refused:
        parse(text.replace('"tenants": {', f'"tenants": {{"acme": {quota}, ', 1))
    assert refused.value.field == "acme"
