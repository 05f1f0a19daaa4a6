"""Commitments: nodes paid for whether used or not, and the platform's own cost, hour by hour.

USD as `Decimal`; an upfront payment is spread evenly over the term. Reserved node time is covered quarter
by quarter, first by the commitment made first; what is left of a commitment is unused, what is left of
the node time is paid at its price. Prevents: a reservation that looks free while its nodes are off, and
one that is paid twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Literal

from fleet.months import QUARTER, Month, quarter_of
from fleet.spend import SECONDS_PER_HOUR, Charge, NodeTime

Quarters = Mapping[tuple[str, datetime], Decimal]  # (pool, quarter-hour) -> seconds


@dataclass(frozen=True, slots=True)
class Commitment:
    """`nodes` nodes of a pool, or (kind platform) everything around them, paid from start to end."""

    id: int
    kind: Literal["nodes", "platform"]
    pool: str | None  # None for the platform
    nodes: int
    usd_per_hour: Decimal  # of each node
    upfront_usd: Decimal  # of all of them
    starts_at: datetime
    ends_at: datetime  # not included

    @property
    def usd_per_node_hour(self) -> Decimal:
        """Return what an hour of one node costs with its part of the upfront payment."""
        term_h = _seconds(self.starts_at, self.ends_at) / SECONDS_PER_HOUR
        return self.usd_per_hour + self.upfront_usd / (self.nodes * term_h)

    def committed_s(self, start: datetime, end: datetime) -> Decimal:
        """Return node-seconds committed between two instants."""
        return self.nodes * _seconds(max(start, self.starts_at), min(end, self.ends_at))


@dataclass(frozen=True, slots=True)
class Settled:
    """A month's commitments set against what ran."""

    used: tuple[NodeTime, ...]  # covered node time at the commitments' rates
    left: dict[tuple[str, datetime], Decimal]  # reserved node time beyond the commitments, to be priced
    charges: tuple[Charge, ...]  # unused commitments by pool, and the platform


def settle(commitments: Sequence[Commitment], reserved: Quarters, month: Month, until: datetime) -> Settled:
    """Set commitments against `reserved` node-seconds in `month` up to `until`."""
    end = min(until, month.end)
    left = dict(reserved)
    used: list[NodeTime] = []
    unused_usd: dict[str, Decimal] = defaultdict(Decimal)
    unused_h: dict[str, Decimal] = defaultdict(Decimal)
    platform = Decimal(0)
    for each in sorted(commitments, key=lambda c: c.id):
        committed_s = each.committed_s(month.start, end)
        if not committed_s:
            continue
        if each.pool is None:
            platform += committed_s / SECONDS_PER_HOUR * each.usd_per_node_hour
            continue
        covered_s = _cover(each, left, month.start, end)
        if covered_s:
            used.append(NodeTime(each.pool, "reserved", covered_s, each.usd_per_node_hour))
        unused_h[each.pool] += (committed_s - covered_s) / SECONDS_PER_HOUR
        unused_usd[each.pool] += (committed_s - covered_s) / SECONDS_PER_HOUR * each.usd_per_node_hour
    charges = [
        Charge("commitment", pool, usd, f"{unused_h[pool]:.2f} committed node-hours not used")
        for pool, usd in sorted(unused_usd.items())
    ]
    if platform:
        charges.append(Charge("overhead", "", platform, "platform"))
    return Settled(tuple(used), {key: s for key, s in left.items() if s}, tuple(charges))


def _cover(
    commitment: Commitment, left: dict[tuple[str, datetime], Decimal], start: datetime, end: datetime
) -> Decimal:
    covered_s, quarter = Decimal(0), quarter_of(max(start, commitment.starts_at))
    while quarter < min(end, commitment.ends_at):
        key = (commitment.pool or "", quarter)
        here = min(
            left.get(key, Decimal(0)),
            commitment.committed_s(max(start, quarter), min(end, quarter + QUARTER)),
        )
        if here:
            left[key] -= here
            covered_s += here
        quarter += QUARTER
    return covered_s


def _seconds(start: datetime, end: datetime) -> Decimal:
    return Decimal(str(max(0.0, (end - start).total_seconds())))
