"""Prefill on one node, decode on another: the prompt's phase, before the request goes to its decode node.

Times are seconds, tokens counts. The engines move the KV cache themselves; what the prefill node answers
under `kv_transfer_params` is handed to the decode node as it is. Prevents: a prompt computed twice, room on
a prefill node that is never given back, and a client naming the memory an engine is to read.
Source: vLLM, "Disaggregated Prefilling" and the proxy of its NixlConnector integration tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import orjson

from admission.blame import Blame
from admission.calls import ENDPOINTS, Call
from admission.nodes import NodeBook
from admission.passage import Passage
from admission.state import GatewayState
from admission.upstream import NodeFailed, Upstream
from fleet.messages import NodeTarget
from fleet.offers import Dispatch, Lease, Refused
from fleet.outcomes import Outcome
from fleet.phases import Phase
from fleet.readings import Reason

_PATHS = {endpoint: path for path, endpoint in ENDPOINTS.items()}
#: Endpoints whose engines take `kv_transfer_params`; others run on a decode node from the beginning.
_IN_TWO_PHASES: Final = ("chat", "completions")
#: What the prefill node is told: keep the KV cache for another engine.
_FOR_ANOTHER = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_LEFT_OUT = ("stream_options", "min_tokens", "best_of")
_LOOK_AGAIN_S = 0.25  # at the nodes' newest state, while a prompt waits for room


class PrefillFailed(NodeFailed):
    """No prefill node computed the prompt; it says how the last one failed."""


class _Misled(NodeFailed):
    """The answer is about us, not about the client's request."""


