"""Reads OpenAI requests the way vLLM does and shapes its answers and errors. Pure.

Lengths are tokens. A text prompt counts one token per four characters (at least one), a chat adds four
per message; prompts given as token ids are exact. Prevents: a client that works against the simulator
and fails against vLLM, in what is accepted or in how it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from fleet.engine_profile import EngineProfile
from fleet.errors import FleetError

CHARACTERS_PER_TOKEN = 4
TOKENS_PER_MESSAGE = 4
MAX_CHOICES = 128
MAX_SEQUENCES = 1024
DEFAULT_COMPLETION_TOKENS = 16

#: Error types of vLLM by status.
ERROR_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    413: "BadRequestError",
    503: "Service Unavailable",
}

_WORDS = "the node answers with plain words so a stream costs little to make and little to read"
_FILLER = [f" {word}" for word in _WORDS.split()]


class ApiError(FleetError):
    """A refusal with the status and body vLLM gives."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message, field=param)
        self.status = status

    def body(self) -> bytes:
        error = {
            "message": self.message,
            "type": ERROR_TYPES[self.status],
            "param": self.field,
            "code": self.status,
        }
        return orjson.dumps({"error": error})


@dataclass(frozen=True, slots=True)
class GenerationCall:
    """One accepted request: `n` choices for each prompt."""

    is_chat: bool
    model: str
    prompt_tokens: tuple[int, ...]  # of each prompt
    choices: int  # n
    max_tokens: int | None  # as given
    limits: tuple[int, ...]  # most output tokens of each prompt
    ignore_eos: bool
    output_tokens: int | None  # what the client asked the simulator to produce
    priority: int
    is_stream: bool
    include_usage: bool
    is_response: bool = False  # asked for by `/v1/responses`
    seeds: tuple[int, ...] = ()  # of an embedding: what each input's vector is made from
    is_packed: bool = False  # vectors as base64
    hands_over: bool = False  # `kv_transfer_params` ask for the KV cache to be kept for another engine


def text(start: int, end: int) -> str:
    """Return filler for output tokens `start` (inclusive) to `end`: one word a token."""
    size = len(_FILLER)
    return "".join([_FILLER[n % size] for n in range(start, end)])


