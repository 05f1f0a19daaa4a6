"""The path of an inference request: read, identify, admit, send, relay, book.

Times are seconds, sizes bytes. Every way out goes through `Passage.finish`, which is synchronous, so
no cancellation can leave a lease open. Prevents: a client that left still holding GPU time, a retry
after the first byte, and an engine's words about itself reaching a client as ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any

from admission.answers import (
    Answer,
    Receive,
    Send,
    invalid_answer,
    outcome_answer,
    send_answer,
    too_large_answer,
)
from admission.attempts import Attempts
from admission.calls import Call, parse_call
from admission.endings import Reader, broken_stream, reader_of, whole_outcome
from admission.engine_link import EngineLink
from admission.identity import Caller, caller_of
from admission.passage import Passage
from admission.passthrough import PASSED, Passthrough
from admission.repeats import LOST
from admission.sse import usage_in
from admission.state import GatewayState
from admission.upstream import Exchange, NodeFailed
from fleet.errors import FleetError, InvalidInput, NotFound, Unauthenticated, Unavailable
from fleet.offers import Dispatch
from fleet.outcomes import Outcome
from fleet.readings import Reason


class ClientLeft(Exception):
    """The client closed its connection."""


class BodyTooLarge(Exception):
    """The body passed the limit; the rest was not read."""


class BodyRoom:
    """Memory for request bodies, shared by all requests: from the first byte to the end of the answer."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.held_bytes = 0

    @contextlib.contextmanager
    def booking(self) -> Generator[Callable[[int], None]]:
        """Yield a function that books bytes for one request; all are given back at the end of the block.

        It raises Unavailable when there is no room: a tenant's quota is not asked before its body is read.
        """
        booked = 0

        def book(more_bytes: int) -> None:
            nonlocal booked
            if self.held_bytes + more_bytes > self._limit_bytes:
                raise Unavailable(
                    f"this gateway holds {self.held_bytes} bytes of requests and takes at most "
                    f"{self._limit_bytes}",
                    hint="Try again shortly",
                )
            booked += more_bytes
            self.held_bytes += more_bytes

        try:
            yield book
        finally:
            self.held_bytes -= booked


