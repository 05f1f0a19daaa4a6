"""The exact event simulation of a strategy: every request, its slot and its wait.

Confirms what the fluid method says: arrivals are a Poisson process of the traffic's rate, service times
lognormal, every node has the same slots, one FIFO queue refuses at the longest wait. Runs day by day, so
that it can show progress, be cancelled and go on. Times are seconds, rates requests/s. Prevents: a fluid
answer trusted where chance decides, and one lucky run shown without its spread.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet import events_kernel, fluid_kernel
from fleet.errors import InvalidInput
from fleet.fluid import BIN_S, DAY_BINS, checked_rates, kernel_arguments
from fleet.month_result import MonthResult, NodeClass, Totals, month_result
from fleet.strategies import Strategy

MAX_SLOTS = 100_000


@dataclass(frozen=True, slots=True)
class ServiceModel:
    """How long requests hold a slot: `slots` a node, mean slots / mu, squared coefficient of variation."""

    slots: int = 36
    squared_cv: float = 0.6

    def draw(self, rng: np.random.Generator, count: int, node: NodeClass) -> NDArray[np.float64]:
        """Return `count` lognormal service times."""
        mean_s = self.slots / node.service_rate
        variance = math.log1p(self.squared_cv)
        return rng.lognormal(math.log(mean_s) - variance / 2, math.sqrt(variance), count)


@dataclass
class EventRun:
    """A simulation that can stop after any day and go on: the same seed gives the same month."""

    rates_rps: NDArray[np.float64]
    strategy: Strategy
    node: NodeClass = field(default_factory=NodeClass)
    service: ServiceModel = field(default_factory=ServiceModel)
    seed: int = 1
    slo_wait_s: float = 2.0

    def __post_init__(self) -> None:
        self.rates_rps = checked_rates(self.rates_rps, self.node, self.slo_wait_s)
        scaler = self.strategy.autoscaler
        most = max(self.strategy.nodes, 0 if scaler is None else scaler.max_nodes)
        most += 0 if self.strategy.burst is None else self.strategy.burst.nodes
        if not 1 <= self.service.slots <= MAX_SLOTS:
            raise InvalidInput(
                f"{self.service.slots} slots a node", field="/slots", hint=f"1 to {MAX_SLOTS}"
            )
        self._arguments = kernel_arguments(self.strategy)
        bins, burst = self.rates_rps.size, self._arguments.burst_nodes
        self._counts = np.zeros(fluid_kernel.COUNTS, dtype=np.int64)
        self._counts[fluid_kernel.READY], self._counts[fluid_kernel.LOW_SINCE] = self.strategy.nodes, -1
        self._pending = np.zeros(bins + int(self._arguments.scaler[5]) + 1, dtype=np.int64)
        self._wishes = np.zeros(bins // int(self._arguments.periods[0]) + 1, dtype=np.int64)
        self._state, self._since = np.zeros(burst, dtype=np.int64), np.zeros(burst, dtype=np.int64)
        # What is dropped finishes its requests while new nodes fill: twice the slots can be busy at once.
        self._heap = np.zeros(2 * most * self.service.slots + 1)
        self._sizes = np.zeros(events_kernel.SIZES, dtype=np.int64)
        self._seen = np.zeros(bins)
        self._billed, self._billed_burst, self._queued = np.zeros(bins), np.zeros(bins), np.zeros(bins)
        self._refused = np.zeros(bins)
        self._waits: list[NDArray[np.float32]] = []
        self._carried_s, self._carried_service_s = np.zeros(0), np.zeros(0)
        self._bin = 0

    @property
    def days(self) -> int:
        """How many days the whole run has."""
        return math.ceil(self.rates_rps.size / DAY_BINS)

    @property
    def days_done(self) -> int:
        """How many days are simulated."""
        return math.ceil(self._bin / DAY_BINS)

    @property
    def is_done(self) -> bool:
        """Say whether nothing is left to simulate."""
        return self._bin >= self.rates_rps.size

    def advance(self) -> None:
        """Simulate the next day."""
        if self.is_done:
            return
        first, last = self._bin, min(self._bin + DAY_BINS, self.rates_rps.size)
        rng = np.random.default_rng([self.seed, first])
        per_bin = rng.poisson(self.rates_rps[first:last] * BIN_S)
        bins_s = np.repeat(np.arange(first, last) * BIN_S, per_bin)
        fresh_s = np.sort(bins_s + rng.random(bins_s.size) * BIN_S)
        self.advance_with(fresh_s, self.service.draw(rng, fresh_s.size, self.node), last)

    def advance_with(
        self, arrivals_s: NDArray[np.float64], services_s: NDArray[np.float64], last_bin: int
    ) -> None:
        """Simulate up to `last_bin` with these arrivals (ordered) and service times."""
        first, sizes = self._bin, self._sizes
        edges = np.arange(first, last_bin + 1) * BIN_S
        carried = self._carried_s.size
        offsets = carried + np.searchsorted(arrivals_s, edges)
        all_s = np.concatenate((self._carried_s, arrivals_s))
        all_service_s = np.concatenate((self._carried_service_s, services_s))
        waits_s = np.zeros(all_s.size, dtype=np.float32)
        sizes[events_kernel.HEAD], sizes[events_kernel.QUEUED] = 0, carried
        a = self._arguments
        events_kernel.run_events(
            first,
            last_bin,
            BIN_S,
            float(self.node.service_rate),
            self.service.slots,
            a.max_wait_s,
            a.periods,
            a.scaler,
            a.plan,
            a.pool,
            all_s,
            all_service_s,
            offsets,
            self.rates_rps,
            self._seen,
            waits_s,
            self._counts,
            self._pending,
            self._wishes,
            self._state,
            self._since,
            self._heap,
            sizes,
            self._billed,
            self._billed_burst,
            self._queued,
        )
        head, queued = int(sizes[events_kernel.HEAD]), int(sizes[events_kernel.QUEUED])
        decided = waits_s[:head]
        self._waits.append(decided[~np.isnan(decided)])
        refused_bins = (all_s[:head][np.isnan(decided)] // BIN_S).astype(np.int64)
        np.add.at(self._refused, refused_bins, 1)
        self._carried_s = all_s[head : head + queued]
        self._carried_service_s = all_service_s[head : head + queued]
        self._bin = last_bin

    def result(self) -> MonthResult:
        """Return what the simulated days cost, refused and made wait. InvalidInput before the first."""
        waits = np.concatenate(self._waits) if self._waits else np.zeros(0, dtype=np.float32)
        done = self._bin
        if done == 0:
            raise InvalidInput("nothing is simulated yet", hint="Call advance() first")
        lost = float(self._sizes[events_kernel.LOST])
        within = float(np.count_nonzero(waits <= self.slo_wait_s)) - lost
        totals = Totals(
            offered=float(waits.size + self._sizes[events_kernel.REFUSED] + self._carried_s.size),
            refused=float(self._sizes[events_kernel.REFUSED]),
            served=float(waits.size) - lost,
            lost=lost,
            within_slo=within,
            wait_quantiles_s=_quantiles(waits, (0.5, 0.95, 0.99, 0.999)),
            wait_max_s=float(waits.max()) if waits.size else 0.0,
        )
        return month_result(
            totals,
            self.strategy,
            self.node,
            BIN_S,
            billed=self._billed[:done],
            billed_burst=self._billed_burst[:done],
            refused=self._refused[:done],
            waits_s=self._queued[:done] / np.maximum(self._billed[:done] * self.node.service_rate, 1e-9),
        )


def _quantiles(values: NDArray[np.float32], shares: Sequence[float]) -> tuple[float, ...]:
    """Return the least value that each share of the values does not exceed."""
    if values.size == 0:
        return tuple(0.0 for _ in shares)
    places = [max(0, math.ceil(share * values.size) - 1) for share in shares]
    ordered: Any = np.partition(values, places)
    return tuple(float(ordered[place]) for place in places)


def run_events(run: EventRun, on_day: Callable[[int, int], bool] | None = None) -> MonthResult:
    """Simulate to the end. `on_day(done, of)` is told each day and returns False to stop there."""
    while not run.is_done:
        run.advance()
        if on_day is not None and not on_day(run.days_done, run.days):
            break
    return run.result()
