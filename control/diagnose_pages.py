"""Evidence from pages: what a diagnosis needs, straight from the text that engines and gateways serve.

The same reader, windows and flows as a scrape round, without network and database. Times are Unix seconds.
Only what the database keeps is kept, so that a verdict on pages is the verdict the fleet would get.
Prevents: a diagnosis that works on pages and not on what was stored of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from control.gateway_scrape import FlowWindow, GatewayPage, gateway_window, read_gateway_page
from fleet.diagnosis_engine_facts import fitted_capacity
from fleet.diagnosis_evidence import (
    EngineEvidence,
    Evidence,
    FlowEvidence,
    FlowSlice,
    Goals,
    Launch,
)
from fleet.dialects import read_page
from fleet.errors import NotMeasured
from fleet.health_reading import TimedWindow
from fleet.load import OWN_LIMITS
from fleet.outcomes import SHED
from fleet.readings import EngineWindow, Histogram, PageReading
from fleet.windows import window, with_answers_owed

#: Histograms that a stored sample keeps; of `inference_s` sum and count alone.
KEPT = frozenset({
    "ttft_s", "itl_s", "queue_wait_s", "e2e_s", "prompt_tokens", "generation_tokens", "iteration_tokens",
})  # fmt: skip


class PageSeries:
    """Collects pages round by round; `evidence` is of everything taken so far."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, PageReading]] = {}
        self._windows: dict[tuple[str, str], list[TimedWindow]] = {}
        self._gateway: tuple[float, GatewayPage] | None = None
        self._flows: dict[tuple[str, str], list[FlowSlice]] = {}
        self._span_s: list[float] = []

    def take(self, at_s: float, pages: Mapping[str, bytes], gateway: bytes | None = None) -> None:
        """Read the pages of one moment: of each node by name, and of the gateway."""
        self._span_s.append(at_s)
        for node, body in pages.items():
            page = read_page(body, source=node)
            before = self._before.get(node)
            self._before[node] = (at_s, page)
            if before is None:
                continue
            try:
                windows = window(before[1], page, at_s - before[0])
            except NotMeasured:
                continue
            self._before[node] = (at_s, with_answers_owed(before[1], page))
            for found in windows:
                timed = TimedWindow(at_s, as_stored(found))
                self._windows.setdefault((node, found.engine), []).append(timed)
        if gateway is not None:
            self._take_gateway(at_s, gateway)

    def _take_gateway(self, at_s: float, body: bytes) -> None:
        page = read_gateway_page(body)
        if page is None:
            return
        before, self._gateway = self._gateway, (at_s, page)
        if before is None:
            return
        for flow in gateway_window(before[1], page, at_s - before[0]):
            self._flows.setdefault((flow.tenant, flow.tier), []).append(as_slice(at_s, flow))

    def evidence(
        self,
        *,
        since_s: float | None = None,
        pool: str = "main",
        launch: Launch | None = None,
        goals: Goals | None = None,
        order: str | None = None,
        priorities: Mapping[str, int] | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> Evidence:
        """Return what was taken since `since_s`, with what pages cannot say: launch settings and policy.

        Capacity is learnt from everything taken, before `since_s` too.
        """
        begin_s = min(self._span_s, default=0.0) if since_s is None else since_s
        engines: list[EngineEvidence] = []
        for (node, engine), windows in sorted(self._windows.items()):
            recent = tuple(t for t in windows if t.ended_at_s > begin_s)
            learnt = fitted_capacity(launch or Launch(), windows)
            engines.append(EngineEvidence(node, engine, pool, recent, launch or Launch(), learnt))
        flows = [
            FlowEvidence(
                tenant,
                tier,
                tuple(s for s in slices if s.ended_at_s > begin_s),
                (weights or {}).get(tenant),
                (priorities or {}).get(tier),
            )
            for (tenant, tier), slices in sorted(self._flows.items())
        ]
        return Evidence(
            since_s=begin_s,
            until_s=max(self._span_s, default=0.0),
            engines=tuple(engines),
            flows=tuple(flows),
            goals=goals or Goals(),
            order=order,
            last_sample_s=max((w[-1].ended_at_s for w in self._windows.values()), default=None),
        )


def as_stored(found: EngineWindow) -> EngineWindow:
    """Return a window with the histograms that the database keeps of it."""
    kept = {name: h for name, h in found.histograms.items() if name in KEPT}
    inference = found.histograms.get("inference_s")
    if inference is not None:
        kept["inference_s"] = Histogram((), (inference.count,), inference.sum)
    return replace(found, histograms=kept)


@dataclass(frozen=True, slots=True)
class Competing:
    """What of a round's requests competed for capacity. None: not counted."""

    offered: int | None
    refused: int | None
    originals: int | None


def competing(offered: int | None, repeated: int | None, outcomes: Mapping[str, int]) -> Competing:
    """Return the counts without what callers' own limits refused: no capacity would have served those.

    Which tries were both repeated and limited is not told; as many as possible are taken to be both.
    """
    if offered is None:
        return Competing(None, None, None)
    limited = sum(n for name, n in outcomes.items() if name in OWN_LIMITS)
    asked = max(0, offered - limited)
    refused = sum(n for name, n in outcomes.items() if name in SHED and name not in OWN_LIMITS)
    again = None if repeated is None else max(0, repeated - limited)
    return Competing(asked, refused, None if again is None else max(0, asked - again))


def as_slice(at_s: float, flow: FlowWindow) -> FlowSlice:
    """Return one flow of one round as evidence."""
    asked = competing(flow.offered if flow.covered_s is not None else None, flow.repeated, flow.outcomes)
    return FlowSlice(
        at_s,
        flow.covered_s or 0.0,
        offered=asked.offered,
        dispatched=flow.dispatched,
        refused=asked.refused,
        originals=asked.originals,
        prompt_tokens=flow.prompt_tokens,
        output_tokens=flow.output_tokens,
        queued=flow.queued_requests,
        in_flight=flow.in_flight_requests,
        queue_wait=flow.histograms.get("queue_wait_s"),
        ttft=flow.histograms.get("ttft_s"),
    )
