"""Who asks is the same at the first request and at every later one, however the headers are written."""

from __future__ import annotations

import hashlib

import pytest

from admission.identity import Headers, KeyRing, caller_of
from fleet.errors import InvalidInput, Unauthenticated
from fleet.messages import Credential
from fleet.outcomes import Tier
from fleet.policy import Policy, default_policy

KEY = b"rk-secret"
SENT = (b"authorization", b"Bearer " + KEY)


def ring() -> KeyRing:
    return KeyRing([Credential(key_id="k1", sha256=hashlib.sha256(KEY).hexdigest(), tenant="acme")])


@pytest.fixture(name="policy", scope="module")
def of_one_tenant() -> Policy:
    document = default_policy().as_document()
    document["tenants"] = {
        "acme": {
            "tier": "batch",
            "allowed_tiers": ["batch", "interactive"],
            "tokens_per_minute": 1_000,
            "burst_tokens": 1_000,
            "max_in_flight_tokens": 1_000,
            "max_concurrent_requests": 10,
        }
    }
    return Policy.model_validate(document)


@pytest.mark.parametrize("sent", [b"Bearer rk-secret", b"bearer  rk-secret", b" BEARER rk-secret "])
def test_a_key_that_was_seen_is_whose_it_was(policy: Policy, sent: bytes) -> None:
    keys = ring()
    headers: Headers = [(b"host", b"x"), (b"authorization", sent)]
    first, second = caller_of(headers, keys, policy), caller_of(headers, keys, policy)
    assert (first.tenant, first.key_id, first.tier) == ("acme", "k1", Tier.BATCH)
    assert second is first


def test_the_tier_asked_for_is_no_part_of_what_another_request_gets(policy: Policy) -> None:
    keys = ring()
    asked = caller_of([SENT, (b"x-rhodeck-tier", b"Interactive")], keys, policy)
    plain = caller_of([SENT], keys, policy)
    assert (asked.tier, plain.tier) == (Tier.INTERACTIVE, Tier.BATCH)


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ([SENT], InvalidInput),
        ([(b"authorization", b"Bearer another")], InvalidInput),
        ([(b"x-rhodeck-tier", b"batch"), (b"x-rhodeck-tier", b"interactive")], InvalidInput),
        ([(b"x-rhodeck-tier", b"gold")], InvalidInput),
    ],
)
def test_a_key_that_was_seen_excuses_no_faulty_headers(
    policy: Policy, more: Headers, error: type[Exception]
) -> None:
    keys = ring()
    caller_of([SENT], keys, policy)
    for _ in range(2):
        with pytest.raises(error):
            caller_of([SENT, *more], keys, policy)


@pytest.mark.parametrize("value", [b"Bearer rk-secreT", b"Bearer", b"Basic rk-secret", b"rk-secret"])
def test_what_is_not_the_key_is_nobody(policy: Policy, value: bytes) -> None:
    keys = ring()
    caller_of([SENT], keys, policy)
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            caller_of([(b"authorization", value)], keys, policy)


def test_no_key_is_kept(policy: Policy) -> None:
    keys = ring()
    caller_of([SENT], keys, policy)
    assert KEY not in repr(vars(keys)).encode()
