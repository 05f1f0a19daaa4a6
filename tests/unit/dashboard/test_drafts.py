"""Policy drafts: what they change, and how they meet what others published meanwhile."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard import drafts
from fleet.errors import InvalidPolicy
from fleet.policy import default_policy, differences, parse


def document(**tokens_per_minute: int) -> dict[str, Any]:
    base = default_policy().as_document()
    base["tenants"] = {
        name: {
            "tier": "interactive",
            "allowed_tiers": ["interactive"],
            "tokens_per_minute": tokens,
            "burst_tokens": 1,
            "max_in_flight_tokens": 1,
            "max_concurrent_requests": 1,
        }
        for name, tokens in tokens_per_minute.items()
    }
    return parse(base).as_document()


def with_tokens(base: dict[str, Any], tenant: str, tokens: int) -> dict[str, Any]:
    changed = copy.deepcopy(base)
    changed["tenants"][tenant]["tokens_per_minute"] = tokens
    return changed


def test_a_review_lists_only_what_was_changed() -> None:
    base = document(acme=100, beta=200)
    found = drafts.review(base, with_tokens(base, "acme", 150), base)
    assert [(c.pointer, c.old, c.new) for c in found.changes] == [
        ("/tenants/acme/tokens_per_minute", 100, 150)
    ]
    assert found.problem is None


def test_a_field_both_changed_is_a_conflict_and_one_only_they_changed_is_not() -> None:
    base = document(acme=100, beta=200)
    head = with_tokens(with_tokens(base, "acme", 120), "beta", 250)
    found = drafts.review(base, with_tokens(base, "acme", 150), head)
    assert [(c.new, c.theirs, c.is_conflict) for c in found.changes] == [(150, 120, True)]


def test_moving_a_draft_keeps_their_changes_and_makes_mine_again() -> None:
    base = document(acme=100, beta=200)
    head = with_tokens(base, "beta", 250)
    moved = drafts.moved_to(head, base, with_tokens(base, "acme", 150))
    assert moved == with_tokens(head, "acme", 150)


def test_moving_a_draft_repeats_removals_and_additions() -> None:
    base, head = document(acme=100, beta=200), document(acme=100, beta=200, gamma=300)
    draft = document(acme=100, delta=400)
    assert drafts.moved_to(head, base, draft)["tenants"].keys() == {"acme", "gamma", "delta"}


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 9), min_size=1), st.data())
def test_a_draft_moved_onto_its_own_base_is_itself(tokens: dict[str, int], data: st.DataObject) -> None:
    base = document(**tokens)
    draft = document(**data.draw(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 9), min_size=1)))
    assert differences(drafts.moved_to(base, base, draft), draft) == []


def test_weights_that_do_not_sum_name_the_field() -> None:
    base = document(acme=100)
    draft = drafts.with_tiers(base, {("interactive", "weight"): 60})
    problem = drafts.review(base, draft, base).problem
    assert problem is not None
    assert "sum to 90" in problem.message
    assert (problem.field or "").startswith("/tiers")


def test_the_quota_table_gives_back_the_document_it_was_made_from() -> None:
    base = document(acme=100, beta=200)
    rows = drafts.quota_rows(base)
    assert [row["tenant"] for row in rows] == ["acme", "beta"]
    assert differences(base, drafts.with_quotas(base, rows)) == []


def test_a_new_row_is_a_new_tenant_that_the_policy_accepts() -> None:
    base = document(acme=100)
    new = {
        "tenant": "gamma",
        "tier": "batch",
        "tokens_per_minute": 5.0,  # a table may hand over whole numbers as floats
        "burst_tokens": 1,
        "max_in_flight_tokens": 1,
        "max_concurrent_requests": 1,
        "weight": None,
        "monthly_budget_usd": float("nan"),
        "over_budget": "warn",
    }
    edited = drafts.with_quotas(base, [*drafts.quota_rows(base), new])
    gamma = parse(edited).tenants["gamma"]
    assert (gamma.tokens_per_minute, gamma.weight, gamma.monthly_budget_usd) == (5, 1, None)


@pytest.mark.parametrize("name", [None, "", "  ", "acme"])
def test_rows_without_a_name_or_named_twice_are_refused(name: str | None) -> None:
    base = document(acme=100)
    with pytest.raises(InvalidPolicy):
        drafts.with_quotas(base, [*drafts.quota_rows(base), {"tenant": name}])
