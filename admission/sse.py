"""What flows from an engine to a client, looked at without being rewritten.

Owns the reading of a server-sent event stream and of a plain answer: usage, end mark, in-stream error.
Counts are tokens and events. Bytes pass as they came; an event is parsed only if it may hold usage, an
error or the end. Prevents: tokens billed by guess when the engine counted them, and a stream that broke
off taken for a finished one. Source: HTML standard, "Server-sent events" (but for lines that end in CR).
"""

from __future__ import annotations

import re
from typing import Any, Final, cast

import orjson

_HELD_BYTES: Final = 1 << 20  # an event longer than this passes unread
_BLANK_LINE = re.compile(
    rb"(\r?\n\r?\n)"
)  # parts events; what relays a stream may add some of the other kind
_MAX_TOKENS: Final = 2**31  # more than any request can hold: who counts that much is not believed


_loads: Final = orjson.loads


class Usage:
    """What the engine counted for one request."""

    __slots__ = ("cached_tokens", "output_tokens", "prompt_tokens")

    def __init__(self, prompt_tokens: int, output_tokens: int, cached_tokens: int | None) -> None:
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.cached_tokens = cached_tokens

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Usage) and (
            (self.prompt_tokens, self.output_tokens, self.cached_tokens)
            == (other.prompt_tokens, other.output_tokens, other.cached_tokens)
        )


def usage_of(document: object) -> Usage | None:
    """Return the usage an answer or chunk carries; None when it carries none that can be read."""
    if not isinstance(document, dict):
        return None
    found: object = cast("dict[str, Any]", document).get("usage")
    if not isinstance(found, dict):
        return None
    usage = cast("dict[str, Any]", found)
    if "input_tokens" in usage:  # as /v1/responses says it
        prompt, output = usage["input_tokens"], usage.get("output_tokens", 0)
    else:
        prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens", 0)
    if not _is_count(prompt) or not _is_count(output):
        return None
    details: object = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = cast("dict[str, Any]", details).get("cached_tokens") if isinstance(details, dict) else None
    return Usage(cast(int, prompt), cast(int, output), cast(int, cached) if _is_count(cached) else None)


def usage_in(body: bytes) -> Usage | None:
    """Return the usage of a whole JSON answer, or None.

    Where "usage" stands behind the choices, only what follows is read: it is a member of the answer itself
    exactly when the rest of the answer, with a brace before it, is an object.
    """
    begin = body.rfind(b'"usage"')
    if begin < 0:
        return None
    try:
        return usage_of(_loads(b"{" + body[begin:]))
    except orjson.JSONDecodeError:
        pass
    try:
        return usage_of(orjson.loads(body))
    except orjson.JSONDecodeError:
        return None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_TOKENS


class StreamReader:
    """One event stream. `feed` returns the bytes for the client, `rest` what is left at the end."""

    def __init__(self, *, hides_usage: bool) -> None:
        self._hides_usage = hides_usage
        self._held = b""
        self._is_readable = True
        self.usage: Usage | None = None
        self.events = 0  # complete events seen; one carries about one token
        self.is_done = False  # the end mark was seen
        self.has_error = False  # the engine reported an error inside the stream

    def feed(self, chunk: bytes) -> bytes:
        """Return what the client gets now. With hidden usage an unfinished event is held back."""
        if not self._is_readable:
            return chunk
        data = self._held + chunk if self._held else chunk
        end = end_of_events(data, len(self._held))
        whole, self._held = (data, b"") if end == len(data) else (data[:end], data[end:])
        passed = whole
        if whole:
            self.events += whole.count(b"\n\n") + whole.count(b"\n\r\n")
            if b'"usage"' in whole or b"[DONE]" in whole or b'"error"' in whole:
                passed = self._read_events(whole)
        if len(self._held) > _HELD_BYTES:
            self._is_readable = False
            passed, self._held = passed + self._held, b""
        return passed if self._hides_usage else chunk

    def rest(self) -> bytes:
        """Return an unfinished last event that was held back."""
        held, self._held = self._held, b""
        return held if self._hides_usage else b""

    def _read_events(self, whole: bytes) -> bytes:
        parts = _BLANK_LINE.split(whole)  # event, what ends it, event, what ends it, more line ends
        for at in range(0, len(parts) - 1, 2):
            if not self._is_for_client(parts[at]):
                parts[at] = parts[at + 1] = b""
                self.events -= 1
        return b"".join(parts)

    def _is_for_client(self, event: bytes) -> bool:
        """Read one event; False for the usage chunk that only we asked for."""
        payload = data_of(event)
        if payload == b"[DONE]":
            self.is_done = True
            self.events -= 1
            return True
        try:
            document = orjson.loads(payload)
        except orjson.JSONDecodeError:
            return True
        if not isinstance(document, dict):
            return True
        chunk = cast("dict[str, Any]", document)
        if chunk.get("error"):
            self.has_error = True
        usage = usage_of(chunk)
        if usage is None:
            return True
        self.usage = usage
        return chunk.get("choices") != []


def end_of_events(data: bytes, seen_bytes: int = 0) -> int:
    """Return where the last complete event ends, 0 for none. The first `seen_bytes` were without one."""
    begin = max(seen_bytes - 2, 0)
    plain, mixed = data.rfind(b"\n\n", begin), data.rfind(b"\n\r\n", begin)
    return max(plain + 2 if plain >= 0 else 0, mixed + 3 if mixed >= 0 else 0)


def data_of(event: bytes) -> bytes:
    """Return what an event carries: its data lines, without the names of their field."""
    if event.startswith(b"data:") and b"\n" not in event:  # nearly every one
        return event[5:].strip()
    return b"\n".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
