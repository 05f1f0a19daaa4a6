"""The trace a client's request belongs to, by W3C Trace Context: read from headers, written for engines.

Prevents: a header that is not a trace passed on (it could be anything), and one trace named twice.
Source: W3C Trace Context, "Traceparent header" and "Tracestate header".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

TRACEPARENT = b"traceparent"  # the header without which there is no trace
_TRACEPARENT = re.compile(
    rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[\x21-\x7e]{0,200})?"
)
_TRACESTATE = re.compile(rb"[\x20-\x7e]{1,512}")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Where in which trace a request was sent from."""

    trace_id: int
    span_id: int
    flags: int
    state: bytes  # of vendors; b"" for none

    def lines(self) -> bytes:
        """Return the header lines that say it."""
        head = b"traceparent: 00-%032x-%016x-%02x\r\n" % (self.trace_id, self.span_id, self.flags)
        return head + b"tracestate: " + self.state + b"\r\n" if self.state else head


def context_of(headers: Sequence[tuple[bytes, bytes]]) -> TraceContext | None:
    """Return the context in headers with lower-case names; None without a valid one.

    A trace state without a trace is none, and one that cannot be read is left out.
    """
    if b"traceparent" not in dict(headers):  # most requests
        return None
    parents, states = list[bytes](), list[bytes]()
    for name, value in headers:
        if name == TRACEPARENT:
            parents.append(value.strip())
        elif name == b"tracestate":
            states.append(value.strip())
    found = _TRACEPARENT.fullmatch(parents[0]) if len(parents) == 1 else None
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    trace_id, span_id = int(trace, 16), int(span, 16)
    if version == b"ff" or (version == b"00" and more) or not trace_id or not span_id:
        return None
    state = b",".join(one for one in states if one)
    return TraceContext(
        trace_id, span_id, int(flags, 16) & 0x03, state if _TRACESTATE.fullmatch(state) else b""
    )
