"""Answers of the gateway itself, in the OpenAI error form, and how an answer is sent.

Seconds and milliseconds are named in the headers. The status of a refusal comes from one table,
`fleet.outcomes.HTTP_STATUS`. Prevents: a refusal that does not say which limit, how much of it is used
and when to come back; and an engine's address or a traceback in an answer.
"""

from __future__ import annotations

from typing import Any

import orjson

from admission.inbound import HeaderList, Inbound
from fleet.errors import FleetError, Forbidden, NotFound, Unauthenticated, Unavailable
from fleet.offers import Evicted, Limit, Refused
from fleet.outcomes import HTTP_STATUS, Outcome

JSON_TYPE = b"application/json"
_LIMIT_HEADERS = {"tokens_per_minute": b"tokens", "in_flight_tokens": b"tokens-in-flight",
                  "concurrent_requests": b"requests"}  # fmt: skip
_RATE_LIMITED = frozenset(outcome for outcome, status in HTTP_STATUS.items() if status == 429)


class Answer:
    """A whole answer."""

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(
        self,
        status: int,
        body: bytes,
        headers: tuple[tuple[bytes, bytes], ...] = (),
        content_type: bytes = JSON_TYPE,
    ) -> None:
        self.status = status
        self.body = body
        self.headers = headers
        self.content_type = content_type


def send_answer(
    request: Inbound, answer: Answer, *, close: bool = False, more: HeaderList | None = None
) -> None:
    """Send a whole answer with `more` headers; `close`: and close the connection behind it."""
    if close:
        request.keeps_alive = False
    headers: HeaderList = [(b"content-type", answer.content_type), *answer.headers]
    if more is not None:
        headers += more
    request.answer(answer.status, headers, answer.body)


def error_body(
    message: str, kind: str, code: str | None, param: str | None = None, limit: Limit | None = None
) -> bytes:
    """Return an OpenAI-style error as JSON; `limit` adds its name, quota and use."""
    error: dict[str, Any] = {"message": message, "type": kind, "code": code, "param": param}
    if limit is not None:
        error |= {
            "limit_name": limit.name,
            "limit": limit.quota,
            "used": limit.used,
            "needed": limit.needed,
        }
    return orjson.dumps({"error": error})


def invalid_answer(exc: FleetError) -> Answer:
    """Return the answer to a request that cannot be used at all (it was never offered to the gate)."""
    message = f"{exc.message}. {exc.hint}".rstrip(". ") + "."
    if isinstance(exc, Unauthenticated):
        headers = ((b"www-authenticate", b"Bearer"),)
        return Answer(401, error_body(message, "authentication_error", "invalid_api_key"), headers)
    if isinstance(exc, Forbidden):
        return Answer(403, error_body(message, "permission_error", "tenant_not_in_policy"))
    if isinstance(exc, Unavailable):
        return Answer(503, error_body(message, "server_error", Outcome.NO_NODES), ((b"retry-after", b"1"),))
    if isinstance(exc, NotFound):
        return Answer(404, error_body(message, "invalid_request_error", "model_not_found", exc.field))
    return Answer(400, error_body(message, "invalid_request_error", "invalid_request", exc.field))


def too_large_answer(limit_bytes: int) -> Answer:
    """Return the answer to a body over the limit."""
    message = f"The body is larger than {limit_bytes} bytes."
    return Answer(413, error_body(message, "invalid_request_error", "body_too_large"))


def refusal_answer(refused: Refused | Evicted) -> Answer:
    """Return the answer to a request the gate refused or evicted."""
    limit = refused.limit if isinstance(refused, Refused) else None
    headers = _retry_headers(refused.retry_after_s, refused.retry_after_ms) + _limit_headers(limit)
    return outcome_answer(refused.outcome, refused.reason, headers, limit)


def outcome_answer(
    outcome: Outcome, reason: str, headers: HeaderList | None = None, limit: Limit | None = None
) -> Answer:
    """Return the answer to a request that ended as `outcome` before its first byte."""
    body = error_body(reason, error_type(outcome), outcome.value, None, limit)
    return Answer(HTTP_STATUS[outcome], body, tuple(headers or ()))


def error_type(outcome: Outcome) -> str:
    """Return the OpenAI error type of an outcome."""
    if outcome in _RATE_LIMITED:
        return "rate_limit_error"
    if outcome is Outcome.REJECTED_TIER:
        return "permission_error"
    if outcome is Outcome.REJECTED_TOO_LARGE:
        return "invalid_request_error"
    return "server_error"


def stream_error(outcome: Outcome, reason: str) -> bytes:
    """Return the event that tells a client its stream broke off."""
    return b"data: " + error_body(reason, error_type(outcome), outcome.value) + b"\n\n"


def _retry_headers(seconds: int | None, milliseconds: int | None) -> HeaderList:
    headers: HeaderList = []
    if seconds is not None:
        headers.append((b"retry-after", b"%d" % max(seconds, 1)))
    if milliseconds is not None:
        headers.append((b"retry-after-ms", b"%d" % max(milliseconds, 1)))
    return headers


def _limit_headers(limit: Limit | None) -> HeaderList:
    if limit is None:
        return []
    name = _LIMIT_HEADERS.get(limit.name, limit.name.replace("_", "-").encode())
    left = limit.quota - limit.used if limit.left is None else limit.left
    headers: HeaderList = [
        (b"x-ratelimit-limit-" + name, b"%d" % limit.quota),
        (b"x-ratelimit-remaining-" + name, b"%d" % max(left, 0)),
    ]
    if limit.reset_s is not None:
        headers.append((b"x-ratelimit-reset-" + name, b"%.3fs" % limit.reset_s))
    return headers
