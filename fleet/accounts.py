"""What each tenant holds at this gateway, against this gateway's part of its quota.

Tokens are counts, times monotonic seconds. A tenant's tokens and requests count from acceptance (queued
or running) to the end. Prevents: a refused request burning quota, a quota cut killing what runs, and a
tenant that is removed and added again finding its burst refilled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from fleet.bucket import RateBucket
from fleet.gate_snapshot import TenantUse
from fleet.limiters import Limiter, Limiters, Mode
from fleet.messages import Assignment, TenantShare
from fleet.offers import Limit
from fleet.outcomes import Outcome, Tier
from fleet.policy import OverBudget, TenantPolicy

_ALL_ENFORCED = Limiters()
#: One object for all tenants that may use the same tiers, so that it stays close at hand.
_SAME_TIERS: Final[dict[tuple[Tier, ...], tuple[Tier, ...]]] = {}


class Account:
    """One tenant's limits and holdings."""

    __slots__ = (
        "allowed_tiers",
        "bucket",
        "ghost_requests",
        "ghost_tokens",
        "is_over_budget",
        "is_rated_elsewhere",
        "max_requests",
        "max_tokens",
        "name",
        "policy",
        "queued",
        "refused_requests",
        "refused_tokens",
        "requests",
        "share",
        "tier",
        "tokens",
        "weight",
    )

    def __init__(self, name: str, policy: TenantPolicy, share: TenantShare, now_s: float) -> None:
        self.name = name
        self.rule(policy, share)
        self.bucket = RateBucket(share.tokens_per_minute, share.burst_tokens, now_s)
        self.requests = 0
        self.queued = 0
        self.tokens = 0
        self.ghost_requests = 0  # of the held: let through by a limit in shadow
        self.ghost_tokens = 0
        self.is_rated_elsewhere = False  # somebody else refuses by its rate; here it is only charged
        self.refused_requests = 0  # by the tenant's limits, since it was made
        self.refused_tokens = 0

    def rule(self, policy: TenantPolicy, share: TenantShare) -> None:
        """Put a policy and a share in force; what each request asks for is kept at hand."""
        self.policy = policy
        self.share = share
        self.tier = policy.tier
        self.allowed_tiers = _SAME_TIERS.setdefault(policy.allowed_tiers, policy.allowed_tiers)
        self.weight = policy.weight
        self.max_requests = share.max_concurrent_requests
        self.max_tokens = share.max_in_flight_tokens
        self.is_over_budget = share.over_budget and policy.over_budget is not OverBudget.WARN

    def admits(self, tokens: int, now_s: float) -> bool:
        """Say whether a request of `tokens` breaks no limit. Uses up nothing; `exceeded` says which."""
        return (
            self.requests < self.max_requests
            and self.tokens + tokens <= self.max_tokens
            and (self.is_rated_elsewhere or self.bucket.admits(tokens, now_s))
        )

    def exceeded(self, tokens: int, now_s: float) -> tuple[Outcome, Limit] | None:
        """Return the limit a request of `tokens` breaks, counted as refused, or None. Uses up nothing."""
        met = self.met(tokens, now_s, _ALL_ENFORCED)
        return met[0][2:] if met else None

    def count_refused(self, tokens: int) -> None:
        """Note what was asked for in vain: the need that a larger share could meet."""
        self.refused_requests += 1
        self.refused_tokens += tokens

    def met(
        self, tokens: int, now_s: float, limiters: Limiters
    ) -> list[tuple[Limiter, Mode, Outcome, Limit]]:
        """Return every limit not switched off that a request of `tokens` would break. Uses up nothing.

        Those of 0 come first, for no wait helps against them, then those of which our part is 0.
        Shadowed ones are measured without the ghosts. Counts the request as refused if one is enforced.
        """
        found: list[tuple[Limiter, Mode, Outcome, Limit]] = []
        share = self.share
        mode = limiters.concurrent_requests
        held = self.requests - (self.ghost_requests if mode is Mode.SHADOW else 0)
        if mode is not Mode.OFF and held >= share.max_concurrent_requests:
            limit = self._requests_limit(held)
            found.append((Limiter.CONCURRENT_REQUESTS, mode, Outcome.REJECTED_QUOTA_REQUESTS, limit))
        mode = limiters.in_flight_tokens
        held = self.tokens - (self.ghost_tokens if mode is Mode.SHADOW else 0)
        if mode is not Mode.OFF and held + tokens > share.max_in_flight_tokens:
            limit = self._tokens_limit(held, tokens)
            found.append((Limiter.IN_FLIGHT_TOKENS, mode, Outcome.REJECTED_QUOTA_TOKENS, limit))
        mode = limiters.tokens_per_minute
        is_looked_at = mode is not Mode.OFF and not self.is_rated_elsewhere
        if is_looked_at and not self.bucket.admits(tokens, now_s):
            found.append(
                (
                    Limiter.TOKENS_PER_MINUTE,
                    mode,
                    Outcome.REJECTED_QUOTA_RATE,
                    self._rate_limit(tokens, now_s),
                )
            )
        if any(mode is Mode.ENFORCE for _, mode, _, _ in found):
            self.count_refused(tokens)
        return sorted(found, key=_zero_first)

    def _requests_limit(self, held: int) -> Limit:
        quota, whole = self.share.max_concurrent_requests, self.policy.max_concurrent_requests
        return Limit("concurrent_requests", quota, held, 1, whole=whole)

    def _tokens_limit(self, held: int, needed: int) -> Limit:
        quota, whole = self.share.max_in_flight_tokens, self.policy.max_in_flight_tokens
        return Limit("in_flight_tokens", quota, held, needed, whole=whole)

    def _rate_limit(self, tokens: int, now_s: float) -> Limit:
        share = self.share
        left = self.bucket.left_tokens(now_s)
        return Limit(
            "tokens_per_minute",
            share.tokens_per_minute,
            used=share.burst_tokens - left,
            needed=tokens,
            reset_s=self.bucket.wait_s(tokens, now_s),
            left=left if share.tokens_per_minute else None,
            whole=self.policy.tokens_per_minute,
        )

    def accept(self, tokens: int, is_ghost: bool = False, is_charged: bool = True) -> None:
        """Hold and charge an accepted request."""
        self.requests += 1
        self.tokens += tokens
        if is_ghost:
            self.ghost_requests += 1
            self.ghost_tokens += tokens
        if is_charged:
            bucket = self.bucket  # as `RateBucket.charge`, which would cost a call for each request
            bucket.charged_tokens += tokens
            bucket.level_tokens -= tokens

    def grow(self, more_tokens: int, *, is_ghost: bool) -> None:
        """Hold more for a request that answers longer than booked."""
        self.tokens += more_tokens
        if is_ghost:
            self.ghost_tokens += more_tokens

    def end(
        self,
        held_tokens: int,
        charged_tokens: int,
        used_tokens: int,
        is_ghost: bool = False,
        is_charged: bool = True,
    ) -> None:
        """Return what was held; settle the rate on what was used (refund or further charge)."""
        self.requests -= 1
        self.tokens -= held_tokens
        if is_ghost:
            self.ghost_requests -= 1
            self.ghost_tokens -= held_tokens
        if not is_charged:
            return
        if used_tokens < charged_tokens:
            self.bucket.refund(charged_tokens - used_tokens)
        elif used_tokens > charged_tokens:
            self.bucket.charge(used_tokens - charged_tokens)

    def use(self, now_s: float) -> TenantUse:
        """Return what is held, for status."""
        over_by = max(0, self.tokens - self.share.max_in_flight_tokens)
        left = self.bucket.left_tokens(now_s)
        over_requests = max(0, self.requests - self.share.max_concurrent_requests)
        return TenantUse(self.requests, self.tokens, self.queued, left, over_by, over_requests)


