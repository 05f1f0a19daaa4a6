"""What a round of metrics reading gives: plain values from the scraper to assessment, store and quality.

Durations are seconds on the monotonic clock; every result of a round carries the round's one wall-clock
stamp. Prevents: a failure that reads as a sample of zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from control.gateway_scrape import FlowWindow
from fleet.quality_kinds import Finding
from fleet.readings import EngineWindow, Reason


@dataclass(frozen=True, slots=True)
class Target:
    """A node or gateway to ask."""

    name: str
    url: str  # of the metrics page
    pool: str = ""


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One engine in one round. Without `covered_s` only the gauges are known."""

    engine: str  # unique on its node
    window: EngineWindow
    covered_s: float | None


@dataclass(frozen=True, slots=True)
class NodeResult:
    """What one node gave: samples, or the reason why not. `findings`: what is wrong with its page."""

    node: str
    pool: str
    fetch_s: float | None
    samples: tuple[EngineSample, ...] = ()
    reason: Reason | None = None
    detail: str = ""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class GatewayResult:
    """What one gateway gave. `flows` is None when it could not be read."""

    gateway: str
    flows: tuple[FlowWindow, ...] | None
    reason: Reason | None = None
    detail: str = ""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Round:
    """One round, ready to be stored and assessed."""

    at: datetime
    period_s: float
    duration_s: float
    lag_s: float
    nodes: tuple[NodeResult, ...]
    gateways: tuple[GatewayResult, ...] = ()

    @property
    def nodes_sampled(self) -> int:
        return sum(bool(node.samples) for node in self.nodes)
