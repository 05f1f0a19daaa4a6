"""The gateway's own metrics: exact counters and histograms, written as Prometheus text.

Times are seconds. Tenant and tier labels come from the policy in force only, so their number is bounded.
Names are a contract with the controller's scraper. Prevents: a caller minting series by inventing
names, and quantiles read from buckets that are coarser than what is asked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, islice
from typing import Any, Final

from fleet.outcomes import Outcome

#: 26 finite edges, 1 ms to 120 s, log-spaced, each 1.6 times the one before; and 0.5 s, the default
#: objective of the policy, so that its attainment is counted and not bracketed.
EDGES_S: Final[tuple[float, ...]] = tuple(
    sorted({0.5, *(float(f"{0.001 * (120_000 ** (step / 25)):.3g}") for step in range(26))})
)

_LEAST_S: Final = EDGES_S[0]  # few requests wait longer than that at the gate
_bucket_of: Final = bisect_left
_LE = (*(f'{edge!r}"}} ' for edge in EDGES_S), '+Inf"} ')  # ends of bucket labels
_LINES_A_PART = 500

Flow = tuple[str, str]  # tenant, tier

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class _Timing:
    """Observations per bucket; the last bucket is above every edge."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(EDGES_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[0 if seconds <= _LEAST_S else _bucket_of(EDGES_S, seconds)] += 1
        self.sum_s += seconds


class _Tokens:
    """Counts of tokens by kind."""

    __slots__ = ("output", "prompt")

    def __init__(self) -> None:
        self.prompt = self.output = 0


class _Predictions:
    """Of one model and endpoint: what completed requests were taken to need, and what they used."""

    __slots__ = ("actual", "missed", "outgrown", "predicted")

    def __init__(self) -> None:
        self.predicted, self.actual, self.missed = _Tokens(), _Tokens(), _Tokens()
        self.outgrown = 0


class FlowCounts:
    """What is counted of one flow. A request looks it up once and counts by its attributes."""

    __slots__ = (
        "booked_tokens", "dispatched", "offered", "outcomes", "queue_wait", "queued", "repeated", "running",
        "tokens", "ttft",
    )  # fmt: skip

    def __init__(self) -> None:
        self.offered = self.repeated = self.dispatched = 0
        self.queued = self.running = self.booked_tokens = 0  # inside the gateway now
        self.outcomes: dict[str, int] = {}
        self.tokens = _Tokens()
        self.queue_wait, self.ttft = _Timing(), _Timing()

    def ended(self, outcome: Outcome) -> None:
        """Book the one outcome of one offered request."""
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def used(self, prompt_tokens: int, output_tokens: int) -> None:
        """Book what a request used."""
        self.tokens.prompt += prompt_tokens
        self.tokens.output += output_tokens


