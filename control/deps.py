"""What the controller's loops are given: one value, made once in the process's entry point.

Times are seconds. `Leadership` is the only part that changes: the lease's tick writes it, the other loops
read it. Prevents: a loop that reads settings, opens its own connections or believes it leads for ever.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

import aiohttp
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from control.assignments import Targets
from fleet.clock import Clock
from fleet.policy import Slo


class Verdict(StrEnum):
    """What the samples of a baking gateway say about the promises made to users."""

    HEALTHY = "healthy"
    BREACHED = "breached"
    NO_DATA = "no_data"  # none, too few, too old, or the others are no better: it cannot be told


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict and the numbers it rests on, in one sentence."""

    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True)
class Bake:
    """What a verdict is asked about: one gateway on a new revision since `since`, beside the others."""

    gateway: str
    others: tuple[str, ...]
    since: datetime
    slo: Slo


@dataclass(slots=True)
class Leadership:
    """Whether this process leads, as far as it knows.

    `epoch` is the fencing token; None while following. It counts only until `until_s` on the process's
    monotonic clock, which ends before the lease does in the database.
    """

    owner: str  # unique to this process, for example host:pid:random
    role: str = "controller"
    epoch: int | None = None
    until_s: float = 0.0

    def current(self, clock: Clock) -> int | None:
        """Return the epoch if this process leads now, else None."""
        return self.epoch if self.epoch is not None and clock.monotonic_s() < self.until_s else None

    def step_down(self) -> None:
        """Lead no more until the lease is won again."""
        self.epoch = None
        self.until_s = 0.0


def no_spend(_session: Session, _now: datetime) -> Mapping[str, Decimal]:
    """Return no spend at all: no tenant is over its budget."""
    return {}


def no_verdict(_session: Session, _bake: Bake) -> Finding:
    """Return "cannot tell": rollouts wait for an operator's promote."""
    return Finding(Verdict.NO_DATA, "no samples are collected")


@dataclass(frozen=True, slots=True)
class Deps:
    """Everything a controller loop touches."""

    engine: Engine
    clock: Clock
    leadership: Leadership
    http: Callable[[], aiohttp.ClientSession]  # the process's one session, opened in its event loop
    admin_token: str = field(repr=False)  # what gateways expect on /admin
    spend: Callable[[Session, datetime], Mapping[str, Decimal]] = no_spend  # USD this month by tenant
    verdict: Callable[[Session, Bake], Finding] = no_verdict
    rng: random.Random = field(default_factory=random.Random, repr=False)  # jitter of back-off
    targets: Targets = field(default_factory=Targets, repr=False)  # reconcile's; kept between passes
    lease_ttl_s: float = 15.0
    lease_margin_s: float = 2.0  # stop leading this long before the lease ends
    call_deadline_s: float = 2.0  # each call to a gateway
    backoff_cap_s: float = 15.0
    evidence_wait_s: float = 45.0  # samples of a bake may come this long after it before it pauses
    hold_s: float = 30.0  # wait this long for an unreachable gateway to give up its part
