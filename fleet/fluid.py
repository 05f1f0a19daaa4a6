"""What a strategy costs and refuses over a month of traffic, by the fluid method in 10 s bins.

Work is a fluid: in each bin a fleet of `n` ready nodes serves n x mu, the rest waits, and what would wait
longer than the longest wait is refused. Accurate within about 0.5 points of refusals on smooth traffic and
up to 4 points on bursty small pools: confirm by event simulation. Rates are requests/s, money US dollars.
Prevents: node-hours that forget the cold start, refusals as a share of what was served, and a wait
percentile that counts refused requests.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet import fluid_kernel
from fleet.errors import InvalidInput
from fleet.month_result import MonthResult, NodeClass, Totals, month_result
from fleet.strategies import Autoscaler, BurstPool, Mode, Strategy

BIN_S = 10.0
DAY_BINS = 8_640
MONTH_BINS = 30 * DAY_BINS  # 720 hours
#: A predictive autoscaler looks one cold start and this long ahead.
LOOK_AHEAD_S = 60.0
_MODES = {
    Mode.REACTIVE: fluid_kernel.REACTIVE,
    Mode.PREDICTIVE: fluid_kernel.PREDICTIVE,
    Mode.SCHEDULED: fluid_kernel.SCHEDULED,
}


@dataclass(frozen=True, slots=True)
class KernelArguments:
    """A strategy as the arrays and numbers the compiled loops take (`fleet.fluid_kernel.run_bins`)."""

    max_wait_s: float
    periods: NDArray[np.int64]
    scaler: NDArray[np.float64]
    plan: NDArray[np.int64]
    pool: NDArray[np.float64]
    burst_nodes: int


def kernel_arguments(strategy: Strategy) -> KernelArguments:
    """Return `strategy` in bins of 10 s."""
    return KernelArguments(
        max_wait_s=-1.0 if strategy.max_wait_s is None else strategy.max_wait_s,
        periods=np.array([_bins(strategy.control_period_s), _bins(strategy.demand_window_s), DAY_BINS]),
        scaler=_scaler(strategy.autoscaler),
        plan=_plan(strategy.autoscaler),
        pool=_pool(strategy.burst),
        burst_nodes=0 if strategy.burst is None else strategy.burst.nodes,
    )


def simulate(
    rates_rps: Sequence[float] | NDArray[np.float64],
    strategy: Strategy,
    node: NodeClass | None = None,
    *,
    slo_wait_s: float = 2.0,
) -> MonthResult:
    """Return what `strategy` costs, refuses and makes wait over `rates_rps`, a rate for each 10 s bin.

    Waits are (queue before + queue after) / (2 capacity) of a bin, weighted by the arrivals admitted in it.
    The SLO counts requests admitted in bins whose wait is at most `slo_wait_s`, over all offered.
    Raises InvalidInput for rates or a node that no fleet can have.
    """
    node = node or NodeClass()
    rates = checked_rates(rates_rps, node, slo_wait_s)
    waits_s, refused = np.zeros(rates.size), np.zeros(rates.size)
    billed, billed_burst = np.zeros(rates.size), np.zeros(rates.size)
    a = kernel_arguments(strategy)
    served, lost, _ = fluid_kernel.run_bins(
        rates,
        BIN_S,
        float(node.service_rate),
        strategy.nodes,
        a.max_wait_s,
        a.periods,
        a.scaler,
        a.plan,
        a.pool,
        a.burst_nodes,
        waits_s,
        refused,
        billed,
        billed_burst,
    )
    arrivals = rates * BIN_S
    admitted = np.maximum(arrivals - refused, 0.0)
    totals = Totals(
        offered=float(arrivals.sum()),
        refused=float(refused.sum()),
        served=served - lost,
        lost=float(lost),
        within_slo=max(0.0, float(admitted[waits_s <= slo_wait_s].sum()) - lost),
        wait_quantiles_s=_quantiles(waits_s, admitted, (0.5, 0.95, 0.99, 0.999)),
        wait_max_s=float(waits_s.max()),
    )
    return month_result(
        totals,
        strategy,
        node,
        BIN_S,
        billed=billed,
        billed_burst=billed_burst,
        refused=refused,
        waits_s=waits_s,
    )


def _bins(seconds: float) -> int:
    """Return the whole bins that cover `seconds`: what is ready within a bin serves from the next one."""
    return math.ceil(seconds / BIN_S - 1e-9)


def _scaler(scaler: Autoscaler | None) -> NDArray[np.float64]:
    if scaler is None:
        return np.zeros(7)
    ahead_bins = math.floor((scaler.cold_start_s + LOOK_AHEAD_S) / BIN_S + 1e-9)
    return np.array(
        [
            _MODES[scaler.mode],
            scaler.target_rho,
            scaler.min_nodes,
            scaler.max_nodes,
            scaler.stabilisation_s / BIN_S,
            _bins(scaler.cold_start_s),
            ahead_bins,
        ],
        dtype=np.float64,
    )


def _plan(scaler: Autoscaler | None) -> NDArray[np.int64]:
    nodes = np.zeros(DAY_BINS, dtype=np.int64)
    if scaler is not None:
        hours = np.arange(DAY_BINS) * BIN_S / 3600
        for start, end, count in scaler.plan:
            nodes[(hours >= start) & (hours < end)] = count
    return nodes


def _pool(pool: BurstPool | None) -> NDArray[np.float64]:
    if pool is None:
        return np.zeros(6)
    life_bins = 0.0 if pool.interrupted_after_h is None else pool.interrupted_after_h * 3600 / BIN_S
    return np.array(
        [
            _bins(pool.warm_s),
            pool.up,
            pool.down,
            pool.cooldown_s / BIN_S,
            life_bins,
            pool.lost_per_interruption,
        ],
        dtype=np.float64,
    )


def _quantiles(
    values: NDArray[np.float64], weights: NDArray[np.float64], shares: Sequence[float]
) -> tuple[float, ...]:
    """Return the least value that each share of the weight does not exceed; 0 where all weight is 0."""
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weights[order])
    ordered, last = values[order], values.size - 1
    found: list[float] = []
    for share in shares:
        place = bisect_left(cumulative, share * cumulative[-1])
        found.append(float(ordered[min(place, last)]))
    return tuple(found)


def checked_rates(rates_rps: Any, node: NodeClass, slo_wait_s: float) -> NDArray[np.float64]:
    """Return the rates as an array. Raises InvalidInput for rates or a node that no fleet can have."""
    rates = np.ascontiguousarray(rates_rps, dtype=np.float64)
    if rates.ndim != 1 or rates.size == 0:
        raise InvalidInput("there are no rates", field="/profile", hint="Give a rate for each 10 s bin")
    if not np.all(np.isfinite(rates)) or rates.min() < 0 or rates.max() > 1e9:
        worst = int(np.argmax(~(np.isfinite(rates) & (rates >= 0) & (rates <= 1e9))))
        raise InvalidInput(
            f"the rate of bin {worst} is {rates[worst]}",
            field="/profile",
            hint="Rates are requests/s: 0 or more, at most 1e9",
        )
    if rates.sum() <= 0:
        raise InvalidInput("every rate is 0", field="/profile", hint="Give traffic with some requests")
    for name, value, low in (
        ("mu", node.service_rate, 1e-6),
        ("price", float(node.usd_per_hour), 0.0),
        ("tokens_in", node.tokens_in, 0.0),
        ("tokens_out", node.tokens_out, 0.0),
        ("slo_wait_s", slo_wait_s, 0.0),
    ):
        if not math.isfinite(value) or not low <= value <= 1e9:
            raise InvalidInput(f"{name} is {value}", field=f"/{name}", hint=f"Give {low:g} to 1e9")
    return rates
