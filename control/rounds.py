"""What a round of metrics reading gives: plain values from the scraper to assessment, store and quality.

Durations are seconds on the monotonic clock; every result of a round carries the round's one wall-clock
stamp. Prevents: a failure that reads as a sample of zeros.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from control.gateway_scrape import FlowWindow
from fleet.quality_kinds import Finding
from fleet.readings import EngineWindow, GpuReading, Reason


@dataclass(frozen=True, slots=True)
class FurtherPage:
    """One more page of a node: of another engine of it, or of a GPU exporter."""

    url: str
    kind: str = "engine"  # "engine" | "gpu"
    host: str | None = None  # of a GPU exporter's page only this host's GPUs
    gpus: tuple[str, ...] = ()  # or only these


@dataclass(frozen=True, slots=True)
class Target:
    """A node or gateway to ask. With `source`, that server is asked about `instance` instead of it."""

    name: str
    url: str  # of the metrics page; of a sourced node, where its samples come from
    pool: str = ""  # whose sums its samples count in; "" for none
    source: str = ""
    instance: str = ""
    pages: tuple[FurtherPage, ...] = ()  # beside its own


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One engine in one round. Without `covered_s` only the gauges are known."""

    engine: str  # unique on its node
    window: EngineWindow
    covered_s: float | None


@dataclass(frozen=True, slots=True)
class PageResult:
    """What one page of a node turned out to be. `samples` are of further pages only."""

    url: str
    kind: str
    dialect: str | None = None  # None: no page
    reason: Reason | None = None
    detail: str = ""
    not_exported: tuple[str, ...] = ()  # quantities this engine family has no metric for
    samples: tuple[EngineSample, ...] = ()
    gpus: tuple[GpuReading, ...] = ()
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeResult:
    """What one node gave: samples, or the reason why not. `findings`: what is wrong with its page."""

    node: str
    pool: str  # whose sums its samples count in; "" for none
    fetch_s: float | None
    samples: tuple[EngineSample, ...] = ()
    reason: Reason | None = None
    detail: str = ""
    findings: tuple[Finding, ...] = ()
    pages: tuple[PageResult, ...] = ()  # its own first, then the further ones; () from another server
    interval_s: float | None = None  # how often the server it is read from has news of it

    @property
    def lost_pages(self) -> tuple[str, ...]:
        """Pages of engines that gave nothing this time although another one of the node did."""
        if not self.samples:
            return ()
        return tuple(p.url for p in self.pages if p.kind == "engine" and p.reason is not None)


@dataclass(frozen=True, slots=True)
class GatewayResult:
    """What one gateway gave. `flows` is None when it could not be read."""

    gateway: str
    flows: tuple[FlowWindow, ...] | None
    reason: Reason | None = None
    detail: str = ""
    findings: tuple[Finding, ...] = ()
    oldest_wait_s: dict[str, float] = field(default_factory=dict[str, float])  # by tier, of who waits now


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