def parse_call(body: bytes, *, is_chat: bool, profile: EngineProfile, model: str) -> GenerationCall:
    """Read a request body. Raises ApiError with vLLM's status and message."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise ApiError(400, f"1 validation error:\n  {{'type': 'json_invalid', 'msg': '{exc}'}}") from exc
    if not isinstance(data, dict):
        raise _invalid("body", "dict_type", "Input should be a valid dictionary")
    asked = data.get("model")
    if asked is not None and asked != model:
        raise ApiError(404, f"The model `{asked}` does not exist. Valid aliases: {model}.", "model")
    prompts = (chat_tokens(data.get("messages")),) if is_chat else prompt_tokens(data.get("prompt"))
    choices = _integer(data, "n", low=1, high=MAX_CHOICES) or 1
    if len(prompts) * choices > MAX_SEQUENCES:
        raise ApiError(400, f"{len(prompts)} prompts with n={choices} are more than {MAX_SEQUENCES}", "n")
    temperature = data.get("temperature")
    if isinstance(temperature, int | float) and temperature < 0:
        raise ApiError(
            400,
            f"temperature must be non-negative, got {float(temperature)}. "
            f"(parameter=temperature, value={float(temperature)})",
            "temperature",
        )
    max_tokens = _integer(data, "max_completion_tokens", low=1) if is_chat else None
    max_tokens = max_tokens or _integer(data, "max_tokens", low=1)
    extra = data.get("vllm_xargs")
    options = data.get("stream_options")
    transfer = data.get("kv_transfer_params")
    return GenerationCall(
        is_chat=is_chat,
        model=model,
        prompt_tokens=prompts,
        choices=choices,
        max_tokens=max_tokens,
        limits=tuple(_limit(tokens, max_tokens, profile, is_chat=is_chat) for tokens in prompts),
        ignore_eos=_flag(data, "ignore_eos"),
        output_tokens=_integer(extra, "sim_output_tokens", low=1) if isinstance(extra, dict) else None,
        priority=_integer(data, "priority") or 0,
        is_stream=_flag(data, "stream"),
        include_usage=isinstance(options, dict) and _flag(options, "include_usage"),
        hands_over=isinstance(transfer, dict) and _flag(transfer, "do_remote_decode"),
    )


def _invalid(where: str, kind: str, message: str) -> ApiError:
    return ApiError(
        400, f"1 validation error:\n  {{'type': '{kind}', 'loc': '{where}', 'msg': '{message}'}}"
    )


def _flag(data: dict[str, Any], name: str) -> bool:
    value = data.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise _invalid(f"body.{name}", "bool_type", "Input should be a valid boolean")


def _integer(
    data: dict[str, Any], name: str, *, low: int | None = None, high: int | None = None
) -> int | None:
    value = data.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise _invalid(f"body.{name}", "int_type", "Input should be a valid integer")
    if low is not None and value < low:
        raise ApiError(
            400, f"{name} must be at least {low}, got {value}. (parameter={name}, value={value})", name
        )
    if high is not None and value > high:
        raise ApiError(
            400, f"{name} must be at most {high}, got {value}. (parameter={name}, value={value})", name
        )
    return value


def _text_tokens(value: str) -> int:
    return max(1, -(-len(value) // CHARACTERS_PER_TOKEN))


def prompt_tokens(prompt: Any, where: str = "body.prompt") -> tuple[int, ...]:
    """Return the tokens of each prompt: a text, token ids, or a list of either. Raises ApiError else."""
    if isinstance(prompt, str):
        return (_text_tokens(prompt),)
    if not isinstance(prompt, list) or not prompt:
        raise _invalid(where, "list_type", "Input should be a valid list")
    if all(isinstance(item, str) for item in prompt):
        return tuple(_text_tokens(item) for item in prompt)
    if _are_token_ids(prompt):
        return (len(prompt),)
    if all(isinstance(item, list) and item and _are_token_ids(item) for item in prompt):
        return tuple(len(item) for item in prompt)
    raise _invalid(where, "list_type", "Input should be text, token ids, or a list of either")


def _are_token_ids(items: list[Any]) -> bool:
    return all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in items)


def chat_tokens(messages: Any) -> int:
    """Return the tokens of a chat's messages. Raises ApiError for what is none."""
    if not isinstance(messages, list) or not messages:
        raise _invalid("body.messages", "list_type", "Input should be a valid list")
    total = 0
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _invalid("body.messages", "dict_type", "Each message needs a role")
        total += TOKENS_PER_MESSAGE + _content_tokens(message.get("content"))
    return total


def _content_tokens(content: Any) -> int:
    if content is None:
        return 0
    if isinstance(content, str):
        return _text_tokens(content)
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return sum(_text_tokens(part) for part in parts if isinstance(part, str))
    raise _invalid("body.messages", "string_type", "content should be text or a list of parts")


def _limit(tokens: int, max_tokens: int | None, profile: EngineProfile, *, is_chat: bool) -> int:
    """Most output tokens of one prompt; refuses what the context cannot hold."""
    context = min(profile.max_model_len, profile.kv_capacity_tokens)
    room = context - tokens
    if room < 1:
        raise ApiError(
            400,
            f"This model's maximum context length is {context} tokens. However, your prompt contains "
            f"{tokens} input tokens, which exceeds this limit even without any output tokens. Please "
            f"reduce the length of the input prompt. (parameter=input_tokens, value={tokens})",
            "input_tokens",
        )
    if max_tokens is None:
        return room if is_chat else min(room, DEFAULT_COMPLETION_TOKENS)
    if max_tokens > room:
        raise ApiError(
            400,
            f"This model's maximum context length is {context} tokens. However, you requested {max_tokens} "
            f"output tokens and your prompt contains {tokens} input tokens, for a total of "
            f"{max_tokens + tokens} tokens. Please reduce the length of the input prompt or the number of "
            f"requested output tokens. (parameter=max_tokens, value={max_tokens})",
            "max_tokens",
        )
    return max_tokens