async def read_body(receive: Receive, limit_bytes: int, book: Callable[[int], None] | None = None) -> bytes:
    """Return the body. Raises BodyTooLarge, what `book` raises, or ClientLeft when it ends early."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit_bytes:
            raise BodyTooLarge
        if book is not None:
            book(len(part))
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


class ClientWatch:
    """Cancels the task inside the `async with` when the client leaves; turns that into ClientLeft."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_over = False
        self._has_left = False

    async def __aenter__(self) -> ClientWatch:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a client is watched from inside a task")
        self._task: asyncio.Task[Any] = task
        self._watcher = asyncio.ensure_future(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        self._watcher.cancel()
        if self._has_left and isinstance(exc, asyncio.CancelledError) and self._task.uncancel() == 0:
            raise ClientLeft from exc

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._is_over:
            self._has_left = True
            self._task.cancel()

    def disarm(self) -> None:
        """From here on the client may leave without stopping anything."""
        self._is_over = True


class Proxy:
    """Handles `/v1` inference requests of one gateway."""

    def __init__(self, state: GatewayState, link: EngineLink, passed: Passthrough) -> None:
        self._state = state
        self.passed = passed
        self._link = link
        self._attempts = Attempts(state, link)
        self.bodies = BodyRoom(state.settings.bodies_bytes)

    async def handle(self, endpoint: str, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request. Never raises but for cancellation by shutdown."""
        with self.bodies.booking() as book:
            await self._handle(endpoint, scope, receive, send, book)

    async def _handle(
        self,
        endpoint: str,
        scope: dict[str, Any],
        receive: Receive,
        send: Send,
        book: Callable[[int], None],
    ) -> None:
        state = self._state
        try:
            caller = self._identify(scope)
            if _declared_length(scope) > state.settings.body_bytes:
                raise BodyTooLarge
            raw = await read_body(receive, state.settings.body_bytes, book)
            if endpoint in PASSED:
                await send_answer(send, await self.passed.answer(caller, endpoint, raw))
                return
            call = self._parse(endpoint, raw)
        except ClientLeft:
            return
        except BodyTooLarge:
            state.metrics.invalid_requests += 1
            await send_answer(send, too_large_answer(state.settings.body_bytes), close=True)
            return
        except FleetError as exc:
            if isinstance(exc, Unauthenticated):
                state.metrics.auth_failures += 1
            else:
                state.metrics.invalid_requests += 1
            await send_answer(send, invalid_answer(exc), close=True)
            return
        passage = Passage(state.ledger, caller, call, f"req-{secrets.token_hex(12)}")
        if state.repeats.is_repeat(caller.tenant, scope["headers"], raw, state.clock.monotonic_s()):
            state.metrics.repeated[passage.flow] += 1
        try:
            async with ClientWatch(receive) as watch:
                await self._serve(passage, watch, send)
        except ClientLeft:
            passage.finish(Outcome.CLIENT_GONE)
        except asyncio.CancelledError:  # the process stops and would not wait longer
            passage.finish(Outcome.DRAINING)
            await self._say_stopped(passage, send)
            raise
        finally:
            passage.finish(Outcome.UPSTREAM_ERROR)  # a fault of ours; nothing may stay booked
            if passage.outcome in LOST:
                state.repeats.lost(caller.tenant, scope["headers"], raw, state.clock.monotonic_s())

    async def _say_stopped(self, passage: Passage, send: Send) -> None:
        reason = "The gateway is shutting down."
        if passage.ttft_s is None:
            answer = outcome_answer(Outcome.DRAINING, reason)
            await send_answer(send, answer, close=True, more=passage.headers())
        else:
            told = broken_stream(passage.call, Outcome.DRAINING, reason)
            await send({"type": "http.response.body", "body": told})

    def _identify(self, scope: dict[str, Any]) -> Caller:
        headers = scope["headers"]
        assignment = self._state.assignment
        if assignment is None:  # no policy never means no limit
            raise Unavailable("this gateway has no assignment yet", hint="Try again shortly")
        for name, value in headers:
            if name == b"content-encoding" and value.lower() != b"identity":
                raise InvalidInput("a compressed body is not read", field="content-encoding")
        return caller_of(headers, self._state.keys, assignment.policy)

    def _parse(self, endpoint: str, raw: bytes) -> Call:
        call = parse_call(endpoint, raw)
        if call.model not in self._state.models:
            raise NotFound(
                f"model {call.model[:100]!r} is not served here",
                field="model",
                hint="GET /v1/models lists the models",
            )
        return call

    async def _serve(self, passage: Passage, watch: ClientWatch, send: Send) -> None:
        answer = await self._attempts.serve(
            passage, lambda passage, dispatch: self._exchange(passage, watch, send, dispatch)
        )
        if answer is not None:
            watch.disarm()
            await send_answer(send, answer, more=passage.headers())

    # -- the exchange -------------------------------------------------------------------------------

    async def _exchange(self, passage: Passage, watch: ClientWatch, send: Send, dispatch: Dispatch) -> None:
        """Send to the node and relay the answer. Raises NodeFailed only before the client got a byte."""
        deadline_s = self._state.settings.total_timeout_s
        exchange = await self._link.open(passage, dispatch)
        try:
            async with asyncio.timeout(deadline_s):
                if exchange.status >= 400 or not exchange.is_stream:
                    await self._relay_whole(passage, watch, send, exchange)
                else:
                    await self._relay_stream(passage, watch, send, exchange)
        except NodeFailed:
            self._link.failed(dispatch.node)
            raise
        except TimeoutError as exc:
            if passage.ttft_s is None:
                raise NodeFailed(Reason.TIMEOUT, f"no answer in {deadline_s:g} s") from exc
            passage.finish(Outcome.UPSTREAM_TIMEOUT)
            reason = f"The request ran longer than {deadline_s:g} s."
            await self._end_stream(passage.call, watch, send, Outcome.UPSTREAM_TIMEOUT, reason)
        finally:
            exchange.close()

    async def _relay_whole(
        self, passage: Passage, watch: ClientWatch, send: Send, exchange: Exchange
    ) -> None:
        body = await exchange.body(self._state.settings.answer_bytes)
        status = exchange.status
        if status >= 500:
            raise NodeFailed(Reason.HTTP_ERROR, f"it answered {status}")
        passage.usage = usage_in(body) if status < 400 else None
        outcome = whole_outcome(passage.call, status, body)
        self._link.judged(passage, outcome)
        watch.disarm()
        passage.finish(outcome, used_nothing=status >= 400)
        kind = exchange.content_type.encode("ascii", "replace")
        await send_answer(send, Answer(status, body, tuple(passage.headers()), kind))

    async def _relay_stream(
        self, passage: Passage, watch: ClientWatch, send: Send, exchange: Exchange
    ) -> None:
        reader = reader_of(passage.call)
        failure: NodeFailed | None = None
        try:
            async for chunk in exchange.chunks():
                if passage.ttft_s is None:
                    await self._start_stream(passage, send)
                passed = reader.feed(chunk)
                passage.events, passage.usage = reader.events, reader.usage
                self._link.extend(passage)
                if passed:
                    await send({"type": "http.response.body", "body": passed, "more_body": True})
        except NodeFailed as exc:
            if passage.ttft_s is None:
                raise
            failure = exc
        outcome, reason = _ending(reader, failure)
        self._link.judged(passage, outcome)
        passage.entry.reason = reason
        passage.finish(outcome)
        if passage.ttft_s is None:
            await send_answer(send, outcome_answer(outcome, reason), more=passage.headers())
            return
        if outcome is Outcome.COMPLETED or reader.has_error:
            watch.disarm()
            await send({"type": "http.response.body", "body": reader.rest()})
        else:
            await self._end_stream(passage.call, watch, send, outcome, reason)

    async def _start_stream(self, passage: Passage, send: Send) -> None:
        passage.first_byte()
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            *passage.headers(),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _end_stream(
        self, call: Call, watch: ClientWatch, send: Send, outcome: Outcome, reason: str
    ) -> None:
        watch.disarm()
        await send({"type": "http.response.body", "body": broken_stream(call, outcome, reason)})


def _declared_length(scope: dict[str, Any]) -> int:
    """Return the body's length as the head gives it (the parser has checked it); 0 when it does not."""
    return next((int(value) for name, value in scope["headers"] if name == b"content-length"), 0)


def _ending(reader: Reader, failure: NodeFailed | None) -> tuple[Outcome, str]:
    """Say how a stream ended: only an end mark without an error is a finished one."""
    if failure is not None:
        outcome = Outcome.UPSTREAM_TIMEOUT if failure.is_timeout else Outcome.UPSTREAM_ERROR
        return outcome, f"The engine failed: {failure}."
    if reader.has_error:
        return Outcome.UPSTREAM_ERROR, "The engine reported an error."
    if not reader.is_done:
        return Outcome.UPSTREAM_ERROR, "The engine's answer broke off."
    return Outcome.COMPLETED, ""
