"""How answers end, by endpoint: who reads a stream, what a whole answer means, what a broken stream says.

Prevents: an error of the client's, a redirect or a failure told inside an answer counted as an answer that
was given, so that ratios of success say more than clients saw.
"""

from __future__ import annotations

from typing import Final

from admission.answers import error_body, error_type, stream_error
from admission.calls import Call
from admission.responses_call import ResponsesReader, answer_failed, failure_event
from admission.sse import StreamReader
from fleet.outcomes import Outcome

Reader = StreamReader | ResponsesReader
_COMPLETED: Final = Outcome.COMPLETED


def reader_of(call: Call) -> Reader:
    """Return what looks at the call's event stream."""
    if call.endpoint == "responses":
        return ResponsesReader()
    return StreamReader(hides_usage=call.hides_usage)


def whole_outcome(call: Call, status: int, body: bytes) -> Outcome:
    """Return how a request ended that was answered whole with `status` (below 500)."""
    if status >= 400:
        return Outcome.ENGINE_REFUSED
    if call.endpoint == "responses" and answer_failed(body):
        return Outcome.UPSTREAM_ERROR
    return _COMPLETED


def broken_stream(call: Call, outcome: Outcome, reason: str) -> bytes:
    """Return the last event of a stream that broke off, in the form the endpoint's clients read."""
    if call.endpoint == "responses":
        return failure_event(error_body(reason, error_type(outcome), outcome.value))
    return stream_error(outcome, reason)
