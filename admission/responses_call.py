"""The `/v1/responses` endpoint: what such a call asks for, and how its answer ends.

Owns the reading of its body and of its typed event stream. Sizes are bytes and tokens. Bytes pass as they
came. Prevents: a conversation kept at one engine asked for at another, a `response.failed` booked as
finished, and a prompt that hides in items nobody counts. Source: OpenAI API reference, "Responses" and
"Streaming events"; vLLM, `entrypoints/openai/responses/protocol.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import orjson

from admission.sse import Usage, data_of, end_of_events, usage_of
from fleet.errors import InvalidInput

#: Keys that keep state at one engine or read it back: another node would not have it.
_STATE_KEYS = ("background", "previous_response_id", "conversation")
#: Keys besides `input` and `instructions` that an engine makes prompt of.
_PROMPT_KEYS = ("tools", "text", "previous_response", "previous_input_messages", "prompt")
_PART_TEXTS = ("text", "refusal", "output", "arguments")
_FRAME_TOKENS = 4  # role and delimiters of one item
_HELD_BYTES = 4 << 20  # the last event holds the whole answer; a longer one passes unread
_ENDINGS = (b"response.completed", b"response.incomplete", b"response.failed", b"error")


@dataclass(frozen=True, slots=True)
class ResponsesInput:
    """What goes in, before it is a prompt: texts, and how many items and images there are."""

    texts: tuple[str, ...]
    other_bytes: int  # of what is prompt and no text: tools, formats, tool calls
    items: int
    images: int


def responses_input(body: Mapping[str, Any]) -> ResponsesInput:
    """Return the input of a call. Raises InvalidInput for one that cannot be read or needs kept state."""
    for key in _STATE_KEYS:
        if body.get(key):
            raise InvalidInput(
                f"{key} is not served: no engine keeps answers for the next call here",
                field=key,
                hint="Send the whole conversation as input",
            )
    instructions = body.get("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise InvalidInput("instructions must be a text", field="instructions")
    texts = [instructions] if instructions else []
    given: object = body.get("input")
    other_bytes = sum(_json_length(body.get(key)) for key in _PROMPT_KEYS)
    if isinstance(given, str):
        return ResponsesInput((*texts, given), other_bytes, 1 + len(texts), 0)
    if not isinstance(given, list) or not given:
        raise InvalidInput("input must be a text or a list of items", field="input")
    images = 0
    items = cast("list[object]", given)
    for item in items:
        if not isinstance(item, dict):
            raise InvalidInput("every item of input must be an object", field="input")
        fields = cast("dict[str, Any]", item)
        found, item_images = _item_texts(fields)
        texts += found
        images += item_images
        known = {"type", "role", "id", "status", "content", "summary", *_PART_TEXTS}
        other_bytes += sum(_json_length(fields[key]) for key in fields.keys() - known)
    return ResponsesInput(tuple(texts), other_bytes, len(items) + bool(instructions), images)


def _item_texts(item: Mapping[str, Any]) -> tuple[list[str], int]:
    """Return an item's texts, and how many parts of it are not text."""
    texts, others = list[str](), 0
    for key in (*_PART_TEXTS, "content", "summary"):
        value: object = item.get(key)
        if isinstance(value, str):
            texts.append(value)
            continue
        for part in cast("list[object]", value) if isinstance(value, list) else []:
            fields = cast("dict[str, Any]", part) if isinstance(part, dict) else {"text": part}
            found = [text for name in _PART_TEXTS if isinstance(text := fields.get(name), str)]
            texts += found
            others += not found
    return texts, others


def frame_tokens(found: ResponsesInput, image_tokens: int) -> int:
    """Return what items and images add to the texts, in tokens."""
    return found.items * _FRAME_TOKENS + found.images * image_tokens


def answer_failed(body: bytes) -> bool:
    """Say whether a whole answer with status 200 tells of a failure."""
    if b'"failed"' not in body:
        return False
    try:
        document: object = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(document, dict) and cast("dict[str, Any]", document).get("status") == "failed"


class ResponsesReader:
    """One typed event stream. It has the face of `admission.sse.StreamReader`."""

    def __init__(self) -> None:
        self._held = b""
        self._is_readable = True
        self.usage: Usage | None = None
        self.events = 0  # pieces of output seen; one carries about one token
        self.is_done = False  # completed, or incomplete because a bound was reached
        self.has_error = False  # the engine reported a failure

    def feed(self, chunk: bytes) -> bytes:
        """Look at what came, and return it as it is."""
        if not self._is_readable:
            return chunk
        data = self._held + chunk if self._held else chunk
        end = end_of_events(data, len(self._held))
        whole, self._held = data[:end], data[end:]
        self.events += whole.count(b".delta\n") + whole.count(b".delta\r\n")
        if any(name in whole for name in _ENDINGS):
            for event in whole.replace(b"\r\n", b"\n").split(b"\n\n"):
                self._read(event)
        if len(self._held) > _HELD_BYTES:
            self._is_readable, self._held = False, b""
        return chunk

    def rest(self) -> bytes:
        """Return what was held back: nothing."""
        return b""

    def _read(self, event: bytes) -> None:
        """Take in an event that ends an answer."""
        payload = data_of(event)
        if not payload or not any(name in event for name in _ENDINGS):
            return
        try:
            document: object = orjson.loads(payload)
        except orjson.JSONDecodeError:
            return
        if not isinstance(document, dict):
            return
        fields = cast("dict[str, Any]", document)
        match fields.get("type"):
            case "response.completed" | "response.incomplete":
                self.is_done = True
            case "response.failed" | "error":
                self.has_error = True
            case _:
                self.has_error |= bool(fields.get("error"))
                return
        self.usage = usage_of(fields.get("response")) or self.usage


def failure_event(error: bytes) -> bytes:
    """Return the event that tells a client its stream broke off; `error` is an OpenAI-style error body.

    It carries the fields of both forms: of an `error` event, and of the object that clients raise by.
    """
    document = cast("dict[str, Any]", orjson.loads(error))
    inner = cast("dict[str, Any]", document["error"])
    told = {"type": "error", "code": inner["code"], "message": inner["message"], "param": None}
    return b"event: error\ndata: " + orjson.dumps(told | document) + b"\n\n"


def _json_length(value: object) -> int:
    return len(orjson.dumps(value)) if value else 0