def _zero_first(met: tuple[Limiter, Mode, Outcome, Limit]) -> tuple[int, bool]:
    limiter, _, _, limit = met
    if limit.quota:
        return 2, False
    return (1 if limit.whole else 0), limiter is not Limiter.TOKENS_PER_MINUTE


class Accounts:
    """All tenants. Removed ones are kept until they hold nothing and their bucket is full."""

    def __init__(self) -> None:
        self.listed: dict[str, Account] = {}  # by tenant
        self._removed: dict[str, Account] = {}
        self._default: str | None = None
        self._lent: dict[str, TenantShare] = {}
        self._elsewhere: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[Account]:
        yield from self.listed.values()
        yield from (account for account in self._removed.values() if account.requests)

    def find(self, tenant: str) -> Account | None:
        """Return the account a tenant's requests count against; None: it must be refused."""
        found = self.listed.get(tenant)
        if found is None and self._default is not None:
            return self.listed[self._default]
        return found

    def by_name(self, name: str) -> Account:
        """Return an account that holds something, whether or not it was removed since."""
        found = self.listed.get(name)
        return self._removed[name] if found is None else found

    def apply(self, assignment: Assignment, now_s: float) -> None:
        """Take in quotas. Levels and holdings carry over; a new tenant starts with a full bucket."""
        self._default = assignment.policy.default_tenant
        before = {**self._removed, **self.listed}
        self.listed = {}
        for name, policy in assignment.policy.tenants.items():
            share = self._in_force(name, assignment.shares[name])
            account = before.pop(name, None)
            if account is None:
                account = Account(name, policy, share, now_s)
            else:
                account.rule(policy, share)
                account.bucket.change(share.tokens_per_minute, share.burst_tokens, now_s)
            account.is_rated_elsewhere = name in self._elsewhere
            self.listed[name] = account
        self._removed = {
            name: account
            for name, account in before.items()
            if account.requests or not account.bucket.is_full(now_s)
        }

    def lend(
        self,
        lent: Mapping[str, TenantShare],
        assigned: Mapping[str, TenantShare],
        now_s: float,
        elsewhere: frozenset[str] = frozenset(),
    ) -> None:
        """Put lent shares in the place of the assigned ones; tenants not named return to theirs.

        Bucket levels never rise by it, and what runs goes on: a smaller share takes effect as it drains.
        `elsewhere` names tenants whose rate somebody else holds them to.
        """
        before, self._lent = self._lent, dict(lent)
        self._elsewhere = elsewhere
        for name in {*before, *lent}:
            account = self.listed.get(name)
            if account is not None and name in assigned:
                account.is_rated_elsewhere = name in elsewhere
                share = self._in_force(name, assigned[name])
                account.rule(account.policy, share)
                account.bucket.change(share.tokens_per_minute, share.burst_tokens, now_s)

    def _in_force(self, name: str, assigned: TenantShare) -> TenantShare:
        """Return the share a tenant has now; whether its budget is spent is the assignment's to say."""
        lent = self._lent.get(name)
        if lent is None or lent.over_budget == assigned.over_budget:
            return assigned if lent is None else lent
        return lent.model_copy(update={"over_budget": assigned.over_budget})

    def levels(self, now_s: float) -> dict[str, int]:
        """Return the tokens left in each bucket that is not full, for `resume` after a restart."""
        everyone = {**self._removed, **self.listed}
        return {
            name: account.bucket.left_tokens(now_s)
            for name, account in everyone.items()
            if not account.bucket.is_full(now_s)
        }

    def resume(self, levels: Mapping[str, int] | None, elapsed_s: float) -> None:
        """Go on from the levels an earlier process left `elapsed_s` ago; None: unknown, all start empty.

        Without this every restart would hand each tenant its burst anew.
        """
        for name, account in self.listed.items():
            if levels is None:
                account.bucket.resume(0, 0.0)
            elif name in levels:
                account.bucket.resume(levels[name], elapsed_s)
