"""How many nodes to reserve: the newsvendor's rule on the nodes a traffic needs.

Rates are requests/s, prices US dollars an hour of a node. A reserved node is paid whether used or not, so
the k-th is worth it exactly if it is needed for a larger share of time than the ratio of the two prices.
Prevents: a commitment sized by the mean, and one that pretends on-demand nodes above it come in no time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.errors import InvalidInput

MONTH_HOURS = 720.0
TARGET_RHO = 0.85
MAX_NEEDED = 100_000


@dataclass(frozen=True, slots=True)
class Reserve:
    """How much to reserve, and the month it makes if nodes above it came at once (a lower bound)."""

    nodes: int
    needed_share: tuple[float, ...]  # of time, for the 1st, 2nd, … node
    price_ratio: float  # reserved / on demand
    ideal_usd: float  # reserved nodes all month, the others exactly while needed
    all_on_demand_usd: float


def reserve(
    rates_rps: NDArray[np.float64],
    service_rate: float,
    usd_per_hour: float,
    reserved_usd_per_hour: float,
    *,
    target_rho: float = TARGET_RHO,
) -> Reserve:
    """Return the reservation that costs least over 720 h whose times are like those of `rates_rps`.

    Source: the newsvendor problem (Arrow, Harris and Marschak, Optimal Inventory Policy, 1951): reserve the
    k-th node iff P(needed >= k) > reserved / on demand.
    """
    if service_rate <= 0 or target_rho <= 0 or usd_per_hour <= 0 or reserved_usd_per_hour < 0:
        raise InvalidInput(
            f"mu {service_rate:g}, rho {target_rho:g}, prices {usd_per_hour:g} and "
            f"{reserved_usd_per_hour:g}",
            field="/mu",
            hint="All but the reserved price must be above 0",
        )
    needed = np.ceil(rates_rps / (service_rate * target_rho) - 1e-9)
    if needed.max() > MAX_NEEDED:
        raise InvalidInput(
            f"the peak needs {needed.max():,.0f} nodes",
            field="/mu",
            hint=f"At most {MAX_NEEDED:,}: check mu",
        )
    counts = np.arange(1, int(needed.max()) + 1)
    fewer = np.searchsorted(np.sort(needed), counts)  # bins that need less than each count
    shares = tuple(((needed.size - fewer) / needed.size).tolist())
    ratio = reserved_usd_per_hour / usd_per_hour
    nodes = sum(1 for share in shares if share > ratio)
    above_h = math.fsum(shares[nodes:]) * MONTH_HOURS
    return Reserve(
        nodes=nodes,
        needed_share=shares,
        price_ratio=ratio,
        ideal_usd=nodes * MONTH_HOURS * reserved_usd_per_hour + above_h * usd_per_hour,
        all_on_demand_usd=math.fsum(shares) * MONTH_HOURS * usd_per_hour,
    )
