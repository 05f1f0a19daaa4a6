"""What each tenant could use at one gateway, from what it was asked for lately. Pure.

Tokens and requests are counts, times monotonic seconds. A need is a figure to size a share by, not a
promise: what was refused counts, so that a share too small to show its own need still grows. Prevents: a
share sized by what a small share let through.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fleet.accounts import Accounts
from fleet.messages import QuotaShare, QuotaUse
from fleet.quota_shares import NOTHING, counts_of

#: Looks closer together than this say the same again.
_SHORTEST_S = 1.0
#: What is asked for is averaged over about so many looks (every few seconds) while it moves by less than
#: this part of the whole quota: small streams come in fits. A larger change counts at once.
_LOOKS = 4
_JUMP = 0.1
#: Shares are sized somewhat above what was used.
_HEADROOM = 1.1


class _Seen(NamedTuple):
    charged_tokens: int
    refused_tokens: int
    refused_requests: int


class Needs:
    """The needs of one gateway's tenants, from one look to the next."""

    def __init__(self) -> None:
        self._at_s: float | None = None
        self._seen: dict[str, _Seen] = {}
        self._needs: dict[str, QuotaShare] = {}

    def uses(self, accounts: Accounts, held: Mapping[str, QuotaShare], now_s: float) -> dict[str, QuotaUse]:
        """Return share and need of each tenant that needs anything, or is in `held`: with that share."""
        if self._at_s is None or now_s - self._at_s >= _SHORTEST_S:
            self._look(accounts, now_s)
        return {
            account.name: QuotaUse.model_construct(
                share=held.get(account.name) or counts_of(account.share),
                need=self._needs.get(account.name, NOTHING),
                held_tokens=account.tokens,
                held_requests=account.requests,
            )
            for account in accounts
            if account.name in self._needs or account.name in held
        }

    def _look(self, accounts: Accounts, now_s: float) -> None:
        passed_s = 0.0 if self._at_s is None else now_s - self._at_s
        self._at_s = now_s
        seen: dict[str, _Seen] = {}
        needs: dict[str, QuotaShare] = {}
        for account in accounts:
            was = self._seen.get(account.name, _Seen(0, 0, 0))
            now = _Seen(account.bucket.charged_tokens, account.refused_tokens, account.refused_requests)
            seen[account.name] = now
            if now == was and not account.requests and account.name not in self._needs:
                continue
            before = self._needs.get(account.name, NOTHING)
            refused_tokens = now.refused_tokens - was.refused_tokens
            asked = now.charged_tokens - was.charged_tokens + refused_tokens
            quota = account.policy
            need = QuotaShare.model_construct(
                tokens_per_minute=_sized(
                    asked * 60 / passed_s if passed_s else 0.0,
                    before.tokens_per_minute,
                    quota.tokens_per_minute,
                ),
                burst_tokens=0,
                max_in_flight_tokens=_sized(
                    account.tokens + refused_tokens, before.max_in_flight_tokens, quota.max_in_flight_tokens
                ),
                max_concurrent_requests=_sized(
                    account.requests + now.refused_requests - was.refused_requests,
                    before.max_concurrent_requests,
                    quota.max_concurrent_requests,
                ),
            )
            if need != NOTHING:
                needs[account.name] = need
        self._seen, self._needs = seen, needs


def _sized(asked: float, before: int, quota: int) -> int:
    """Return a need from what was asked for now and the need before; the quota is the most."""
    wanted = min(asked * _HEADROOM, quota)
    if abs(wanted - before) > quota * _JUMP:
        return max(0, int(wanted))
    return max(0, int(before + (wanted - before) / _LOOKS))
