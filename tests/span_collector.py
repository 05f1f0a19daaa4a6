"""A collector for tests: takes spans by OTLP/HTTP on a real socket and decodes them."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class Span:
    """What a test asks of a span."""

    name: str
    kind: int  # 1 internal, 2 server, 3 client
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    is_error: bool


@dataclass
class SpanCollector:
    """`answers`: the status it gives; None: it never answers until it is closed."""

    answers: int | None = 200
    spans: list[Span] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""
    _closing: threading.Event = field(default_factory=threading.Event)

    def take(self, path: str, body: bytes) -> None:
        self.paths.append(path)
        self.bodies.append(body)
        for part in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(_attributes(part.resource.attributes))
            for scope in part.scope_spans:
                self.spans.extend(_span(one) for one in scope.spans)

    def named(self, request_id: str) -> list[Span]:
        """Return the spans of one request, in the order in which they began."""
        found = [one for one in self.spans if one.attributes.get("rhodeck.request_id") == request_id]
        return sorted(found, key=lambda one: (one.start_ns, one.kind != 2))

    @contextlib.contextmanager
    def serving(self) -> Generator[SpanCollector]:
        """Serve on a free port of the loopback until the block ends."""
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.take(self.path, body)
                if collector.answers is None:
                    collector._closing.wait()
                    self.close_connection = True
                    return
                self.send_response(collector.answers)
                payload = ExportTraceServiceResponse().SerializeToString()
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            self.url = f"http://127.0.0.1:{server.server_address[1]}"
            thread = threading.Thread(target=server.serve_forever, args=(0.05,))
            thread.start()
            try:
                yield self
            finally:
                self._closing.set()
                server.shutdown()
                thread.join()


def _span(one: Any) -> Span:
    return Span(
        one.name,
        one.kind,
        one.trace_id.hex(),
        one.span_id.hex(),
        one.parent_span_id.hex(),
        one.start_time_unix_nano,
        one.end_time_unix_nano,
        _attributes(one.attributes),
        one.status.code == 2,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