# -- answers ----------------------------------------------------------------------------------------


def usage(call: GenerationCall, produced: Sequence[int]) -> dict[str, Any]:
    """Return the usage object: each prompt counted once, every choice's output."""
    prompt, completion = sum(call.prompt_tokens), sum(produced)
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": None,
    }


def whole_answer(
    call: GenerationCall,
    answer_id: str,
    created: int,
    produced: Sequence[int],
    reasons: Sequence[str | None],
    transfer: dict[str, Any] | None = None,
) -> bytes:
    """Return the body of an answer that is not streamed; `transfer`: where its KV cache lies."""
    choices: list[dict[str, Any]] = []
    for index, (count, reason) in enumerate(zip(produced, reasons, strict=True)):
        content = text(0, count)
        shown: dict[str, Any] = (
            {"message": {"role": "assistant", "content": content, "refusal": None, "reasoning": None}}
            if call.is_chat
            else {"text": content}
        )
        choices.append(
            {"index": index, **shown, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        )
    return orjson.dumps(
        {
            "id": answer_id,
            "object": "chat.completion" if call.is_chat else "text_completion",
            "created": created,
            "model": call.model,
            "choices": choices,
            "usage": usage(call, produced),
            "kv_transfer_params": transfer,
        }
    )


def transfer_params(call: GenerationCall, engine: str, block_size: int) -> dict[str, Any] | None:
    """Return what a decode engine is told, as vLLM's NixlConnector answers; None: nobody asked for it."""
    if not call.hands_over:
        return None
    blocks = -(-sum(call.prompt_tokens) // block_size)
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": list(range(1, blocks + 1)),
        "remote_engine_id": engine,
        "remote_host": "127.0.0.1",
        "remote_port": 5600,
        "tp_size": 8,
    }


class StreamWriter:
    """Makes the server-sent events of one answer. The constant part is rendered once."""

    def __init__(self, call: GenerationCall, answer_id: str, created: int) -> None:
        kind = "chat.completion.chunk" if call.is_chat else "text_completion"
        head = orjson.dumps({"id": answer_id, "object": kind, "created": created, "model": call.model})
        self._call = call
        self._head = "data: " + head[:-1].decode()

    def opening(self) -> str:
        """The role announcement of a chat, one event a choice; nothing for completions."""
        if not self._call.is_chat:
            return ""
        return "".join(
            f'{self._head},"choices":[{{"index":{index},"delta":{{"role":"assistant","content":""}},'
            '"logprobs":null,"finish_reason":null}]}\n\n'
            for index in range(self._call.choices)
        )

    def tokens(self, index: int, start: int, end: int, reason: str | None) -> str:
        """One event with output tokens `start`..`end` of a choice, and its finish reason if it ended."""
        words = text(start, end)
        shown = f'"delta":{{"content":"{words}"}}' if self._call.is_chat else f'"text":"{words}"'
        ending = "null" if reason is None else f'"{reason}"'
        return (
            f'{self._head},"choices":[{{"index":{index},{shown},"logprobs":null,"finish_reason":{ending},'
            '"stop_reason":null}]}\n\n'
        )

    def closing(self, produced: Sequence[int]) -> str:
        """The usage event where it was asked for, and the end mark."""
        end = "data: [DONE]\n\n"
        if not self._call.include_usage:
            return end
        total = orjson.dumps(usage(self._call, produced)).decode()
        return f'{self._head},"choices":[],"usage":{total}}}\n\n{end}'
