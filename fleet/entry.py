"""Whether a request may enter at all: access, a spent budget, and the limits of its tenant.

Tokens are counts, times monotonic seconds. Prevents: a tenant that uses a tier it was not given, and a
limit switched to shadow that refuses all the same.
"""

from __future__ import annotations

from fleet.accounts import Account, Accounts
from fleet.limiters import Limiter, Limiters, Mode
from fleet.offers import Limit, Refused, Request, Ticket
from fleet.outcomes import Outcome, Tier
from fleet.policy import OverBudget, Policy
from fleet.refusals import Refusals

NOTHING: tuple[Limiter, ...] = ()


class Entry:
    """The first look at each request."""

    def __init__(self, accounts: Accounts, refusals: Refusals) -> None:
        self._accounts = accounts
        self._refusals = refusals
        self._is_draining = False
        self.is_shut = True  # draining, or without a policy
        self.policy: Policy | None = None
        self.limiters: Limiters | None = None  # None: all are enforced

    def apply(self, policy: Policy) -> None:
        """Put a policy in force."""
        self.policy = policy
        self.limiters = None if policy.limiters.all_enforced else policy.limiters
        self.is_shut = self._is_draining

    def drain(self) -> None:
        """Refuse every new request from now on."""
        self._is_draining = self.is_shut = True

    def standing(self, request: Request) -> Refused | tuple[Account, Tier, tuple[Limiter, ...]]:
        """Return whose quota and tier a request counts in and what it met, or why it may not enter."""
        refuse = self._refusals.refuse
        if self._is_draining:
            return refuse(Outcome.DRAINING, "this gateway is shutting down")
        policy = self.policy
        if policy is None:
            return refuse(Outcome.NO_NODES, "this gateway holds no assignment yet")
        account = self._accounts.find(request.tenant)
        if account is None:
            return refuse(Outcome.REJECTED_TIER, f"tenant {request.tenant} is not in the policy")
        tier = account.tier if request.tier is None else request.tier
        if tier not in account.allowed_tiers:
            allowed = ", ".join(account.allowed_tiers)
            reason = f"tenant {account.name} may use {allowed}, not {tier}"
            return refuse(Outcome.REJECTED_TIER, reason)
        if account.is_over_budget:
            mode = Mode.ENFORCE if self.limiters is None else self.limiters.monthly_budget
            if mode is not Mode.ENFORCE:
                return account, tier, (Limiter.MONTHLY_BUDGET,) if mode is Mode.SHADOW else NOTHING
            if account.policy.over_budget is OverBudget.REFUSE:
                reason = _budget_reason(account)
                base_s = float(policy.retry_after.cap_s)
                return refuse(Outcome.REJECTED_QUOTA_BUDGET, reason, base_s=base_s)
            tier = Tier.BEST_EFFORT
        return account, tier, NOTHING

    def exceeded(self, ticket: Ticket, now_s: float) -> tuple[Outcome, Limit] | None:
        """Return the first enforced limit of the tenant that is met; note shadowed ones on the ticket."""
        limiters = self.limiters
        if limiters is None:
            return ticket.holder.exceeded(ticket.tokens, now_s)
        met = ticket.holder.met(ticket.tokens, now_s, limiters)
        for _, mode, outcome, limit in met:
            if mode is Mode.ENFORCE:
                return outcome, limit
        ticket.would_refuse += tuple(limiter for limiter, *_ in met)
        ticket.is_ghost = bool(met)
        rate = limiters.tokens_per_minute
        ticket.is_charged = rate is Mode.ENFORCE or (rate is Mode.SHADOW and not met)
        return None


def _budget_reason(account: Account) -> str:
    name, budget = account.name, account.policy.monthly_budget_usd
    if budget is not None and not budget:
        return f"tenant {name} has a monthly budget of 0 USD: every request is refused until it is raised"
    amount = "" if budget is None else f" of {budget} USD"
    return f"tenant {name} has spent its monthly budget{amount}: refused until the month ends"
