"""The policy's knobs as the editor has them: all, with the policy's own bounds, and changes in words."""

from __future__ import annotations

import pytest

from dashboard import drafts, policy_knobs
from dashboard.drafts import Difference
from dashboard.policy_knobs import Knob, change_words
from fleet.errors import InvalidPolicy
from fleet.limiters import Limiter
from fleet.policy import Routing, default_policy, parse


def test_every_limit_has_a_switch_with_all_its_modes() -> None:
    knobs = {knob.path[-1]: knob for knob in policy_knobs.limiter_knobs()}
    assert set(knobs) == {limiter.value for limiter in Limiter}
    assert {knob.options for knob in knobs.values()} == {("enforce", "shadow", "off")}


def test_every_knob_of_routing_can_be_turned_within_the_policys_own_bounds() -> None:
    knobs = policy_knobs.routing_knobs()
    parts = {knob.path[1] for knob in knobs}
    assert parts == set(Routing.model_fields)  # a new field of routing that is no knob fails here
    document = default_policy().as_document()
    for knob in knobs:
        assert knob.value_in(document) == knob.default
        for value in ends(knob):
            edited = drafts.with_values(document, {knob.path: value})
            assert knob.value_in(parse(edited).as_document()) == value
        for value in beyond(knob):
            with pytest.raises(InvalidPolicy, match=knob.path[-1]):
                parse(drafts.with_values(document, {knob.path: value}))


def ends(knob: Knob) -> list[object]:
    if knob.kind in ("whole", "real"):
        of = int if knob.kind == "whole" else float
        return [of(end) for end in (knob.low, knob.high) if end is not None]
    if knob.kind == "choices":
        return [[knob.options[0]], list(knob.options)]
    return [True, False] if knob.kind == "flag" else list(knob.options)


def beyond(knob: Knob) -> list[object]:
    if knob.kind not in ("whole", "real"):
        return []
    of = int if knob.kind == "whole" else float
    low = [] if knob.low is None else [of(knob.low) - of(1)]
    return low + ([] if knob.high is None else [of(knob.high) + of(1)])


def test_only_what_differs_is_written_also_into_documents_of_earlier_releases() -> None:
    old = default_policy().as_document()
    del old["limiters"], old["routing"]["ejection"]
    knobs = [*policy_knobs.limiter_knobs(), *policy_knobs.routing_knobs()]
    untouched = {knob.path: knob.default for knob in knobs}
    assert policy_knobs.changed(old, knobs, untouched) == {}
    turned = untouched | {("limiters", "queue_length"): "off", ("routing", "ejection", "base_s"): 9.0}
    written = policy_knobs.changed(old, knobs, turned)
    assert written == {("limiters", "queue_length"): "off", ("routing", "ejection", "base_s"): 9.0}
    edited = parse(drafts.with_values(old, written))
    assert (edited.limiters.queue_length.value, edited.routing.ejection.base_s) == ("off", 9.0)


def test_a_change_says_what_it_does() -> None:
    off = change_words(Difference("/limiters/queue_length", "enforce", "off"))
    assert off == "queue length is switched off: nothing is held against it"
    assert "counts what it would have refused" in change_words(
        Difference("/limiters/node_room", "enforce", "shadow")
    )
    assert "one store at each request" in change_words(
        Difference("/tenants/ac~1me/quota_mode", "leases", "exact")
    )
    assert change_words(Difference("/tenants/acme/tokens_per_minute", 900, 100)).startswith(
        "Lowered: Sustained"
    )
    assert change_words(Difference("/routing/ejection/max_s", 60.0, 90.0)).startswith(
        "Raised: Longest time"
    )
    assert change_words(Difference("/tenants/acme/monthly_budget_usd", None, "5.00")).startswith(
        "Set: Spend"
    )
    assert change_words(Difference("/nowhere", 1, None)) == "Removed"


def test_the_quota_table_knows_how_quotas_are_shared_and_leaves_old_documents_as_they_are() -> None:
    document = default_policy().as_document()
    document["tenants"] = {
        "acme": {
            "tier": "batch",
            "allowed_tiers": ["batch"],
            "tokens_per_minute": 1,
            "burst_tokens": 1,
            "max_in_flight_tokens": 1,
            "max_concurrent_requests": 1,
        }
    }
    rows = drafts.quota_rows(document)
    assert rows[0]["quota_mode"] == "leases"
    same = drafts.with_quotas(document, rows)["tenants"]["acme"]
    assert "quota_mode" not in same
    exact = drafts.with_quotas(document, [rows[0] | {"quota_mode": "exact"}])["tenants"]["acme"]
    assert exact["quota_mode"] == "exact"
