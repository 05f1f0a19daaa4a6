"""A refusal by a rate says what may be used now, which is not what a minute's quota has left."""

from __future__ import annotations

import random

import orjson

from admission.answers import refusal_answer
from fleet.accounts import Account
from fleet.messages import TenantShare
from fleet.offers import Refused
from fleet.policy import TenantPolicy
from fleet.refusals import Refusals

LIMITS = {"max_in_flight_tokens": 10_000, "max_concurrent_requests": 10}


def account(*, rate: int, burst: int) -> Account:
    quota = {"tokens_per_minute": rate, "burst_tokens": burst, **LIMITS}
    policy = TenantPolicy.model_validate({"tier": "interactive", "allowed_tiers": ["interactive"], **quota})
    return Account("acme", policy, TenantShare.model_validate(quota), 0.0)


def refusal(of: Account, tokens: int, now_s: float) -> Refused:
    met = of.exceeded(tokens, now_s)
    assert met is not None
    outcome, limit = met
    return Refusals(random.Random(1)).refuse_quota(of.name, outcome, limit)


def test_what_remains_is_what_the_bucket_holds():
    # 300 a minute are 5 a second; of a burst of 50, 40 are used at 0 s: 10 are there, at 4 s 30
    one = account(rate=300, burst=50)
    one.accept(40)
    for now_s, left in ((0.0, 10), (4.0, 30)):
        refused = refusal(one, 45, now_s)
        answer = refusal_answer(refused)
        headers = dict(answer.headers)
        assert headers[b"x-ratelimit-limit-tokens"] == b"300"
        assert headers[b"x-ratelimit-remaining-tokens"] == b"%d" % left
        assert headers[b"x-ratelimit-reset-tokens"] == b"%.3fs" % ((45 - left) / 5)
        message = orjson.loads(answer.body)["error"]["message"]
        assert f"may use {left} tokens now" in message
        assert "300 a minute" in message
        assert "up to 50 at once" in message


def test_a_request_larger_than_the_burst_is_told_what_it_waits_for():
    # 65 pass only from a full bucket: 50 there; after 60 were used at once it owes 10, which 2 s pay off
    one = account(rate=300, burst=50)
    one.accept(60)
    refused = refusal(one, 65, 0.0)
    assert "passes when 50 are there" in refused.reason
    assert dict(refusal_answer(refused).headers)[b"x-ratelimit-remaining-tokens"] == b"0"
    assert refused.limit is not None
    assert refused.limit.reset_s == 60 / 5
    assert one.exceeded(65, 12.0) is None


def test_a_quota_of_zero_has_nothing_left():
    refused = refusal(account(rate=0, burst=50), 1, 0.0)
    assert "has a quota of 0 tokens per minute: every request is refused" in refused.reason
    assert dict(refusal_answer(refused).headers)[b"x-ratelimit-remaining-tokens"] == b"0"
