"""`/v1/responses`, `/tokenize` and `/detokenize` of a simulated node, in vLLM 0.32's shapes. Pure.

Lengths are tokens, counted as in `simfleet.openai_api`: the input is a chat, instructions are its first
message. Prevents: a stream whose end a client of typed events cannot tell from a cut.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import orjson

from fleet.engine_profile import EngineProfile
from simfleet.openai_api import (
    CHARACTERS_PER_TOKEN,
    ApiError,
    GenerationCall,
    chat_tokens,
    parse_call,
    text,
)

_ITEM = "msg_sim"


def parse_responses(body: bytes, *, profile: EngineProfile, model: str) -> GenerationCall:
    """Read a request body. Raises ApiError with vLLM's status and message."""
    data = _object(body)
    if data.get("previous_response_id"):
        raise ApiError(404, "Response with id not found.", "previous_response_id")
    given: object = data.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    if isinstance(items, list):
        items = [_message(item) for item in cast("list[object]", items)]
    if data.get("instructions") and isinstance(items, list):
        items = [{"role": "system", "content": data["instructions"]}, *items]
    kept = ("model", "stream", "temperature", "vllm_xargs", "ignore_eos", "priority")
    chat = {key: data[key] for key in kept if key in data}
    chat |= {"messages": items, "max_tokens": data.get("max_output_tokens")}
    return replace(
        parse_call(orjson.dumps(chat), is_chat=True, profile=profile, model=model), is_response=True
    )


def _message(item: object) -> dict[str, Any]:
    """Return an input item as a message: calls of tools and their outputs are text."""
    if not isinstance(item, dict):
        return {}
    fields = cast("dict[str, Any]", item)
    if "content" in fields:
        return {"role": fields.get("role", "user"), "content": fields["content"]}
    return {"role": "tool", "content": str(fields.get("output", fields.get("arguments", "")))}


def _object(body: bytes) -> dict[str, Any]:
    try:
        data: object = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise ApiError(400, f"1 validation error:\n  {{'type': 'json_invalid', 'msg': '{exc}'}}") from exc
    if not isinstance(data, dict):
        raise ApiError(400, "1 validation error:\n  {'type': 'dict_type', 'loc': 'body'}")
    return cast("dict[str, Any]", data)


def response(
    call: GenerationCall, answer_id: str, created: int, produced: Sequence[int] | None, reason: str | None
) -> dict[str, Any]:
    """Return the response object; `produced` None: it has only begun."""
    usage, output = None, list[dict[str, Any]]()
    status = "in_progress"
    if produced is not None:
        status = "incomplete" if reason == "length" else "completed"
        prompt, made = sum(call.prompt_tokens), sum(produced)
        usage = {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": 0, "tool_output_tokens": 0},
            "total_tokens": prompt + made,
        }
        part = {"type": "output_text", "text": text(0, made), "annotations": [], "logprobs": None}
        output = [
            {"id": _ITEM, "type": "message", "role": "assistant", "status": status, "content": [part]}
        ]
    return {
        "id": answer_id,
        "object": "response",
        "created_at": created,
        "status": status,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None,
        "model": call.model,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "max_output_tokens": call.max_tokens,
        "usage": usage,
    }


class ResponsesWriter:
    """Makes the typed events of one answer; it has the face of `openai_api.StreamWriter`."""

    def __init__(self, call: GenerationCall, answer_id: str, created: int) -> None:
        self._call, self._id, self._created = call, answer_id, created
        self._number = 0
        self._reason: str | None = None

    def _event(self, kind: str, **fields: Any) -> str:
        document = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return f"event: {kind}\ndata: {orjson.dumps(document).decode()}\n\n"

    def opening(self) -> str:
        """The response as it begins, and its one message."""
        begun = response(self._call, self._id, self._created, None, None)
        item = {"id": _ITEM, "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        place = {"item_id": _ITEM, "output_index": 0, "content_index": 0}
        return (
            self._event("response.created", response=begun)
            + self._event("response.in_progress", response=begun)
            + self._event("response.output_item.added", output_index=0, item=item)
            + self._event("response.content_part.added", **place, part=part)
        )

    def tokens(self, index: int, start: int, end: int, reason: str | None) -> str:
        """One event with output tokens `start`..`end`; nothing for a reason alone."""
        self._reason = reason or self._reason
        if end <= start:
            return ""
        place = {"item_id": _ITEM, "output_index": index, "content_index": 0}
        return self._event("response.output_text.delta", **place, delta=text(start, end), logprobs=[])

    def closing(self, produced: Sequence[int]) -> str:
        """The whole text, and the event that ends the stream, with usage."""
        place = {"item_id": _ITEM, "output_index": 0, "content_index": 0}
        whole = response(self._call, self._id, self._created, produced, self._reason)
        said = text(0, sum(produced))
        return self._event("response.output_text.done", **place, text=said, logprobs=[]) + self._event(
            "response.completed", response=whole
        )


def tokenize_answer(path: str, body: bytes, profile: EngineProfile) -> bytes:
    """Return what `/tokenize` or `/detokenize` answers: ids of four characters each; back they are filler.

    Raises ApiError with vLLM's status and message.
    """
    data = _object(body)
    asked = data.get("model")
    if asked is not None and asked != profile.model:
        raise ApiError(404, f"The model `{asked}` does not exist. Valid aliases: {profile.model}.", "model")
    if path == "/detokenize":
        ids: object = data.get("tokens")
        if not isinstance(ids, list):
            raise ApiError(400, "1 validation error:\n  {'type': 'list_type', 'loc': 'body.tokens'}")
        return orjson.dumps({"prompt": text(0, len(cast("list[object]", ids)))})
    prompt: object = data.get("prompt")
    if isinstance(prompt, str):
        size = CHARACTERS_PER_TOKEN
        pieces = [prompt[start : start + size] for start in range(0, len(prompt), size)] or [""]
        found = [zlib.crc32(piece.encode(errors="replace")) % 100_000 for piece in pieces]
    else:
        found = list(range(chat_tokens(data.get("messages"))))
    answer = {"count": len(found), "max_model_len": profile.max_model_len, "tokens": found}
    return orjson.dumps(answer | {"token_strs": None})
