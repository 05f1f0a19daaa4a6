"""Splitting a quota by need: exact, never above, monotone, moving only what is free."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.messages import QuotaShare
from fleet.quota_leases import (
    Grip,
    Holder,
    Standing,
    cuts,
    fair_shares,
    grants,
    is_worth_moving,
    share_cuts,
    share_grants,
    share_targets,
    targets,
)
from fleet.quota_shares import FIELDS
from fleet.shares import split

COUNT = st.integers(0, 10**6)


def counts(rate: int, burst: int = 0, in_flight: int = 0, requests: int = 0) -> QuotaShare:
    return QuotaShare(
        tokens_per_minute=rate,
        burst_tokens=burst,
        max_in_flight_tokens=in_flight,
        max_concurrent_requests=requests,
    )


@st.composite
def standings(draw: st.DrawFn, *, all_open: bool = False) -> list[Holder]:
    """Return gateways that share a quota and together claim at most that, some of them out of reach."""
    size = draw(st.integers(1, 7))
    quota = draw(COUNT)
    safe = split(quota, [1] * size)
    weights = draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))
    claims = split(quota, weights) if any(weights) else safe
    return [
        Holder(
            safe[place],
            claims[place] - (draw(st.integers(0, claims[place])) if draw(st.booleans()) else 0),
            draw(st.integers(0, 2 * quota)),
            all_open or draw(st.booleans()),
        )
        for place in range(size)
    ]


@given(COUNT, st.lists(COUNT, min_size=1, max_size=9))
def test_fair_shares_sum_exactly_and_cover_needs_that_fit(total: int, needs: list[int]) -> None:
    shares = fair_shares(total, needs)
    assert sum(shares) == total
    if sum(needs) <= total:
        assert all(share >= need for share, need in zip(shares, needs, strict=True))
    else:  # max-min: who is left short has no less than anybody else, but for the unit that does not split
        most = max(shares)
        assert all(share >= most - 1 for share, need in zip(shares, needs, strict=True) if share < need)


@given(COUNT, st.lists(COUNT, min_size=1, max_size=6), st.data())
def test_no_share_falls_when_its_own_need_rises(total: int, needs: list[int], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(needs) - 1))
    more = [*needs]
    more[place] += data.draw(st.integers(1, 10**6))
    assert fair_shares(total, more)[place] >= fair_shares(total, needs)[place]


@given(standings())
def test_targets_and_claims_of_the_closed_sum_to_the_quota(holders: list[Holder]) -> None:
    wanted = targets(holders)
    assert all(share >= 0 for share in wanted)
    if any(holder.is_open for holder in holders):
        assert sum(wanted) == sum(holder.safe for holder in holders)
    for holder, share in zip(holders, wanted, strict=True):
        assert holder.is_open or share == holder.claim


def test_what_others_hold_below_their_tenth_does_not_turn_a_rising_need_into_a_smaller_share() -> None:
    others = Holder(safe=1_000, claim=0, need=0, is_open=True)
    for need in (2_000, 2_001):  # the other keeps a tenth of 1,000, whether or not 2,000 suffice
        assert targets([Holder(safe=1_000, claim=2_000, need=need, is_open=True), others])[0] == 1_900


@given(standings(all_open=True), st.data())
def test_a_target_never_falls_when_its_need_rises(holders: list[Holder], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(holders) - 1))
    needier = [*holders]
    needier[place] = holders[place]._replace(need=holders[place].need + data.draw(st.integers(1, 10**6)))
    assert targets(needier)[place] >= targets(holders)[place]


@given(standings())
def test_both_waves_hand_out_only_what_is_free(holders: list[Holder]) -> None:
    quota, wanted = sum(holder.safe for holder in holders), targets(holders)
    first = cuts(holders, wanted)
    assert all(share <= holder.claim for share, holder in zip(first, holders, strict=True))
    # Each cut was confirmed or was not: an unconfirmed one is still claimed whole.
    for confirmed in (True, False):
        after = [
            holder._replace(claim=share if confirmed else holder.claim)
            for holder, share in zip(holders, first, strict=True)
        ]
        second = grants(after, wanted)
        assert sum(second) <= quota
        assert all(share >= holder.claim for share, holder in zip(second, after, strict=True))


@given(standings(all_open=True))
def test_confirmed_waves_reach_the_targets(holders: list[Holder]) -> None:
    wanted = targets(holders)
    after = [
        holder._replace(claim=share) for holder, share in zip(holders, cuts(holders, wanted), strict=True)
    ]
    assert grants(after, wanted) == wanted


@given(standings())
def test_where_the_quota_is_overclaimed_it_is_worth_moving(holders: list[Holder]) -> None:
    over = [holder._replace(claim=holder.claim + holder.safe + 1) for holder in holders]
    assert is_worth_moving(over, targets(over))


def test_what_nobody_is_short_of_stays_where_it_is() -> None:
    # 900 + 100 of 1,000, both have enough and the first more than half: moving would only cost messages.
    holders = [Holder(500, 900, 700), Holder(500, 100, 90)]
    assert targets(holders) == (900, 100)
    assert not is_worth_moving(holders, targets(holders))


def test_a_quota_nobody_needs_much_of_returns_to_even_parts() -> None:
    holders = [Holder(500, 900, 10), Holder(500, 100, 20)]
    assert targets(holders) == (500, 500)
    assert is_worth_moving(holders, targets(holders))


def test_the_hot_gateway_gets_what_the_others_leave() -> None:
    # Offered 1.5 x 1,000, 85 % of it at one of four: 1,275 and 75 each. Each keeps at least 25 (a tenth
    # of 250); 75 each is met; the hot one gets the rest.
    holders = [Holder(250, 250, 1_275), *[Holder(250, 250, 75)] * 3]
    assert targets(holders) == (775, 75, 75, 75)


def test_bursts_follow_rates_and_sum_exactly() -> None:
    safe = counts(250, 100, 10_000, 10)
    needs = (1_275, 75, 75, 75)
    made = share_targets([Standing(safe, safe, counts(need)) for need in needs])
    assert [share.burst_tokens for share in made] == [310, 30, 30, 30]  # 400 x 775/1000, 400 x 75/1000
    assert [share.max_in_flight_tokens for share in made] == [10_000] * 4  # nobody needs any: even


@given(st.lists(st.tuples(COUNT, COUNT), min_size=2, max_size=5))
def test_every_count_of_a_quota_sums_exactly_through_both_waves(pairs: list[tuple[int, int]]) -> None:
    quota = 1_000
    safe = [counts(*[part] * 4) for part in split(quota, [1] * len(pairs))]
    now = [Standing(s, s, counts(rate, 0, held, rate)) for s, (rate, held) in zip(safe, pairs, strict=True)]
    goal = share_targets(now)
    cut = [
        standing._replace(claim=share) for standing, share in zip(now, share_cuts(now, goal), strict=True)
    ]
    for field in FIELDS:
        assert sum(getattr(share, field) for share in share_grants(cut, goal)) == quota


@pytest.mark.parametrize(
    ("held", "now_s", "claim"),
    [
        (900, 99.9, 900),  # above the safe share until it ends
        (900, 100.0, 500),
        (100, 84.0, 100),  # below it while it stays so for all of a lease granted now: 84 + 15.5 < 100
        (100, 85.0, 500),
    ],
)
def test_a_claim_counts_what_may_come_before_a_new_lease_ends(held: int, now_s: float, claim: int) -> None:
    grip = Grip(counts(held), ends_s=100.0, rises_s=100.0)
    assert grip.claim(counts(500), now_s).tokens_per_minute == claim
