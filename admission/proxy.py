"""The path of an inference request: read, identify, admit, send, relay, book.

Times are seconds, sizes bytes. Every way out goes through `Passage.finish`, which is synchronous, so
no cancellation can leave a lease open. Prevents: a client that left still holding GPU time, a retry
after the first byte, and an engine's words about itself reaching a client as ours.
"""

from __future__ import annotations

import asyncio
from typing import Final

from admission.answers import (
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
from admission.inbound import BodyTooLarge, ClientLeft, Inbound
from admission.passage import Passage
from admission.passthrough import PASSED, Passthrough
from admission.repeats import LOST, RETRY_COUNT_HEADER
from admission.request_ids import new_request_id
from admission.sse import usage_in
from admission.state import GatewayState
from admission.trace_context import TRACEPARENT
from admission.upstream import Exchange, NodeFailed, Overdue
from fleet.errors import FleetError, InvalidInput, NotFound, Unauthenticated, Unavailable
from fleet.offers import Dispatch
from fleet.outcomes import Outcome
from fleet.readings import Reason

#: An engine that said all has so long to end its answer; then the connection is cut, the lease is free.
_CLOSING_S: Final = 2.0


class BodyRoom:
    """Memory for request bodies, shared by all requests: from the first byte to the end of the answer."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0


class BodyBooking:
    """What one request holds of the room."""

    __slots__ = ("_booked_bytes", "_room")

    def __init__(self, room: BodyRoom) -> None:
        self._room, self._booked_bytes = room, 0

    def book(self, more_bytes: int) -> None:
        """Take room for more bytes. Raises Unavailable when there is none.

        A tenant's quota is not asked before its body is read.
        """
        room = self._room
        if room.held_bytes + more_bytes > room.limit_bytes:
            raise Unavailable(
                f"this gateway holds {room.held_bytes} bytes of requests "
                f"and takes at most {room.limit_bytes}",
                hint="Try again shortly",
            )
        self._booked_bytes += more_bytes
        room.held_bytes += more_bytes

    def give_back(self) -> None:
        """Give all of it back."""
        self._room.held_bytes -= self._booked_bytes
        self._booked_bytes = 0


class Proxy:
    """Handles `/v1` inference requests of one gateway."""

    def __init__(self, state: GatewayState, link: EngineLink, passed: Passthrough) -> None:
        self._state = state
        self.passed = passed
        self._link = link
        self._attempts = Attempts(state, link)
        settings = state.settings  # read here: a model of pydantic is slow to ask
        self._body_bytes, self._answer_bytes = settings.body_bytes, settings.answer_bytes
        self._total_timeout_s = settings.total_timeout_s
        self.bodies = BodyRoom(settings.bodies_bytes)

    async def handle(self, endpoint: str, request: Inbound) -> None:
        """Answer one request. Never raises but for cancellation."""
        booking = BodyBooking(self.bodies)
        try:
            found = await self._read(endpoint, request, booking)
            if found is not None:
                caller, call = found
                await self._pass(request, caller, call)
        finally:
            booking.give_back()

    async def _read(
        self, endpoint: str, request: Inbound, booking: BodyBooking
    ) -> tuple[Caller, Call] | None:
        """Return who asks and for what; None when that was answered already."""
        state = self._state
        try:
            caller = self._identify(request)
            raw = request.body_at_hand(self._body_bytes, booking.book)
            if raw is None:
                if _declared_length(request) > self._body_bytes:
                    raise BodyTooLarge
                raw = await request.body(self._body_bytes, booking.book)
            if endpoint not in PASSED:
                return caller, self._parse(endpoint, raw)
            send_answer(request, await self.passed.answer(caller, endpoint, raw))
        except ClientLeft:
            pass
        except BodyTooLarge:
            state.metrics.invalid_requests += 1
            send_answer(request, too_large_answer(self._body_bytes), close=True)
        except FleetError as exc:
            if isinstance(exc, Unauthenticated):
                state.metrics.auth_failures += 1
            else:
                state.metrics.invalid_requests += 1
            send_answer(request, invalid_answer(exc), close=True)
        return None

    async def _pass(self, request: Inbound, caller: Caller, call: Call) -> None:
        """Take a call that can be served to its end."""
        state, headers = self._state, request.headers
        passage = Passage(state.ledger, caller, call, new_request_id())
        if state.tracing is not None or TRACEPARENT in request.names:
            passage.traced(headers, state.tracing)
        may_repeat = RETRY_COUNT_HEADER in request.names or bool(state.repeats)
        if may_repeat:
            now_s = state.clock.monotonic_s()
            if state.repeats.is_repeat(caller.tenant, headers, call.raw, now_s):
                passage.counts.repeated += 1
        try:
            request.watch()
            answer = await self._attempts.serve(passage, request, self._exchange)
            if answer is not None:
                request.disarm()
                send_answer(request, answer, more=passage.headers())
        except ClientLeft:
            passage.finish(Outcome.CLIENT_GONE)
        except asyncio.CancelledError:
            if request.has_left:
                passage.finish(Outcome.CLIENT_GONE)
            else:  # the process stops and would not wait longer
                passage.finish(Outcome.DRAINING)
                self._say_stopped(passage, request)
            raise
        finally:
            if not passage.is_finished:  # a fault of ours; nothing may stay booked
                passage.finish(Outcome.UPSTREAM_ERROR)
            if passage.suspects:  # its client did not wait for what another node would say
                self._link.unanswered(passage)
            if passage.outcome in LOST:
                state.repeats.lost(caller.tenant, headers, call.raw, state.clock.monotonic_s())

    def _say_stopped(self, passage: Passage, request: Inbound) -> None:
        reason = "The gateway is shutting down."
        if passage.ttft_s is None:
            answer = outcome_answer(Outcome.DRAINING, reason)
            send_answer(request, answer, close=True, more=passage.headers())
        else:
            told = broken_stream(passage.call, Outcome.DRAINING, reason)
            request.end(told)

    def _identify(self, request: Inbound) -> Caller:
        headers = request.headers
        assignment = self._state.assignment
        if assignment is None:  # no policy never means no limit
            raise Unavailable("this gateway has no assignment yet", hint="Try again shortly")
        if b"content-encoding" in request.names:
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

    # -- the exchange -------------------------------------------------------------------------------

    async def _exchange(self, passage: Passage, request: Inbound, dispatch: Dispatch) -> None:
        """Send to the node and relay the answer. Raises NodeFailed only before the client got a byte."""
        exchange = await self._link.open(passage, dispatch)
        exchange.ends_within(self._total_timeout_s)
        try:
            if exchange.status >= 400 or not exchange.is_stream:
                await self._relay_whole(passage, request, exchange)
            else:
                await self._relay_stream(passage, request, exchange)
        except NodeFailed as exc:
            if not isinstance(exc, Overdue):
                self._link.failed(passage, dispatch.node, exc)
            raise
        finally:
            exchange.close()

    async def _relay_whole(self, passage: Passage, request: Inbound, exchange: Exchange) -> None:
        body = exchange.body_at_hand(self._answer_bytes)
        if body is None:
            body = await exchange.body(self._answer_bytes)
        status = exchange.status
        if status >= 500:
            raise NodeFailed(Reason.HTTP_ERROR, f"it answered {status}")
        self._link.begins(passage)
        passage.usage = usage_in(body) if status < 400 else None
        outcome = whole_outcome(passage.call, status, body)
        passage.entry.reason = "" if status < 400 else f"The engine answered {status}."
        self._link.judged(passage, outcome)
        request.disarm()
        passage.finish(outcome, used_nothing=status >= 400)
        headers = passage.headers()
        headers.append((b"content-type", exchange.content_type.encode("ascii", "replace")))
        request.answer(status, headers, body)

    async def _relay_stream(self, passage: Passage, request: Inbound, exchange: Exchange) -> None:
        reader = reader_of(passage.call)
        failure: NodeFailed | None = None

        def relay(chunk: bytes) -> bool:
            if request.has_left:
                return False  # the task hears of it next
            if passage.ttft_s is None:
                self._link.begins(passage)
                self._start_stream(passage, request)
            was_done = reader.is_done
            passed = reader.feed(chunk)
            passage.events, passage.usage = reader.events, reader.usage
            if passage.suspects and reader.events and not reader.has_error:
                self._link.blame.answered(passage)
            self._link.extend(passage)
            if reader.is_done and not was_done:
                request.disarm()  # all is said: who leaves now had the answer
                exchange.ends_within(_CLOSING_S)
            return request.write_on(passed)

        try:
            while not await exchange.pipe(relay):
                await request.drained()
        except NodeFailed as exc:
            if passage.ttft_s is None:
                raise
            failure = exc
        outcome, reason = _ending(reader, failure)
        if outcome is Outcome.COMPLETED or not isinstance(failure, Overdue):
            self._link.judged(passage, outcome)
        passage.entry.reason = reason
        passage.finish(outcome)
        if passage.ttft_s is None:
            send_answer(request, outcome_answer(outcome, reason), more=passage.headers())
            return
        if outcome is Outcome.COMPLETED or reader.has_error:
            request.disarm()
            request.end(reader.rest())
        else:
            self._end_stream(passage.call, request, outcome, reason)

    def _start_stream(self, passage: Passage, request: Inbound) -> None:
        passage.first_byte()
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
            *passage.headers(),
        ]
        request.start(200, headers)

    def _end_stream(self, call: Call, request: Inbound, outcome: Outcome, reason: str) -> None:
        request.disarm()
        request.end(broken_stream(call, outcome, reason))


def _declared_length(request: Inbound) -> int:
    """Return the body's length as the head gives it (the parser has checked it); 0 when it does not."""
    for name, value in request.headers:
        if name == b"content-length":
            return int(value)
    return 0


def _ending(reader: Reader, failure: NodeFailed | None) -> tuple[Outcome, str]:
    """Say how a stream ended: an end mark without an error is a finished one, however the rest breaks."""
    if reader.has_error:
        return Outcome.UPSTREAM_ERROR, "The engine reported an error."
    if reader.is_done:
        return Outcome.COMPLETED, ""
    if failure is not None:
        outcome = Outcome.UPSTREAM_TIMEOUT if failure.is_timeout else Outcome.UPSTREAM_ERROR
        return outcome, f"The engine failed: {failure}."
    return Outcome.UPSTREAM_ERROR, "The engine's answer broke off."
