"""The four counts of a quota and what is done with them one by one. Pure.

Tokens and requests are counts. Prevents: one count of a share taken from another moment than the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fleet.messages import QuotaShare, QuotaUse

#: The counts of a quota.
FIELDS = ("tokens_per_minute", "burst_tokens", "max_in_flight_tokens", "max_concurrent_requests")


class Counted(Protocol):
    """What has the counts: a share, an assigned share, a tenant's policy."""

    @property
    def tokens_per_minute(self) -> int: ...
    @property
    def burst_tokens(self) -> int: ...
    @property
    def max_in_flight_tokens(self) -> int: ...
    @property
    def max_concurrent_requests(self) -> int: ...


NOTHING = QuotaShare(tokens_per_minute=0, burst_tokens=0, max_in_flight_tokens=0, max_concurrent_requests=0)


def counts_tuple(one: Counted) -> tuple[int, int, int, int]:
    """Return the counts in the order of `FIELDS`."""
    return (
        one.tokens_per_minute,
        one.burst_tokens,
        one.max_in_flight_tokens,
        one.max_concurrent_requests,
    )


def counts_of(one: Counted) -> QuotaShare:
    """Return the counts alone."""
    return QuotaShare.model_construct(
        tokens_per_minute=one.tokens_per_minute,
        burst_tokens=one.burst_tokens,
        max_in_flight_tokens=one.max_in_flight_tokens,
        max_concurrent_requests=one.max_concurrent_requests,
    )


def in_use(use: QuotaUse) -> QuotaShare:
    """Return what runs and waits now, of the counts that are held and not spent."""
    if not use.held_requests and not use.held_tokens:
        return NOTHING
    return NOTHING.model_copy(
        update={"max_in_flight_tokens": use.held_tokens, "max_concurrent_requests": use.held_requests}
    )


def is_same(one: Counted, other: Counted) -> bool:
    """Say whether all counts are equal."""
    return (
        one.tokens_per_minute == other.tokens_per_minute
        and one.burst_tokens == other.burst_tokens
        and one.max_in_flight_tokens == other.max_in_flight_tokens
        and one.max_concurrent_requests == other.max_concurrent_requests
    )


def is_above(one: Counted, other: Counted) -> bool:
    """Say whether any count of the one is above that of the other."""
    return (
        one.tokens_per_minute > other.tokens_per_minute
        or one.burst_tokens > other.burst_tokens
        or one.max_in_flight_tokens > other.max_in_flight_tokens
        or one.max_concurrent_requests > other.max_concurrent_requests
    )


def least(one: Counted, other: Counted) -> QuotaShare:
    """Return the smaller of each count."""
    return _each(min, one, other)


def most(one: Counted, other: Counted) -> QuotaShare:
    """Return the larger of each count."""
    return _each(max, one, other)


def raised(held: QuotaShare, claim: QuotaShare, share: QuotaShare) -> QuotaShare:
    """Return what is held with the counts of `share` that are above the claim."""
    return QuotaShare(
        **{
            part: getattr(share if getattr(share, part) > getattr(claim, part) else held, part)
            for part in FIELDS
        }
    )


def _each(choose: Callable[[int, int], int], one: Counted, other: Counted) -> QuotaShare:
    return QuotaShare(**{part: choose(getattr(one, part), getattr(other, part)) for part in FIELDS})
