"""Spans of requests, exported by OTLP/HTTP: the request, its wait at the gate, each try at an engine.

Times are seconds on the clock's scales; spans carry Unix nanoseconds. Needs the `tracing` extra. They hold
names, counts and outcomes, never text, keys or addresses. Prevents: a collector that is slow or gone
holding up a request: a bounded queue takes spans, a thread sends them, what does not fit is lost.
Source: OpenTelemetry semantic conventions, "Generative AI client spans"; OTLP specification.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from admission.decision_log import Entry
from admission.trace_context import TraceContext, context_of
from admission.tracing_form import SpanSink, operation, request_attributes, usage_attributes
from fleet.clock import Clock
from fleet.outcomes import Outcome

log = logging.getLogger(__name__)

QUEUE_SPANS = 4_096
_EVERY_MS = 1_000
_EXPORT_S = 5.0  # for one batch, its retries included
_END_S = 3.0  # for what is left at the end of the process


class Tracing:
    """Makes and exports the spans of one gateway."""

    def __init__(self, endpoint: str, ratio: float, gateway: str, version: str, clock: Clock) -> None:
        """`endpoint`: base address of a collector; `ratio`: part of the traces begun here that is kept."""
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it writes a line a failed batch
        self._clock = clock
        self.results: Counter[str] = Counter()  # spans: ended, exported, failed
        resource = Resource.create(
            {
                "service.name": "rhodeck-gateway",
                "service.version": version,
                "service.instance.id": gateway,
            }
        )
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(ratio)), resource=resource, shutdown_on_exit=False
        )
        exporter = OTLPSpanExporter(endpoint.rstrip("/") + "/v1/traces", timeout=_EXPORT_S)
        self._provider.add_span_processor(_Ended(self.results))
        self._provider.add_span_processor(
            BatchSpanProcessor(
                _Counted(exporter, self.results),
                max_queue_size=QUEUE_SPANS,
                schedule_delay_millis=_EVERY_MS,
                max_export_batch_size=512,
            )
        )
        self._tracer = self._provider.get_tracer("rhodeck.gateway", version)

    def begin(self, headers: Sequence[tuple[bytes, bytes]], entry: Entry) -> RequestTrace:
        """Return the trace of a request that just came, below its client's span if that says one."""
        return RequestTrace(self, context_of(headers), entry)

    def start(self, name: str, parent: Context, kind: SpanKind, at_ns: int, entry: Entry) -> Span:
        """Begin a span."""
        return self._tracer.start_span(
            name, parent, kind, attributes=request_attributes(entry), start_time=at_ns
        )

    def now_s(self) -> float:
        """Return the monotonic time."""
        return self._clock.monotonic_s()

    async def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        await asyncio.to_thread(ending.join, _END_S)


class RequestTrace(SpanSink):
    """The spans of one request. Spans that were not sampled cost no more than their ids."""

    __slots__ = ("_engine", "_entry", "_node", "_state", "_tracing", "_waited", "_whole")

    def __init__(self, tracing: Tracing, client: TraceContext | None, entry: Entry) -> None:
        self._tracing = tracing
        self._entry = entry
        self._state = b"" if client is None else client.state
        self._engine: Span | None = None
        self._waited = False
        self._whole = tracing.start(
            f"{operation(entry.endpoint)} {entry.model}",
            Context() if client is None else _below(client),
            SpanKind.SERVER,
            self._ns(entry.arrived_s),
            entry,
        )

    def sending(self, node: str) -> bytes:
        """Begin a try at a node; return the header lines that tell it of the trace."""
        self._end_engine(None)
        inside = set_span_in_context(self._whole, Context())
        self._queue_span(inside)
        name = f"{operation(self._entry.endpoint)} {self._entry.model}"
        now_ns = self._ns(self._tracing.now_s())
        self._engine = self._tracing.start(name, inside, SpanKind.CLIENT, now_ns, self._entry)
        self._engine.set_attribute("rhodeck.node", node)
        at = self._engine.get_span_context()
        return TraceContext(at.trace_id, at.span_id, int(at.trace_flags), self._state).lines()

    def gave_up(self, why: str) -> None:
        """End a try that brought no answer."""
        self._end_engine(why)

    def ended(self) -> None:
        """End the request, as its entry says it ended."""
        entry = self._entry
        self._queue_span(set_span_in_context(self._whole, Context()))
        usage = usage_attributes(entry)
        failed = entry.outcome is not None and entry.outcome is not Outcome.COMPLETED
        if self._engine is not None:
            self._engine.set_attributes(usage)
            self._end_engine(entry.outcome.value if failed and entry.outcome is not None else None)
        self._whole.set_attributes(usage)
        if failed and entry.outcome is not None:
            _fail(self._whole, entry.outcome.value)
        self._whole.end(self._ns(entry.ended_s))

    def _queue_span(self, inside: Context) -> None:
        """Tell the wait at the gate, once: to the first try, or to the end of who got none."""
        entry = self._entry
        if self._waited or not self._whole.is_recording():
            return
        self._waited = True
        until_s = entry.left_queue_s if entry.left_queue_s is not None else entry.ended_s
        if until_s <= entry.arrived_s:
            return
        span = self._tracing.start("queue", inside, SpanKind.INTERNAL, self._ns(entry.arrived_s), entry)
        span.end(self._ns(until_s))

    def _end_engine(self, error: str | None) -> None:
        span, self._engine = self._engine, None
        if span is not None:
            if error is not None:
                _fail(span, error)
            span.end(self._ns(self._tracing.now_s()))

    def _ns(self, monotonic_s: float) -> int:
        return int((self._entry.at_s + monotonic_s - self._entry.arrived_s) * 1e9)


def _below(client: TraceContext) -> Context:
    """Return the context below a client's span."""
    state = TraceState.from_header([client.state.decode("ascii")]) if client.state else None
    at = SpanContext(client.trace_id, client.span_id, True, TraceFlags(client.flags), state)
    return set_span_in_context(NonRecordingSpan(at), Context())


def _fail(span: Span, why: str) -> None:
    span.set_attribute("error.type", why)
    span.set_status(Status(StatusCode.ERROR))


class _Ended(SpanProcessor):
    """Counts the spans that ended: those that were neither exported nor failed are queued or were lost."""

    def __init__(self, results: Counter[str]) -> None:
        self._results = results

    def on_end(self, span: ReadableSpan) -> None:
        self._results["ended"] += 1


class _Counted(SpanExporter):
    """An exporter that says when the collector goes and when it is back."""

    def __init__(self, exporter: SpanExporter, results: Counter[str]) -> None:
        self._exporter = exporter
        self._results = results
        self._is_failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        found = self._exporter.export(spans)
        is_failing = found is not SpanExportResult.SUCCESS
        self._results["failed" if is_failing else "exported"] += len(spans)
        if is_failing is not self._is_failing:
            self._is_failing = is_failing
            log.warning("spans are not taken by the collector" if is_failing else "spans are taken again")
        return found

    def shutdown(self) -> Any:
        return self._exporter.shutdown()
