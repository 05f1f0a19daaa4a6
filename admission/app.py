"""The paths of the gateway: what handles which request.

`/v1/*` goes straight to the proxy, without a framework between. Prevents: a router, middleware or
exception handler adding its own time and its own answers to every request.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from collections.abc import Iterator

import orjson

from admission import VERSION
from admission.admin import Admin
from admission.answers import Answer, error_body, send_answer
from admission.calls import ENDPOINTS
from admission.directory import MODELS, models_answer, unserved_answer
from admission.estimate_gauges import estimate_families
from admission.gate_gauges import gate_families, phase_families
from admission.inbound import BodyTooLarge, ClientLeft, Inbound
from admission.metrics import CONTENT_TYPE, Family
from admission.node_gauges import node_families
from admission.nodes import NodeBook
from admission.passthrough import PASSED
from admission.proxy import Proxy
from admission.quota_gauges import quota_families
from admission.siblings import sibling_families
from admission.state import GatewayState
from admission.tracing_form import span_families
from admission.usage import UsageFlusher
from compiled import load

log = logging.getLogger(__name__)

_NODE_STATES = ("open", "trial", "closed", "ejected", "draining")
_ELSEWHERE = Answer(404, error_body("served on the admin port only", "invalid_request_error", None))


class App:
    """Handles the requests of one gateway."""

    def __init__(
        self,
        state: GatewayState,
        nodes: NodeBook,
        proxy: Proxy,
        admin: Admin,
        flusher: UsageFlusher,
        lag: LoopLag,
        admin_port: int | None = None,
    ) -> None:
        """`admin_port`: where alone /admin and /metrics are served; None: on every port."""
        self._admin_port = admin_port
        self._state = state
        self._nodes = nodes
        self._proxy = proxy
        self._admin = admin
        self._flusher = flusher
        self._lag = lag

    async def handle(self, request: Inbound) -> None:
        """Answer one request."""
        path = request.path
        endpoint = ENDPOINTS.get(path)
        if endpoint is None and path in PASSED:
            endpoint = path
        if endpoint is not None and request.method == "POST":
            await self._proxy.handle(endpoint, request)
            return
        if self._is_elsewhere(request):
            send_answer(request, _ELSEWHERE)
            return
        if path.startswith("/admin/"):
            try:
                send_answer(request, await self._admin.handle(request))
            except BodyTooLarge:
                body = error_body("the body is too large", "invalid_request_error", "body_too_large")
                send_answer(request, Answer(413, body), close=True)
            except ClientLeft:
                return
            return
        if path == "/metrics" and request.method in ("GET", "HEAD"):
            send_answer(request, await self._metrics())
            return
        send_answer(request, self._small(request))

    def _is_elsewhere(self, request: Inbound) -> bool:
        """Say whether a path is served on the admin port only, and this is not that."""
        path = request.path
        if self._admin_port is None or not (path == "/metrics" or path.startswith("/admin/")):
            return False
        return request.port != self._admin_port

    def _small(self, request: Inbound) -> Answer:
        path = request.path
        if request.method not in ("GET", "HEAD"):
            return unserved_answer(request.method, path)
        match path:
            case "/healthz":
                return Answer(200, b'{"status":"ok"}')
            case "/readyz":
                return self._readiness()
            case _ if path == MODELS or path.startswith(MODELS + "/"):
                return models_answer(self._state, request.headers, path)
            case _:
                return unserved_answer(request.method, path)

    def _readiness(self) -> Answer:
        state, said = self._state, self._state.siblings
        about: dict[str, object] = {"ready": state.is_ready}
        if not state.is_ready:
            about["reason"] = "draining" if state.is_draining else "no assignment in force"
        if said is not None:
            about["processes"] = {"serving": said.serving, "of": said.processes}
        return Answer(200 if state.is_ready else 503, orjson.dumps(about))

    # -- metrics ------------------------------------------------------------------------------------

    async def _metrics(self) -> Answer:
        """Return the page, letting requests pass between its parts."""
        parts: list[bytes] = []
        for part in self._state.metrics.parts(self._gauges()):
            parts.append(part)
            await asyncio.sleep(0)
        return Answer(200, b"".join(parts), (), CONTENT_TYPE)

    def _gauges(self) -> Iterator[Family]:
        state, prefix = self._state, "rhodeck_gateway_"
        yield from state.metrics.held()
        limiters = None if state.assignment is None else state.assignment.policy.limiters
        snapshot = state.gate.snapshot(state.clock.monotonic_s())
        yield from gate_families(snapshot, limiters)
        yield from quota_families(snapshot, state.quotas, state.room.exact)
        yield from self._proxy.passed.families()
        yield from estimate_families(state.estimator, state.prompt_counts)
        yield from span_families(state.tracing)
        yield Family(prefix + "nodes", "Nodes by state.", ("state",), self._nodes_by_state())
        yield from state.room.recalls.families()
        yield from phase_families(state.gate.phases)
        yield from node_families(self._nodes.outliers, state.clock.monotonic_s())
        yield from sibling_families(state.siblings)
        named = {(state.settings.name, VERSION): 1}
        yield Family(prefix + "info", "The process that answers: 1.", ("gateway", "version"), named)
        built = {(str(load.is_compiled()).lower(), platform.python_version()): 1}
        yield Family(prefix + "build_info", "How its hot modules run: 1.", ("compiled", "python"), built)
        generation = state.assignment.generation if state.assignment else 0
        single: tuple[tuple[str, str, float, str], ...] = (
            ("generation", "Generation of the assignment in force; 0: none.", generation, "gauge"),
            ("ready", "1 while requests are admitted.", int(state.is_ready), "gauge"),
            ("loop_lag_seconds", "Largest recent delay of the event loop.", self._lag.recent_s(), "gauge"),
            ("held_body_bytes", "Request bodies in memory.", self._proxy.bodies.held_bytes, "gauge"),
            ("renewed_total", "Requests sent again on a new connection: the kept one had been closed.",
             self._nodes.upstream.renewed, "counter"),
            ("usage_spool_bytes", "Usage records on disk.", state.spool.size_bytes, "gauge"),
            ("usage_dropped_total", "Usage records lost to a full or failing disk.",
             state.spool.dropped_records, "counter"),
            ("usage_flush_failures_total", "Writes and flushes of usage the disk refused.",
             self._flusher.failures + state.journal.failures, "counter"),
        )  # fmt: skip
        for name, help_text, value, kind in single:
            yield Family(prefix + name, help_text, (), {(): value}, kind)
        yield Family("process_resident_memory_bytes", "Memory of the process.", (), {(): _resident_bytes()})

    def _nodes_by_state(self) -> dict[tuple[str, ...], int]:
        counts: dict[tuple[str, ...], int] = {(name,): 0 for name in _NODE_STATES}
        snapshot = self._state.gate.snapshot(self._state.clock.monotonic_s())
        for node, because in self._nodes.conditions(snapshot.nodes).items():
            name = because or ("trial" if self._nodes.is_on_trial(node) else "open")
            counts[(name if name in _NODE_STATES else "closed",)] += 1
        return counts


class LoopLag:
    """How late the event loop runs: the largest delay of a 0.25 s timer over about ten seconds."""

    def __init__(self) -> None:
        self._seen: list[float] = [0.0] * 40

    def recent_s(self) -> float:
        """Return the largest recent delay in seconds."""
        return max(self._seen)

    async def run(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        index = 0
        while True:
            due = loop.time() + 0.25
            await asyncio.sleep(0.25)
            self._seen[index % len(self._seen)] = max(loop.time() - due, 0.0)
            index += 1


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
