"""Gateways and the controller that lends quotas between them, in virtual time.

The parts are the real ones: accounts and buckets of the gate, the gateway's leases with their file, the
controller's lending. Only clocks, network and registry are played: time moves when told, messages are
lost when told, each gateway's clock has its own zero and may drift.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from admission.quota_lease import QuotaLeases as HeldLeases
from control.assignments import Target, build, encode
from control.conditions import Known
from control.deps import Deps, Leadership
from control.quota_leases import QuotaLeases
from control.reconcile_store import Place
from fleet.accounts import Accounts
from fleet.clock import ManualClock
from fleet.errors import Unavailable
from fleet.messages import QuotaLease, QuotaReport
from fleet.policy import Policy, parse
from fleet.quota_leases import AGAIN_S
from fleet.quota_shares import FIELDS
from tests.gateway_process import assignment

START = datetime(2026, 1, 1, tzinfo=UTC)
TENANT = "acme"


def policy_of(quota: dict[str, int]) -> Policy:
    """Return a policy whose one tenant has `quota`."""
    document = assignment([])["policy"]
    tenant = document["tenants"][TENANT] | quota
    return parse(document | {"tenants": {TENANT: tenant}})


class PlayedGateway:
    """One gateway process with its state folder. `drift` is how much faster its clock runs (0.01: 1 %)."""

    def __init__(self, name: str, folder: Path, *, zero_s: float = 0.0, drift: float = 0.0) -> None:
        self.name = name
        self.folder = folder
        self.drift = drift
        self.clock = ManualClock(START)
        self.clock.advance(zero_s)
        self.hears = True  # calls reach it
        self.is_heard = True  # its answers come back
        self.boots = 0
        self.target: Target | None = None
        folder.mkdir()
        self._begin()

    def _begin(self) -> None:
        self.boots += 1
        self.accounts = Accounts()
        boot_id = f"{self.name}-{self.boots}"
        self.leases = HeldLeases(self.name, boot_id, self.folder, self.accounts, self.clock)

    def push(self, target: Target) -> None:
        """Put an assignment in force, as the gateway does."""
        self.target = target
        now_s = self.clock.monotonic_s()
        self.leases.rebase(target.assignment, target.digest)
        self.accounts.apply(target.assignment, now_s)

    def restart(self) -> None:
        """Kill it and start it again from its folder. (Bucket levels are another file's business.)"""
        self._begin()
        self.accounts.resume(None, 0.0)
        if self.target is not None:
            self.push(self.target)

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds * (1 + self.drift))
        self.leases.look(self.clock.monotonic_s())

    def share(self, field: str) -> int:
        """Return what the gate admits by."""
        account = self.accounts.find(TENANT)
        assert account is not None
        return int(getattr(account.share, field))

    def hold(self, tokens: int) -> bool:
        """Offer a request that runs until `end`; say whether it runs."""
        account = self.accounts.find(TENANT)
        assert account is not None
        if account.exceeded(tokens, self.clock.monotonic_s()) is not None:
            return False
        account.accept(tokens)
        return True

    def end(self, tokens: int) -> None:
        account = self.accounts.find(TENANT)
        assert account is not None
        account.end(tokens, tokens, tokens)

    def held_tokens(self) -> int:
        account = self.accounts.find(TENANT)
        assert account is not None
        return account.tokens

    def ask(self, tokens: int) -> int:
        """Offer a request that ends at once; return the tokens it used: all or none."""
        account = self.accounts.find(TENANT)
        assert account is not None
        if account.exceeded(tokens, self.clock.monotonic_s()) is not None:
            return 0
        account.accept(tokens)
        account.end(tokens, tokens, tokens)
        return tokens


class PlayedFleet:
    """Gateways, and controllers that lead one after the other."""

    def __init__(
        self, folder: Path, names: Sequence[str], quota: dict[str, int], *, drift: float = 0.0
    ) -> None:
        self.clock = ManualClock(START)
        self.gateways = {
            name: PlayedGateway(
                name, folder / name, zero_s=1_000.0 * place, drift=drift if place % 2 else -drift
            )
            for place, name in enumerate(names)
        }
        self.registered = list(names)
        self.runner = asyncio.Runner()
        self.epoch = 0
        self.now_s = 0.0
        self.due_s = 0.0
        self.controllers: list[QuotaLeases] = []
        self.lose: Callable[[], bool] = lambda: False
        self.set_quota(quota)
        for gateway in self.gateways.values():
            gateway.push(self.targets[gateway.name])
        self.lead()

    def close(self) -> None:
        self.runner.close()

    def set_quota(self, quota: dict[str, int]) -> None:
        """Publish another quota; gateways run it once it is pushed."""
        self.quota = quota
        self.targets = encode(build(policy_of(quota), 1, self.registered, [], [], ()))

    def lead(self, *, old_goes_on: bool = False) -> None:
        """Let another controller lead; the one before stops, or does not know yet."""
        self.epoch += 1
        leadership = Leadership(f"c{self.epoch}", epoch=self.epoch, until_s=1e9)
        deps = Deps(cast(Any, None), self.clock, leadership, cast(Any, None), "")
        newest = QuotaLeases(deps, send=self._send, load=self._load)
        self.controllers = [*(self.controllers if old_goes_on else []), newest]

    async def _load(self) -> Sequence[Place]:
        return [
            Place(name, "", self.targets[name], None, None, 1, None, Known()) for name in self.registered
        ]

    async def _send(self, place: Place, message: QuotaLease) -> QuotaReport | None:
        gateway = self.gateways[place.name]
        if not gateway.hears or self.lose():
            raise Unavailable("no answer within 2 s")
        report = await gateway.leases.take(message)
        if not gateway.is_heard or self.lose():
            raise Unavailable("no answer within 2 s")
        return report

    def step(self, seconds: float) -> None:
        """Move time; every controller makes its pass when it is due."""
        self.clock.advance(seconds)
        self.now_s += seconds
        for gateway in self.gateways.values():
            gateway.advance(seconds)
        if self.now_s >= self.due_s:
            self.due_s = self.now_s + AGAIN_S
            for controller in self.controllers:
                self.runner.run(controller.tick())

    def total(self, field: str) -> int:
        """Return what all gateways together may use now."""
        return sum(gateway.share(field) for gateway in self.gateways.values())

    def over(self) -> dict[str, int]:
        """Return by how much each count is handed out beyond the quota: empty when none is."""
        return {
            field: self.total(field) - self.quota[field]
            for field in FIELDS
            if self.total(field) > self.quota[field]
        }


def arrivals(rng: random.Random, rate_per_s: float, seconds: float) -> int:
    """Return how many requests come in a stretch of a Poisson stream."""
    count, passed_s = 0, rng.expovariate(rate_per_s) if rate_per_s else seconds
    while passed_s < seconds:
        count += 1
        passed_s += rng.expovariate(rate_per_s)
    return count