class GatewayMetrics:
    """Counters of this process's life, by flow. Gauges are handed in when the page is written."""

    def __init__(self, process_start_time_s: float) -> None:
        self._process_start_time_s = process_start_time_s
        self._flows: dict[Flow, FlowCounts] = {}
        self.would_refuse: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self._predictions: dict[tuple[str, str], _Predictions] = {}
        self.auth_failures = 0
        self.invalid_requests = 0
        self.retries = 0

    def of(self, flow: Flow) -> FlowCounts:
        """Return the counts of a flow."""
        counts = self._flows.get(flow)
        if counts is None:
            counts = self._flows[flow] = FlowCounts()
        return counts

    def requests_held(self) -> int:
        """Return how many requests wait or run."""
        return sum(one.queued + one.running for one in self._flows.values())

    def held(self) -> Iterator[Family]:
        """Yield what is inside the gateway now."""
        flow, prefix, flows = ("tenant", "tier"), "rhodeck_gateway_", list(self._flows.items())
        sent = [(key, one) for key, one in flows if one.dispatched]
        yield Family(prefix + "queued_requests", "Requests waiting at the gate.",
                     flow, {key: one.queued for key, one in flows})  # fmt: skip
        yield Family(prefix + "in_flight_requests", "Requests at engines.",
                     flow, {key: one.running for key, one in sent})  # fmt: skip
        yield Family(prefix + "in_flight_tokens", "Tokens booked at engines.",
                     flow, {key: one.booked_tokens for key, one in sent})  # fmt: skip

    def count_prediction(
        self, model: str, endpoint: str, prompt: int, output: int, used_prompt: int, used_output: int
    ) -> None:
        """Book what a completed request was taken to need, prompt and output, and what it used."""
        key = (model, endpoint)
        book = self._predictions.get(key)
        if book is None:
            book = self._predictions[key] = _Predictions()
        book.predicted.prompt += prompt
        book.predicted.output += output
        book.actual.prompt += used_prompt
        book.actual.output += used_output
        book.missed.prompt += abs(prompt - used_prompt)
        book.missed.output += abs(output - used_output)
        if used_output > output:
            book.outgrown += 1

    def page(self, gauges: Iterable[Family]) -> bytes:
        """Return the page: our counters, then `gauges`, then the histograms."""
        return b"".join(self.parts(gauges))

    def parts(self, gauges: Iterable[Family]) -> Iterator[bytes]:
        """Yield the page in parts of 500 lines: a page of 1,000 tenants has 60,000.

        Counting may go on between two parts; each histogram is of one moment.
        """
        for family in (*self._counters(), *gauges):
            yield from _in_parts(family.lines())
        flows = list(self._flows.items())
        waits = {key: one.queue_wait for key, one in flows if any(one.queue_wait.counts)}
        help_text = "Wait at the gate of dispatched requests."
        yield from _in_parts(_histogram_lines("rhodeck_gateway_queue_wait_seconds", help_text, waits))
        first = {key: one.ttft for key, one in flows if any(one.ttft.counts)}
        help_text = "Arrival at the gateway to the first byte of the answer."
        yield from _in_parts(_histogram_lines("rhodeck_gateway_ttft_seconds", help_text, first))

    def _counters(self) -> list[Family]:
        flow, prefix = ("tenant", "tier"), "rhodeck_gateway_"
        predicted, booked = ("model", "endpoint", "kind"), tuple(self._predictions.items())
        flows = list(self._flows.items())
        used = {key: one.tokens for key, one in flows if one.tokens.prompt or one.tokens.output}
        outcomes = {(*key, how): count for key, one in flows for how, count in one.outcomes.items()}
        return [
            Family(prefix + "offered_total", "Requests offered to the gate, refused ones included.",
                   flow, {key: one.offered for key, one in flows}, "counter"),
            Family(prefix + "repeated_total", "Of them, tries of one that was refused or failed before.",
                   flow, {key: one.repeated for key, one in flows if one.repeated}, "counter"),
            Family(prefix + "dispatched_total", "Requests sent to an engine.",
                   flow, {key: one.dispatched for key, one in flows if one.dispatched}, "counter"),
            Family(prefix + "requests_total", "Requests by how they left the gateway.",
                   (*flow, "outcome"), outcomes, "counter"),
            Family(prefix + "would_refuse_total", "Requests let through by a limit in shadow.",
                   (*flow, "limiter"), self.would_refuse, "counter"),
            Family(prefix + "tokens_total", "Tokens used, as counted by the engines.",
                   (*flow, "kind"), _by_kind(used), "counter"),
            Family(prefix + "predicted_tokens_total", "Tokens booked for completed requests.",
                   predicted, _by_kind({key: one.predicted for key, one in booked}), "counter"),
            Family(prefix + "actual_tokens_total", "Tokens those requests used.",
                   predicted, _by_kind({key: one.actual for key, one in booked}), "counter"),
            Family(prefix + "prediction_error_tokens_total", "Sum of their absolute differences.",
                   predicted, _by_kind({key: one.missed for key, one in booked}), "counter"),
            Family(prefix + "outgrown_total", "Completed requests whose output was more than was booked.",
                   predicted[:2], {key: one.outgrown for key, one in booked}, "counter"),
            Family(prefix + "auth_failures_total", "Requests without a valid API key.",
                   (), {(): self.auth_failures}, "counter"),
            Family(prefix + "invalid_requests_total", "Requests whose body or headers cannot be used.",
                   (), {(): self.invalid_requests}, "counter"),
            Family(prefix + "retries_total", "Requests sent again to another node before the first byte.",
                   (), {(): self.retries}, "counter"),
            Family("process_start_time_seconds", "Start of the process, Unix seconds.",
                   (), {(): self._process_start_time_s}),
        ]  # fmt: skip


def _by_kind(counts: Mapping[tuple[str, str], _Tokens]) -> dict[tuple[str, str, str], int]:
    found: dict[tuple[str, str, str], int] = {}
    for key, one in counts.items():
        found[*key, "prompt"], found[*key, "output"] = one.prompt, one.output
    return found


class Family:
    """One metric family with its samples by label values."""

    __slots__ = ("help_text", "kind", "labels", "name", "values")

    def __init__(
        self,
        name: str,
        help_text: str,
        labels: tuple[str, ...],
        values: Mapping[Any, float],
        kind: str = "gauge",
    ) -> None:
        self.name = name
        self.help_text = help_text
        self.labels = labels
        self.values = values
        self.kind = kind

    def lines(self) -> Iterator[str]:
        """Yield the family as lines of Prometheus text."""
        yield f"# HELP {self.name} {self.help_text}"
        yield f"# TYPE {self.name} {self.kind}"
        for values, value in list(self.values.items()):
            yield f"{self.name}{_label_set(self.labels, values)} {_number(value)}"


def _in_parts(lines: Iterator[str]) -> Iterator[bytes]:
    while part := list(islice(lines, _LINES_A_PART)):
        yield ("\n".join(part) + "\n").encode()


def _histogram_lines(name: str, help_text: str, timings: Mapping[Flow, _Timing]) -> Iterator[str]:
    yield f"# HELP {name} {help_text}"
    yield f"# TYPE {name} histogram"
    for (tenant, tier), timing in list(timings.items()):
        inner = f'tenant="{_escape(tenant)}",tier="{_escape(tier)}"'
        bucket = f'{name}_bucket{{{inner},le="'
        totals, sum_s = list(accumulate(timing.counts)), timing.sum_s
        for le, total in zip(_LE, totals, strict=True):
            yield f"{bucket}{le}{total}"
        yield f"{name}_sum{{{inner}}} {sum_s!r}"
        yield f"{name}_count{{{inner}}} {totals[-1]}"


def _label_set(labels: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not labels:
        return ""
    pairs = (f'{label}="{_escape(value)}"' for label, value in zip(labels, values, strict=True))
    return "{" + ",".join(pairs) + "}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(value)
