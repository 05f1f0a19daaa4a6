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
from fleet.wait_tally import WaitTally, restored

MAX_SLOTS = 100_000
#: Slots of all nodes, requests of a day, requests that wait: what a run keeps in memory and in snapshots.
MAX_ALL_SLOTS, MAX_DAY_REQUESTS, MAX_QUEUED = 2_000_000, 20_000_000, 5_000_000
_SHARES = (0.5, 0.95, 0.99, 0.999)
#: Arrays whose size the inputs decide.
_FIXED = (
    "counts", "pending", "wishes", "state_of_burst", "since", "heap", "sizes", "seen",
    "billed", "billed_burst", "queued", "refused", "ready", "running_burst", "interrupted",
)  # fmt: skip


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


@dataclass(frozen=True, slots=True)
class NodePlan:
    """Nodes by bin of 10 s, as the controllers made them of counted arrivals."""

    ready: NDArray[np.int64]  # on demand, serving
    running_burst: NDArray[np.int64]  # spot, serving
    interrupted: NDArray[np.int64]  # spot, taken away at the start of the bin
    billed: NDArray[np.float64]  # on demand, those that start included
    billed_burst: NDArray[np.float64]


@dataclass
class EventRun:
    """A simulation that can stop after any day and go on: the same seed gives the same month."""

    rates_rps: NDArray[np.float64]
    strategy: Strategy
    node: NodeClass = field(default_factory=NodeClass)
    service: ServiceModel = field(default_factory=ServiceModel)
    seed: int = 1
    slo_wait_s: float = 2.0
    #: False: waits are counted in buckets of 0.05 %, so that the state stays small enough to keep.
    keeps_waits: bool = True

    def __post_init__(self) -> None:
        self.rates_rps = checked_rates(self.rates_rps, self.node, self.slo_wait_s)
        scaler = self.strategy.autoscaler
        most = max(self.strategy.nodes, 0 if scaler is None else scaler.max_nodes)
        most += 0 if self.strategy.burst is None else self.strategy.burst.nodes
        if not 1 <= self.service.slots <= MAX_SLOTS:
            raise InvalidInput(
                f"{self.service.slots} slots a node", field="/slots", hint=f"1 to {MAX_SLOTS}"
            )
        self._check_size(most * self.service.slots)
        self._arguments = kernel_arguments(self.strategy)
        bins, burst = self.rates_rps.size, self._arguments.burst_nodes
        self._counts = np.zeros(fluid_kernel.COUNTS, dtype=np.int64)
        self._counts[fluid_kernel.READY], self._counts[fluid_kernel.LOW_SINCE] = self.strategy.nodes, -1
        self._pending = np.zeros(bins + int(self._arguments.scaler[5]) + 1, dtype=np.int64)
        self._wishes = np.zeros(bins // int(self._arguments.periods[0]) + 1, dtype=np.int64)
        self._state_of_burst, self._since = np.zeros(burst, dtype=np.int64), np.zeros(burst, dtype=np.int64)
        # What is dropped finishes its requests while new nodes fill: twice the slots can be busy at once.
        self._heap = np.zeros(2 * most * self.service.slots + 1)
        self._sizes = np.zeros(events_kernel.SIZES, dtype=np.int64)
        self._seen = np.zeros(bins)
        self._billed, self._billed_burst, self._queued = np.zeros(bins), np.zeros(bins), np.zeros(bins)
        self._refused = np.zeros(bins)
        self._ready, self._running_burst, self._interrupted = np.zeros((3, bins), dtype=np.int64)
        self._waits: list[NDArray[np.float32]] = []
        self._tally, self._within = WaitTally(), 0
        self._carried_s, self._carried_service_s = np.zeros(0), np.zeros(0)
        self._bin = 0

    def _check_size(self, slots: int) -> None:
        if slots > MAX_ALL_SLOTS:
            raise InvalidInput(
                f"all nodes have {slots:,} slots", field="/slots", hint=f"At most {MAX_ALL_SLOTS:,}"
            )
        days = np.add.reduceat(self.rates_rps, np.arange(0, self.rates_rps.size, DAY_BINS)) * BIN_S
        if days.max() > MAX_DAY_REQUESTS:
            raise InvalidInput(
                f"day {int(days.argmax()) + 1} has {days.max():,.0f} requests",
                field="/mean_rps",
                hint=f"At most {MAX_DAY_REQUESTS:,}: scale traffic and mu down by the same factor",
            )

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
        self.advance_with(*self.arrivals(self._bin), min(self._bin + DAY_BINS, self.rates_rps.size))

    def arrivals(self, first_bin: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return when the requests of the day from `first_bin` come and how long each holds a slot."""
        return drawn_arrivals(self.rates_rps, first_bin, self.seed, self.service, self.node)

    @property
    def node_plan(self) -> NodePlan:
        """Which nodes serve in each bin simulated so far."""
        done = self._bin
        return NodePlan(
            self._ready[:done],
            self._running_burst[:done],
            self._interrupted[:done],
            self._billed[:done],
            self._billed_burst[:done],
        )

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
            self._state_of_burst,
            self._since,
            self._heap,
            sizes,
            self._billed,
            self._billed_burst,
            self._queued,
            self._ready,
            self._running_burst,
            self._interrupted,
        )
        head, queued = int(sizes[events_kernel.HEAD]), int(sizes[events_kernel.QUEUED])
        if queued > MAX_QUEUED:
            raise InvalidInput(
                f"{queued:,} requests wait at the end of day {math.ceil(last_bin / DAY_BINS)}",
                field="/params/D",
                hint="Give a longest wait or more nodes: this fleet never catches up",
            )
        decided = waits_s[:head]
        self._keep(decided[~np.isnan(decided)])
        refused_bins = (all_s[:head][np.isnan(decided)] // BIN_S).astype(np.int64)
        np.add.at(self._refused, refused_bins, 1)
        self._carried_s = all_s[head : head + queued]
        self._carried_service_s = all_service_s[head : head + queued]
        self._bin = last_bin

    def _keep(self, waits_s: NDArray[np.float32]) -> None:
        self._within += int(np.count_nonzero(waits_s <= self.slo_wait_s))
        if self.keeps_waits:
            self._waits.append(waits_s)
        else:
            self._tally.add(waits_s)

    def result(self) -> MonthResult:
        """Return what the simulated days cost, refused and made wait. InvalidInput before the first."""
        waits = np.concatenate(self._waits) if self._waits else np.zeros(0, dtype=np.float32)
        done = self._bin
        if done == 0:
            raise InvalidInput("nothing is simulated yet", hint="Call advance() first")
        lost, refused = float(self._sizes[events_kernel.LOST]), float(self._sizes[events_kernel.REFUSED])
        decided = float(waits.size if self.keeps_waits else self._tally.total)
        if self.keeps_waits:
            quantiles, longest = _quantiles(waits, _SHARES), float(waits.max()) if waits.size else 0.0
        else:
            quantiles, longest = self._tally.quantiles(_SHARES), self._tally.longest_s
        totals = Totals(
            offered=decided + refused + self._carried_s.size,
            refused=refused,
            served=decided - lost,
            lost=lost,
            within_slo=max(0.0, self._within - lost),  # which are lost is not modelled
            wait_quantiles_s=quantiles,
            wait_max_s=longest,
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

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything that changes while it runs. Raises InvalidInput where every wait is kept."""
        if self.keeps_waits:
            raise InvalidInput("a run that keeps every wait has no small state", hint="keeps_waits=False")
        keys, held = self._tally.sparse()
        carried = {"carried_s": self._carried_s, "carried_service_s": self._carried_service_s}
        return {
            **{name: getattr(self, f"_{name}") for name in _FIXED},
            **carried,
            "wait_keys": keys,
            "wait_counts": held,
            "scalars": np.array([self._bin, self._within, self._tally.longest_s]),
        }

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Go on from a `state` of the same inputs. Raises InvalidInput, unchanged, if it does not fit."""
        misfit = InvalidInput("the snapshot does not fit", hint="Start the simulation anew")
        if set(state) != set(self.state()) or state["scalars"].shape != (3,):
            raise misfit
        for name, now in self.state().items():
            found = state[name]
            if found.dtype != now.dtype or found.ndim != 1 or (name in _FIXED and found.shape != now.shape):
                raise misfit
        if state["carried_s"].shape != state["carried_service_s"].shape:
            raise misfit
        place, within, longest_s = (float(value) for value in state["scalars"])
        if not 0 <= place <= self.rates_rps.size:
            raise misfit
        self._tally = restored(state["wait_keys"], state["wait_counts"], longest_s)
        for name in (*_FIXED, "carried_s", "carried_service_s"):
            setattr(self, f"_{name}", state[name].copy())
        self._bin, self._within = int(place), int(within)


def drawn_arrivals(
    rates_rps: NDArray[np.float64], first_bin: int, seed: int, service: ServiceModel, node: NodeClass
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return arrivals (s, ordered) of the day from `first_bin` and how long each holds a slot.

    A function of the arguments alone: each day has its own stream of random numbers.
    """
    last = min(first_bin + DAY_BINS, rates_rps.size)
    rng = np.random.default_rng([seed, first_bin])
    per_bin = rng.poisson(rates_rps[first_bin:last] * BIN_S)
    bins_s = np.repeat(np.arange(first_bin, last) * BIN_S, per_bin)
    fresh_s = np.sort(bins_s + rng.random(bins_s.size) * BIN_S)
    return fresh_s, service.draw(rng, fresh_s.size, node)


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
