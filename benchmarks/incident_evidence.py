"""From an incident to the evidence of it: engines in virtual time, their pages, our readers.

Shared by the benchmark of the diagnosis and its tests. Seconds of simulated time. Prevents: a benchmark
that hands the diagnosis what the simulator knows instead of what a page says.
"""

from __future__ import annotations

from admission.metrics import FlowCounts, GatewayMetrics
from control.diagnose_pages import PageSeries
from fleet.diagnosis_evidence import Evidence
from fleet.outcomes import Outcome
from simfleet.incidents import RAMP_S, Incident
from simfleet.virtual_fleet import EPOCH_S, Call, VirtualFleet

#: Of an incident's beginning, left out: engines fill up.
SETTLED_S = 60.0


class FrontBook:
    """A front's counters, kept and written by the gateway's own metrics."""

    def __init__(self) -> None:
        self.metrics = GatewayMetrics(EPOCH_S - 3600)

    def offer(self, call: Call, *, is_retry: bool) -> None:
        counts = self._of(call)
        counts.offered += 1
        if is_retry:
            counts.repeated += 1
        counts.queued += 1

    def dispatch(self, call: Call, waited_s: float) -> None:
        counts = self._of(call)
        counts.dispatched += 1
        counts.queued -= 1
        counts.running += 1
        counts.booked_tokens += call.prompt_tokens + call.output_tokens
        counts.queue_wait.observe(waited_s)

    def refuse(self, call: Call, *, timed_out: bool) -> None:
        counts = self._of(call)
        counts.queued -= 1
        counts.ended(Outcome.EVICTED_WAIT if timed_out else Outcome.REJECTED_QUEUE_FULL)

    def first_token(self, call: Call, ttft_s: float) -> None:
        self._of(call).ttft.observe(ttft_s)

    def finish(self, call: Call) -> None:
        counts = self._of(call)
        counts.running -= 1
        counts.booked_tokens -= call.prompt_tokens + call.output_tokens
        counts.ended(Outcome.COMPLETED)
        counts.used(call.prompt_tokens, call.output_tokens)

    def page(self) -> bytes:
        return self.metrics.page(self.metrics.held())

    def _of(self, call: Call) -> FlowCounts:
        return self.metrics.of((call.tenant, call.tier))


def evidence_of(incident: Incident) -> Evidence:
    """Run `incident` and return what its pages say.

    The ramp before it is the past from which capacity is learnt, as the controller does; it and the first
    minute are no part of the interval that is judged.
    """
    fleet = VirtualFleet(
        incident.profile,
        incident.nodes,
        incident.front,
        seed=incident.seed,
        troubles=incident.troubles,
        counters=FrontBook(),
    )
    series = PageSeries()
    for pages in fleet.run(incident.calls(), incident.length_s, begin_s=-RAMP_S):
        series.take(pages.at_s, pages.nodes, pages.front)
    return series.evidence(
        since_s=EPOCH_S + SETTLED_S,
        launch=incident.registered,
        order=incident.order,
        priorities={stream.tier: stream.priority for stream in incident.streams},
        weights=incident.weights,
    )
