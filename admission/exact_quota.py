"""Quotas counted exactly, in one store that all gateways ask at each request.

Owns the reservations of this process in the store, and whether the store is trusted now. Times are
seconds, counts tokens and requests. While it is not, each tenant is admitted by this gateway's lease, whose
parts sum to the quota: never without a limit, never each gateway with the whole. Prevents: a request that
waits for a dead store, a reservation that outlives its request, and a quota opened N times wide.

    hold = await exact.reserve(request)      Refused; Hold; None: not counted there, or not now
    exact.bind(lease, hold); exact.settle(lease, used_tokens)   or exact.give_back(hold)
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeGuard

from admission.quota_lease import QuotaLeases
from admission.quota_scripts import BEAT, RESERVE, SCRIPTS, SETTLE
from admission.quota_wire import Address, Reply, Script, StoreError, StoreWire, checked, connect
from fleet.accounts import Account
from fleet.clock import Clock
from fleet.errors import FleetError, Unavailable
from fleet.gate import Gate
from fleet.limiters import Limiters, Mode
from fleet.messages import Assignment
from fleet.offers import Lease, Limit, Refused, Request
from fleet.outcomes import Outcome
from fleet.refusals import Refusals

log = logging.getLogger(__name__)

#: A request waits so long for the store, then the lease decides and the store is not asked for a while.
BUDGET_S = 0.05
#: A process that gives no sign of life for so long holds nothing any more. It beats three times as often.
LIFE_S = 15.0
#: Tries to reach the store again: first, doubling, at most. Short, for until the last gateway is back it
#: admits its lease on top of what the others have from the store.
_AGAIN_S, _AGAIN_CAP_S = 0.25, 1.0
_CONNECT_S = 2.0
_OUTCOMES = {
    "concurrent_requests": Outcome.REJECTED_QUOTA_REQUESTS,
    "in_flight_tokens": Outcome.REJECTED_QUOTA_TOKENS,
    "tokens_per_minute": Outcome.REJECTED_QUOTA_RATE,
}


@dataclass(slots=True, eq=False)
class Hold:
    """A reservation in the store. Ends once, by `settle` or `give_back`."""

    tenant: str
    tokens: int
    is_open: bool = True


@dataclass(slots=True)
class _Held:
    """What this process holds of one tenant's quota in the store, unanswered requests included."""

    tokens: int = 0
    requests: int = 0


@dataclass(slots=True)
class Counts:
    """What was counted since the start, for metrics."""

    reserved: int = 0
    refused: int = 0
    by_lease: int = 0  # requests of exact tenants that the lease decided on
    failures: int = 0  # times the store was given up


