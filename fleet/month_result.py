"""A month under one strategy: what it costs, refuses and makes wait, whichever method found out.

Money is US dollars, rates requests/s, waits seconds of admitted requests, shares are of offered requests.
Prevents: a share of what was served shown as a share of what was asked for, and two methods whose columns
mean different things.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleet.strategies import Strategy


@dataclass(frozen=True, slots=True)
class NodeClass:
    """What a node does and costs. Tokens are a request's means."""

    service_rate: float = 3.0  # mu, requests/s at this mix
    usd_per_hour: Decimal = Decimal(28)
    tokens_in: float = 500.0
    tokens_out: float = 300.0


@dataclass(frozen=True, slots=True)
class MonthResult:
    """A month under one strategy. Shares are of offered requests; waits are of admitted ones, seconds."""

    cost_usd: float
    node_hours: float
    burst_hours: float
    mean_nodes: float
    max_nodes: int
    offered: float
    refused: float
    refused_share: float
    served: float
    lost_in_flight: float
    wait_p50_s: float
    wait_p95_s: float
    wait_p99_s: float
    wait_p999_s: float
    wait_max_s: float
    slo_attainment: float
    goodput_rps: float
    usd_per_million_tokens: float | None  # None: nothing was served
    usd_per_million_output_tokens: float | None
    utilization: float
    #: By bin, for charts; not part of comparisons.
    nodes_by_bin: NDArray[np.float64] = field(repr=False, compare=False)
    refused_by_bin: NDArray[np.float64] = field(repr=False, compare=False)
    wait_s_by_bin: NDArray[np.float64] = field(repr=False, compare=False)


#: The names of the reference table's columns, and ours.
COLUMNS = {
    "cost_month": "cost_usd",
    "node_hours": "node_hours",
    "burst_hours": "burst_hours",
    "avg_nodes": "mean_nodes",
    "max_nodes": "max_nodes",
    "offered": "offered",
    "rejected": "refused",
    "rej_frac": "refused_share",
    "served": "served",
    "lost_inflight": "lost_in_flight",
    "p50_wait": "wait_p50_s",
    "p99_wait": "wait_p99_s",
    "p999_wait": "wait_p999_s",
    "max_wait": "wait_max_s",
    "slo_attain": "slo_attainment",
    "goodput_rps": "goodput_rps",
    "usd_per_Mtok": "usd_per_million_tokens",
    "usd_per_Mtok_out": "usd_per_million_output_tokens",
    "util": "utilization",
}


@dataclass(frozen=True, slots=True)
class Totals:
    """What a method counts, in requests, and the waits it found."""

    offered: float
    refused: float
    served: float
    lost: float  # in flight on interrupted nodes
    within_slo: float
    wait_quantiles_s: tuple[float, ...]  # p50, p95, p99, p99.9
    wait_max_s: float


def month_result(
    totals: Totals,
    strategy: Strategy,
    node: NodeClass,
    bin_s: float,
    *,
    billed: NDArray[np.float64],
    billed_burst: NDArray[np.float64],
    refused: NDArray[np.float64],
    waits_s: NDArray[np.float64],
) -> MonthResult:
    """Return the month with its money. `billed` and the like are by bin of `bin_s`."""
    node_hours, burst_hours = float(billed.sum()) * bin_s / 3600, float(billed_burst.sum()) * bin_s / 3600
    burst_usd = 0.0 if strategy.burst is None else float(strategy.burst.usd_per_hour) * burst_hours
    cost = float(node.usd_per_hour) * node_hours + burst_usd
    nodes = billed + billed_burst
    p50, p95, p99, p999 = totals.wait_quantiles_s
    return MonthResult(
        cost_usd=cost,
        node_hours=node_hours,
        burst_hours=burst_hours,
        mean_nodes=float(nodes.mean()),
        max_nodes=int(nodes.max()),
        offered=totals.offered,
        refused=totals.refused,
        refused_share=totals.refused / totals.offered if totals.offered else 0.0,
        served=totals.served,
        lost_in_flight=totals.lost,
        wait_p50_s=p50,
        wait_p95_s=p95,
        wait_p99_s=p99,
        wait_p999_s=p999,
        wait_max_s=totals.wait_max_s,
        slo_attainment=totals.within_slo / totals.offered if totals.offered else 1.0,
        goodput_rps=totals.within_slo / (nodes.size * bin_s),
        usd_per_million_tokens=_per_million(cost, totals.served * (node.tokens_in + node.tokens_out)),
        usd_per_million_output_tokens=_per_million(cost, totals.served * node.tokens_out),
        utilization=totals.served / (node.service_rate * 3600 * (node_hours + burst_hours)),
        nodes_by_bin=nodes,
        refused_by_bin=refused,
        wait_s_by_bin=waits_s,
    )


def _per_million(cost: float, tokens: float) -> float | None:
    return cost / (tokens / 1e6) if tokens > 0 else None


def as_columns(result: MonthResult) -> dict[str, float | int | None]:
    """Return the result under the column names of the published comparison table."""
    return {column: getattr(result, name) for column, name in COLUMNS.items()}


def as_dict(result: MonthResult) -> dict[str, Any]:
    """Return the totals by our own names, without the series."""
    return {name: value for name, value in asdict(result).items() if not name.endswith("_by_bin")}