class Prefills:
    """Runs the prefill phases of one gateway."""

    def __init__(
        self,
        state: GatewayState,
        nodes: NodeBook,
        upstream: Upstream,
        may_retry: Callable[[], bool],
        blame: Blame,
    ) -> None:
        """`may_retry` takes one from the retry budget that all requests share."""
        self._blame = blame
        self._state = state
        self._nodes = nodes
        self._upstream = upstream
        self._may_retry = may_retry
        self._news: dict[Phase, asyncio.Event] = {}

    def has_phases(self, passage: Passage, dispatch: Dispatch) -> bool:
        """Say whether the dispatched node only decodes, so that the prompt must be computed elsewhere."""
        node = self._nodes.standing(dispatch.node)
        return node is not None and node.only_decodes and passage.call.endpoint in _IN_TWO_PHASES

    async def run(self, passage: Passage, dispatch: Dispatch) -> Refused | None:
        """Compute the prompt on another node; set `passage.transfer`.

        Returns a refusal when no prefill node takes it in time. Raises PrefillFailed.
        """
        phases, lease = self._state.gate.phases, dispatch.lease
        failed: NodeFailed | None = None
        avoid: tuple[str, ...] = ()
        for attempt in range(self._state.settings.retries + 1):
            phase = phases.begin(passage.call.model, lease.tier, lease.prompt_tokens, avoid)
            try:
                refused = await self._room(phase, lease)
                if refused is not None:
                    phases.results["refused"] += 1
                    if failed is not None:
                        raise PrefillFailed(failed.reason, str(failed))
                    return refused
                passage.transfer = await self._send(passage, lease, phase)
            except PrefillFailed:
                raise
            except NodeFailed as exc:
                failed = exc
                passage.entry.prefilled(self._state.clock.monotonic_s(), str(exc))
                phases.results["failed"] += 1
                if passage.may_have_left:
                    passage.prefilled()
                if phase.node is not None:
                    self._note_failure(passage, phase.node, exc)
                    avoid = (*avoid, phase.node)
                is_late = exc.is_timeout and passage.may_have_left
                is_last = is_late or attempt == self._state.settings.retries
                if is_last or not self._may_retry():
                    raise PrefillFailed(exc.reason, str(exc)) from exc
            else:
                passage.entry.prefilled(self._state.clock.monotonic_s())
                passage.prefill_node = None if passage.transfer is None else phase.node
                phases.results["done" if passage.transfer is not None else "without_params"] += 1
                return None
            finally:
                phases.end(phase)
                self._start()
        return None

    def _note_failure(self, passage: Passage, node: str, exc: NodeFailed) -> None:
        """Count it against the node, or doubt it where the body may be at fault."""
        if exc.reason is Reason.REFUSED or isinstance(exc, _Misled) or not passage.may_have_left:
            self._nodes.request_failed(node)
        elif exc.is_timeout:
            self._blame.late(passage, node, None)
        else:
            self._blame.suspect(passage, node)

    async def _room(self, phase: Phase, lease: Lease) -> Refused | None:
        """Wait for room on a prefill node, as long as the request's tier may wait in all."""
        gate, clock = self._state.gate, self._state.clock
        deadline_s = lease.ticket.deadline_s
        news = self._news[phase] = asyncio.Event()
        try:
            while True:
                self._start()
                now_s = clock.monotonic_s()
                if phase.node is not None:
                    return None
                if not gate.phases.could_start(phase, now_s):
                    if await self._nodes.catch_up():
                        continue
                    reason = f"no prefill node takes {phase.tier} requests for {phase.model} now"
                    return gate.phases.refusal(Outcome.NO_NODES, reason)
                if now_s >= deadline_s:
                    reason = f"no prefill node had room for {phase.tokens} tokens in time"
                    return gate.phases.refusal(Outcome.EVICTED_WAIT, reason)
                try:
                    async with asyncio.timeout(min(_LOOK_AGAIN_S, deadline_s - now_s)):
                        await news.wait()
                except TimeoutError:
                    continue
        finally:
            del self._news[phase]

    def _start(self) -> None:
        """Book what has room now, and wake who waited for it."""
        for phase in self._state.gate.phases.starts(self._state.clock.monotonic_s()):
            self._news[phase].set()

    async def _send(self, passage: Passage, lease: Lease, phase: Phase) -> Mapping[str, Any] | None:
        """Return what the prefill node says about the KV cache it made; None: nothing.

        A 4xx is about the client's request: the decode node finds the same and its answer is the client's.
        """
        target = None if phase.node is None else self._nodes.target(phase.node)
        if target is None:
            raise NodeFailed(Reason.REFUSED, "the node left the fleet")
        passage.sending()
        passage.entry.prefilling(target.name, self._state.clock.monotonic_s())
        priority = self._state.engine_priority(lease.tier) if target.honours_priority else None
        try:
            answer = await self._ask(target, prefill_body(passage.call, priority), passage)
        except asyncio.CancelledError:
            if passage.may_have_left:  # on its way already: it counts as received
                passage.prefilled()
            raise
        passage.prefilled()
        self._nodes.request_worked(target.name)
        self._blame.worked(passage, target.name)
        if passage.suspects:
            if answer is None:
                self._blame.refused(passage, target.name)
            else:
                self._blame.answered(passage)
        return None if answer is None else transfer_in(answer)

    async def _ask(self, target: NodeTarget, body: bytes, passage: Passage) -> bytes | None:
        settings = self._state.settings
        url = target.base_url.rstrip("/") + _PATHS[passage.call.endpoint]
        exchange = await self._upstream.post(
            url, body, passage.request_id, passage.trace_lines(target.name), passage.unsent
        )
        try:
            async with asyncio.timeout(settings.total_timeout_s):
                answer = await exchange.body(settings.answer_bytes)
        except TimeoutError as exc:
            raise NodeFailed(Reason.TIMEOUT, f"no prefill in {settings.total_timeout_s:g} s") from exc
        finally:
            exchange.close()
        said = f"it answered {exchange.status} to a prefill"
        if 300 <= exchange.status < 400 or exchange.status in (401, 403, 407):
            raise _Misled(Reason.HTTP_ERROR, said)
        if exchange.status >= 500:
            raise NodeFailed(Reason.HTTP_ERROR, said)
        return answer if exchange.status < 400 else None


def prefill_body(call: Call, priority: int | None) -> bytes:
    """Return what a prefill node gets: one token of one answer, not streamed, the KV cache kept."""
    document = {key: value for key, value in call.engine_document().items() if key not in _LEFT_OUT}
    document |= {"stream": False, "max_tokens": 1, "n": 1, "kv_transfer_params": _FOR_ANOTHER}
    if "max_completion_tokens" in document:
        document["max_completion_tokens"] = 1
    if priority is not None:
        document["priority"] = priority
    return orjson.dumps(document)


def transfer_in(answer: bytes) -> Mapping[str, Any] | None:
    """Return the `kv_transfer_params` of an answer; None when there are none, or it is no JSON object."""
    try:
        document: object = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return None
    found = (
        cast("dict[str, Any]", document).get("kv_transfer_params") if isinstance(document, dict) else None
    )
    return cast("dict[str, Any]", found) if isinstance(found, dict) and found else None