@dataclass(slots=True)
class ExactQuotas:
    """The exact quotas of one gateway process. One event loop calls everything."""

    address: Address
    prefix: str
    gate: Gate
    leases: QuotaLeases
    clock: Clock
    rng: random.Random
    life_s: float = LIFE_S
    budget_s: float = BUDGET_S
    dial: Callable[[Address, list[Script], Callable[[], None]], Awaitable[StoreWire]] = connect
    counts: Counts = field(default_factory=Counts)
    _wire: StoreWire | None = None
    _limiters: Limiters = field(default_factory=Limiters)
    _tenants: frozenset[str] = frozenset()
    _held: dict[str, _Held] = field(default_factory=dict[str, _Held])
    _holds: dict[int, Hold] = field(default_factory=dict[int, Hold])  # by lease id
    _left: dict[str, tuple[int, float]] = field(default_factory=dict[str, tuple[int, float]])
    _charged: dict[str, int] = field(default_factory=dict[str, int])  # when the store was given up
    _refusals: Refusals = field(init=False)
    _lost: asyncio.Event = field(default_factory=asyncio.Event)
    _old: list[StoreWire] = field(default_factory=list[StoreWire])

    def __post_init__(self) -> None:
        self._refusals = Refusals(self.rng)

    @property
    def is_trusted(self) -> bool:
        """Say whether the store decides now."""
        return self._wire is not None

    def take_in(self, assignment: Assignment) -> None:
        """Note which tenants are counted exactly. Call it on every assignment."""
        policy = assignment.policy
        self._limiters = policy.limiters
        self._refusals.bounds = policy.retry_after
        self._tenants = frozenset(
            name for name, tenant in policy.tenants.items() if tenant.quota_mode == "exact"
        )
        self._open_or_close()

    def _open_or_close(self) -> None:
        """Have the gate's own limits step back while the store decides, and only then."""
        self.leases.set_whole(self._tenants if self.is_trusted else frozenset())

    # -- one request --------------------------------------------------------------------------------

    async def reserve(self, request: Request) -> Refused | Hold | None:
        """Reserve what a request books, within `BUDGET_S`. None: this gateway's lease decides on it."""
        account = self.gate.accounts.find(request.tenant)
        if account is None or account.name not in self._tenants:
            return None
        wire = self._wire
        if wire is None:
            self.counts.by_lease += 1
            return None
        tokens = self.gate.tokens_of(request, request.tier or account.policy.tier)
        try:
            reply = self._send(wire, RESERVE, account.name, self._reserve_words(account, tokens))
        except Unavailable as exc:
            self._give_up(wire, exc)
            self.counts.by_lease += 1
            return None
        hold = self._open(account.name, tokens)
        try:
            answer = await self._within_budget(reply)
        except (asyncio.CancelledError, TimeoutError, Unavailable, StoreError) as exc:
            self._await_late(wire, reply, hold)
            if isinstance(exc, asyncio.CancelledError):
                raise
            self._give_up(wire, exc)
            self.counts.by_lease += 1
            return None
        if _is_taken(answer):
            self.counts.reserved += 1
            self._note_left(account.name, answer[1:])
            return hold
        self._forget(hold)
        self.counts.refused += 1
        return self._refusal(account, tokens, answer)

    async def _within_budget(self, reply: asyncio.Future[Reply]) -> Reply:
        done, _ = await asyncio.wait({reply}, timeout=self.budget_s)
        if not done:
            await asyncio.sleep(0)  # our own loop may have been late, not the store
        if not reply.done():
            raise TimeoutError
        answer = reply.result()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _reserve_words(self, account: Account, tokens: int) -> list[int]:
        policy, on = account.policy, self._limiters
        return [
            tokens,
            policy.tokens_per_minute if on.tokens_per_minute is Mode.ENFORCE else -1,
            policy.burst_tokens,
            policy.max_in_flight_tokens if on.in_flight_tokens is Mode.ENFORCE else -1,
            policy.max_concurrent_requests if on.concurrent_requests is Mode.ENFORCE else -1,
        ]

    def _refusal(self, account: Account, tokens: int, answer: Reply) -> Refused:
        match answer:
            case [0, bytes(name), int(quota), int(used), int(wait_us)] if name.decode() in _OUTCOMES:
                needed = 1 if name == b"concurrent_requests" else tokens
                reset_s = wait_us / 1e6 if wait_us >= 0 else None
                is_rate = name == b"tokens_per_minute" and quota > 0
                left = account.policy.burst_tokens - used if is_rate else None
                self._note_left(account.name, [] if left is None else [left])
                limit = Limit(name.decode(), quota, used, needed, reset_s, left)
                account.count_refused(tokens)
                return self._refusals.refuse_quota(
                    account.name, _OUTCOMES[limit.name], limit, where="over all gateways"
                )
            case _:
                raise AssertionError(f"the quota store answered {answer!r:.100}")

    def bind(self, lease: Lease, hold: Hold) -> None:
        """Let a reservation end with a lease."""
        self._holds[lease.lease_id] = hold

    def unbind(self, lease: Lease) -> Hold | None:
        """Return the reservation of a lease that ended while its request goes on; None: it has none."""
        return self._holds.pop(lease.lease_id, None)

    def settle(self, lease: Lease, used_tokens: int) -> None:
        """End a lease's reservation: what was used is charged. A lease without one is none of ours."""
        hold = self._holds.pop(lease.lease_id, None)
        if hold is not None:
            self._end(hold, used_tokens)

    def give_back(self, hold: Hold) -> None:
        """End a reservation nothing was used of."""
        self._end(hold, 0)

    def _end(self, hold: Hold, used_tokens: int, over: StoreWire | None = None) -> None:
        if not hold.is_open:
            return
        self._forget(hold)
        wire, account = over or self._wire, self.gate.accounts.find(hold.tenant)
        if wire is None or account is None:  # its end in the store comes with the next beat
            return
        words = [hold.tokens, hold.tokens, used_tokens, self._rate(account)]
        try:
            self._watch(self._send(wire, SETTLE, hold.tenant, words))
        except Unavailable as exc:
            self._give_up(wire, exc)

    def _rate(self, account: Account) -> int:
        is_enforced = self._limiters.tokens_per_minute is Mode.ENFORCE
        return account.policy.tokens_per_minute if is_enforced else -1

    def _open(self, tenant: str, tokens: int) -> Hold:
        held = self._held.setdefault(tenant, _Held())
        held.tokens, held.requests = held.tokens + tokens, held.requests + 1
        return Hold(tenant, tokens)

    def _forget(self, hold: Hold) -> None:
        hold.is_open = False
        held = self._held[hold.tenant]
        held.tokens, held.requests = held.tokens - hold.tokens, held.requests - 1

    def _await_late(self, wire: StoreWire, reply: asyncio.Future[Reply], hold: Hold) -> None:
        """Give back what a reservation nobody waits for any more turns out to hold, the way it came."""

        def came(future: asyncio.Future[Reply]) -> None:
            if not future.cancelled() and future.exception() is None and _is_taken(future.result()):
                self._end(hold, 0, wire)
            elif hold.is_open:
                self._forget(hold)

        reply.add_done_callback(came)

    # -- the store ----------------------------------------------------------------------------------

    def _send(
        self, wire: StoreWire, script: Script, tenant: str, words: list[int]
    ) -> asyncio.Future[Reply]:
        key = f"{{{self.prefix}:{tenant}}}:".encode()
        process = f"{self.leases.name}/{self.leases.boot_id}".encode()
        numbers = (b"%d" % word for word in (int(self.life_s * 1e6), *words))
        return wire.run(script, b"2", key + b"quota", key + b"alive", process, *numbers)

    def _watch(self, reply: asyncio.Future[Reply]) -> None:
        """Give the store up when a reply nobody waits for is an error."""
        wire = self._wire

        def came(future: asyncio.Future[Reply]) -> None:
            problem = None if future.cancelled() else future.exception()
            if problem is None and not future.cancelled():
                result = future.result()
                problem = result if isinstance(result, Exception) else None
            if problem is not None and wire is not None:
                self._give_up(wire, problem)

        reply.add_done_callback(came)

    def _give_up(self, wire: StoreWire, why: BaseException) -> None:
        """Let leases decide from here on. A connection whose answers were late is not kept."""
        if self._wire is not wire:
            return
        self._wire = None
        self.counts.failures += 1
        reason = (
            f"no answer within {self.budget_s:g} s" if isinstance(why, TimeoutError) else str(why)[:200]
        )
        log.warning("quota store given up", extra={"store": self.address.shown, "reason": reason})
        self._open_or_close()
        self._go_on_from_what_was_left()
        self._old.append(wire)  # late answers are still heard
        self._lost.set()

    def _note_left(self, tenant: str, left: list[Reply]) -> None:
        """Keep what the store said is left of a tenant's burst, if it said so."""
        if left and isinstance(left[0], int):
            self._left[tenant] = left[0], self.clock.monotonic_s()

    def _go_on_from_what_was_left(self) -> None:
        """Leave each lease its part of what the store had left: no burst of its own, however often."""
        now_s = self.clock.monotonic_s()
        for tenant in self._tenants:
            account = self.gate.accounts.find(tenant)
            if account is None:
                continue
            share, burst_tokens = account.share.burst_tokens, account.policy.burst_tokens
            if tenant in self._left and burst_tokens:
                left, at_s = self._left.pop(tenant)
                account.bucket.resume(left * share // burst_tokens, now_s - at_s)
            self._charged[tenant] = account.bucket.charged_tokens

    async def run(self) -> None:
        """Reach the store, beat, and reach it again when it was given up, until cancelled."""
        again_s = _AGAIN_S
        try:
            while True:
                self._lost.clear()
                if await self._reach():
                    again_s = _AGAIN_S
                    self._close_old(only_idle=True)
                    await self._beat_until_lost()
                else:
                    again_s = min(again_s * 2, _AGAIN_CAP_S)
                await asyncio.sleep(again_s * self.rng.uniform(0.75, 1.25))
        finally:
            if self._wire is not None:
                self._old.append(self._wire)
                self._wire = None
            self._close_old()

    def _close_old(self, *, only_idle: bool = False) -> None:
        for wire in self._old:
            if wire.is_idle or not only_idle:
                wire.close()
        self._old = [wire for wire in self._old if only_idle and not wire.is_idle]

    async def _reach(self) -> bool:
        """Connect, tell the store what is held and was used meanwhile, and trust it from then on."""
        wire: StoreWire | None = None
        try:
            async with asyncio.timeout(_CONNECT_S):
                wire = await self.dial(self.address, SCRIPTS, self._on_lost)
            async with asyncio.timeout(self.budget_s):
                for reply in await asyncio.gather(*self._beats(wire, since_away=True)):
                    checked(reply)
        except (FleetError, StoreError, TimeoutError, OSError) as exc:
            log.debug("quota store not reached", extra={"reason": str(exc)[:200]})
            if wire is not None:
                wire.close()
            return False
        self._wire = wire
        log.info("quota store decides", extra={"store": self.address.shown, "tenants": len(self._tenants)})
        self._open_or_close()
        return True

    def _on_lost(self) -> None:
        if self._wire is not None and not self._wire.is_open:
            self._give_up(self._wire, Unavailable("the connection was closed"))

    async def _beat_until_lost(self) -> None:
        while (wire := self._wire) is not None:
            try:
                async with asyncio.timeout(self.life_s / 3):
                    await self._lost.wait()
            except TimeoutError:
                self._beat(wire)

    def _beat(self, wire: StoreWire) -> None:
        self._close_old()
        try:
            for reply in self._beats(wire, since_away=False):
                self._watch(reply)
        except Unavailable as exc:
            self._give_up(wire, exc)

    def _beats(self, wire: StoreWire, *, since_away: bool) -> list[asyncio.Future[Reply]]:
        """Send what is held, by tenant; `since_away`: and what was used meanwhile and not paid off."""
        now_s = self.clock.monotonic_s()
        sent: list[asyncio.Future[Reply]] = []
        for tenant in sorted(self._tenants | self._held.keys()):
            account = self.gate.accounts.find(tenant)
            held = self._held.get(tenant) or _Held()
            if account is None or not (held.requests or since_away or tenant in self._held):
                continue
            owed = self._owed(account, now_s) if since_away else 0
            words = [held.tokens, held.requests, max(0, owed), self._rate(account)]
            sent.append(self._send(wire, BEAT, tenant, words))
            if not held.requests:
                self._held.pop(tenant, None)  # said once that nothing is held any more
        return sent

    def _owed(self, account: Account, now_s: float) -> int:
        """Return what the store has to be told was used: no more than was, nor than the bucket lacks."""
        bucket = account.bucket
        used = bucket.charged_tokens - self._charged.get(account.name, 0)
        return min(used, account.share.burst_tokens - bucket.left_tokens(now_s))


def _is_taken(answer: Reply) -> TypeGuard[list[Reply]]:
    """Say whether the store reserved what it was asked for."""
    return isinstance(answer, list) and answer[:1] == [1]
