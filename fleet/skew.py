"""Nodes of a pool that carry more than their peers: sticky or round-robin routing that ignores load.

Loads are rho, or what the caller has for every node alike. A node is hot beside the median of the others,
so two hot nodes among twelve do not hide each other, and a busy pool is not "all hot". Prevents: a fleet
average of 60 % over two nodes at 110 %, and an idle pool reported as skewed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MIN_LOAD = 0.5  # a node below this is not hot, whatever its peers do
MIN_MEDIAN = 0.05  # ratios to less than this mean nothing


@dataclass(frozen=True, slots=True)
class NodeSkew:
    """One node beside its peers."""

    node: str
    load: float
    peers: float  # median load of the others
    ratio: float  # load / peers; at most 1 for a node that is not busy


@dataclass(frozen=True, slots=True)
class Skew:
    """A pool's loads: every node, hottest first, and how uneven they are."""

    nodes: tuple[NodeSkew, ...]
    spread: float  # standard deviation / mean of the loads: 0 for even

    @property
    def hottest(self) -> NodeSkew:
        """Return the node with the largest ratio."""
        return self.nodes[0]


def skew(loads: Mapping[str, float]) -> Skew | None:
    """Return the skew of a pool from its nodes' loads; None with fewer than two nodes or no load at all."""
    values = list(loads.values())
    mean = sum(values) / len(values) if values else 0.0
    if len(values) < 2 or mean <= 0:
        return None
    spread = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5 / mean
    ordered = sorted(loads, key=lambda name: loads[name])
    rising = [loads[name] for name in ordered]
    nodes: list[NodeSkew] = []
    for place, name in enumerate(ordered):
        load, peers = loads[name], _median_without(rising, place)
        ratio = load / max(peers, MIN_MEDIAN)
        nodes.append(NodeSkew(name, load, peers, ratio if load >= MIN_LOAD else min(ratio, 1.0)))
    return Skew(tuple(sorted(nodes, key=lambda one: (-one.ratio, -one.load, one.node))), spread)


def _median_without(rising: Sequence[float], place: int) -> float:
    """Return the median of all but the one at `place` of the sorted values."""
    rest = len(rising) - 1
    low, high = (rest - 1) // 2, rest // 2
    return (rising[low + (low >= place)] + rising[high + (high >= place)]) / 2
