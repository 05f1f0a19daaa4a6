"""One client's call, read just far enough to admit it: model, size of the prompt, bounds on the output.

Sizes are bytes and tokens. The body itself goes on unchanged but for what the policy says. Prevents: a
body that we count one way and the engine another (doubled keys), and a priority the client gave itself.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, cast

import orjson

from admission.ambiguity import check_nesting, has_any, has_doubled_key, is_flat
from admission.responses_call import frame_tokens, responses_input
from fleet.errors import InvalidInput

ENDPOINTS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/embeddings": "embeddings",
    "/v1/responses": "responses",
}
COMPLETIONS_MAX_TOKENS: Final = 16  # what the completions endpoint means when max_tokens is absent
IMAGE_TOKENS: Final = 1_024  # booked for an image, whose bytes say nothing about its tokens
MAX_CHOICES: Final = 128
_ONE_ANSWER: Final = ("embeddings", "responses")
_PREFIX_CHARACTERS: Final = 2_048
_FRAME_KEYS: Final = frozenset(
    {"role", "content"}
)  # of a message; all else it says is prompt too (tool calls)
_TEXT_PARTS: Final = ("text", "refusal", "thinking")
_PROMPT_KEYS: Final = frozenset(
    {
        "tools",
        "functions",
        "response_format",
        "documents",
        "chat_template",
        "chat_template_kwargs",
    }
)
#: The tier and the gateway say them; a client's go. The last names engines and their memory.
_OURS_KEYS: Final = frozenset({"priority", "request_id", "kv_transfer_params"})
_REWRITTEN_KEYS: Final = _OURS_KEYS | {"stream_options"}
_EXTRA_KEY: Final = "vllm_xargs"  # vLLM hands its members to the same place as `kv_transfer_params`
_LOOKED_AT: Final = _PROMPT_KEYS | _REWRITTEN_KEYS | {_EXTRA_KEY}  # most bodies have none of them
_loads: Final = orjson.loads


class Prompt:
    """The size of what goes in."""

    __slots__ = ("count", "exact_tokens", "extra_tokens", "start", "text_bytes")

    def __init__(
        self,
        text_bytes: int = 0,
        exact_tokens: int = 0,
        extra_tokens: int = 0,
        count: int = 1,
        start: str = "",
    ) -> None:
        self.text_bytes = text_bytes
        self.exact_tokens = exact_tokens  # token ids given by the client
        self.extra_tokens = extra_tokens  # images, one message's frame each
        self.count = count  # prompts in one call
        self.start = start  # for prefix affinity


class Call:
    """One parsed call. Nobody changes it."""

    __slots__ = (
        "choices", "document", "endpoint", "is_plain", "is_stream", "max_tokens", "model", "prompt", "raw",
        "wants_usage",
    )  # fmt: skip

    def __init__(
        self,
        endpoint: str,
        model: str,
        is_stream: bool,
        wants_usage: bool,
        prompt: Prompt,
        max_tokens: int | None,
        choices: int,
        raw: bytes,
        document: dict[str, Any],
        is_plain: bool,
    ) -> None:
        self.endpoint = endpoint
        self.model = model
        self.is_stream = is_stream
        self.wants_usage = wants_usage  # the client asked for the usage chunk itself
        self.prompt = prompt
        self.max_tokens = max_tokens  # over all choices and prompts; None: the client did not say
        self.choices = choices  # answers over all prompts
        self.raw = raw
        self.document = document
        self.is_plain = is_plain  # it has no member that needs a look before it goes on

    @property
    def hides_usage(self) -> bool:
        """Say whether the usage chunk is ours alone."""
        return self.is_stream and not self.wants_usage

    def prefix_key(self) -> str:
        """Return a short digest of model and start of the prompt: equal prefixes give equal keys."""
        start = self.prompt.start.encode(errors="replace")
        return hashlib.blake2b(start, key=self.model.encode()[:64], digest_size=12).hexdigest()

    def engine_document(self) -> dict[str, Any]:
        """Return what the client says to the engine, without the members that are not its to say."""
        kept = {key: value for key, value in self.document.items() if key not in _OURS_KEYS}
        if self._names_transfer():
            extra = cast("dict[str, Any]", kept[_EXTRA_KEY])
            kept[_EXTRA_KEY] = {key: value for key, value in extra.items() if key not in _OURS_KEYS}
        return kept

    def _names_transfer(self) -> bool:
        extra: object = self.document.get(_EXTRA_KEY)
        return isinstance(extra, dict) and "kv_transfer_params" in extra

    def body(self, priority: int | None, transfer: object = None) -> bytes:
        """Return what the engine gets: `priority` set (None: removed), usage asked for when streaming.

        `transfer`: the `kv_transfer_params` it gets, whatever the client sent; None: none.
        """
        added: dict[str, Any] = {} if priority is None else {"priority": priority}
        if transfer is not None:
            added["kv_transfer_params"] = transfer
        if self.is_stream and self.endpoint != "responses":
            asked: object = self.document.get("stream_options")
            options = cast("dict[str, Any]", asked) if isinstance(asked, dict) else {}
            if options.get("include_usage") is not True:
                added["stream_options"] = told = {**options, "include_usage": True}
                if told.get("continuous_usage_stats"):  # nothing alone: with ours each event would have it
                    told["continuous_usage_stats"] = False
        document = self.document
        is_as_is = self.is_plain or (_REWRITTEN_KEYS.isdisjoint(document) and not self._names_transfer())
        if is_as_is and not has_doubled_key(document, self.raw):
            return _spliced(self.raw, added) if added else self.raw
        return orjson.dumps(self.engine_document() | added)


def parse_call(endpoint: str, raw: bytes) -> Call:
    """Return the call, or raise InvalidInput naming the field that cannot be used."""
    try:
        document = _loads(raw)
    except orjson.JSONDecodeError as exc:
        raise InvalidInput(f"the body is not JSON: {exc.msg}", hint="Send a JSON object") from exc
    if not isinstance(document, dict):
        raise InvalidInput("the body is not a JSON object", hint="Send a JSON object")
    body = cast("dict[str, Any]", document)
    is_plain = not has_any(body, _LOOKED_AT)
    if not (is_plain and is_flat(body)):
        check_nesting(body, raw)
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidInput("model is missing", field="model", hint="GET /v1/models lists them")
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise InvalidInput("stream must be true or false", field="stream")
    options: object = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise InvalidInput("stream_options must be an object", field="stream_options")
    asked = cast("dict[str, Any]", options or {})
    prompt = _prompt(body, endpoint, is_plain)
    choices = 1 if endpoint in _ONE_ANSWER else _choices(body) * prompt.count
    return Call(
        endpoint=endpoint,
        model=model,
        is_stream=bool(stream) and endpoint != "embeddings",
        wants_usage=endpoint == "responses" or asked.get("include_usage") is True,
        prompt=prompt,
        max_tokens=_max_tokens(body, endpoint, choices),
        choices=choices,
        raw=raw,
        document=body,
        is_plain=is_plain,
    )


def unambiguous(body: dict[str, Any], raw: bytes) -> bytes:
    """Return `raw`, read as `body`; written anew where another reader might read it otherwise.

    Raises InvalidInput for one that is nested too deep for that.
    """
    check_nesting(body, raw)
    return orjson.dumps(body) if has_doubled_key(body, raw) else raw


def _prompt(body: dict[str, Any], endpoint: str, is_plain: bool) -> Prompt:
    match endpoint:
        case "chat":
            return _chat_prompt(body, is_plain)
        case "responses":
            return _responses_prompt(body)
        case _:
            return _text_prompt(body, endpoint)


def _choices(body: dict[str, Any]) -> int:
    """Return how many answers one prompt gets: the engine produces `best_of` and hands out `n`."""
    return max(_whole(body, "n", 1, MAX_CHOICES) or 1, _whole(body, "best_of", 1, MAX_CHOICES) or 1)


def _max_tokens(body: dict[str, Any], endpoint: str, choices: int) -> int | None:
    if endpoint == "embeddings":
        return 0
    if endpoint == "responses":
        return _whole(body, "max_output_tokens", 0, 10**8)
    bound = _whole(body, "max_tokens", 0, 10**8)
    if endpoint == "chat":
        newer = _whole(body, "max_completion_tokens", 0, 10**8)
        bound = newer if newer is not None else bound
    elif bound is None:
        bound = COMPLETIONS_MAX_TOKENS
    return None if bound is None else bound * choices


def _whole(body: dict[str, Any], key: str, low: int, high: int) -> int | None:
    value = body.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidInput(f"{key} must be a whole number from {low} to {high}", field=key)
    return value


def _chat_prompt(body: dict[str, Any], is_plain: bool) -> Prompt:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidInput("messages must be a list with at least one message", field="messages")
    items = cast("list[object]", messages)
    text_bytes, extra_tokens, start = 0, 0, ""
    for message in items:
        if not isinstance(message, dict):
            raise InvalidInput("every message must be an object", field="messages")
        extra_tokens += 4  # role and delimiters of a chat template
        said = cast("dict[str, Any]", message)
        content = said.get("content")
        if len(said) != 2 or content is None or "role" not in said:  # else it is a frame and no more
            text_bytes += sum(_json_length(said[key]) for key in said.keys() - _FRAME_KEYS)
        if isinstance(content, str):
            text_bytes += _utf8_length(content)
            if len(start) < _PREFIX_CHARACTERS:
                start += content[: _PREFIX_CHARACTERS - len(start)]
            continue
        for text in _texts(content):
            if text is None:
                extra_tokens += IMAGE_TOKENS
                continue
            text_bytes += _utf8_length(text)
            if len(start) < _PREFIX_CHARACTERS:
                start += text[: _PREFIX_CHARACTERS - len(start)]
    if not is_plain and not _PROMPT_KEYS.isdisjoint(body):
        text_bytes += sum(_json_length(body.get(key)) for key in _PROMPT_KEYS)
    return Prompt(text_bytes=text_bytes, extra_tokens=extra_tokens, start=start)


def _responses_prompt(body: dict[str, Any]) -> Prompt:
    found = responses_input(body)
    start = ""
    for text in found.texts:
        if len(start) >= _PREFIX_CHARACTERS:
            break
        start += text[: _PREFIX_CHARACTERS - len(start)]
    return Prompt(
        text_bytes=sum(map(_utf8_length, found.texts)) + found.other_bytes,
        extra_tokens=frame_tokens(found, IMAGE_TOKENS),
        start=start,
    )


def _texts(content: object) -> list[str | None]:
    """Return the texts of a content in parts; None stands for a part that is not text."""
    if not isinstance(content, list):
        return []
    found: list[str | None] = []
    for part in cast("list[object]", content):
        fields = cast("dict[str, Any]", part) if isinstance(part, dict) else {"text": part}
        given = (fields.get(key) for key in _TEXT_PARTS)
        texts = [text for text in given if isinstance(text, str)]
        found.extend(texts or (None,))
    return found


def _text_prompt(body: dict[str, Any], endpoint: str) -> Prompt:
    """Completions and embeddings take a text, token ids, or a list of either."""
    key = "input" if endpoint == "embeddings" else "prompt"
    given: object = body.get(key)
    if isinstance(given, str):
        return Prompt(text_bytes=_utf8_length(given), start=given[:_PREFIX_CHARACTERS])
    if not isinstance(given, list) or not given:
        raise InvalidInput(f"{key} must be a text, token ids, or a list of them", field=key)
    items = cast("list[object]", given)
    if isinstance(items[0], int):
        return Prompt(exact_tokens=len(items))
    texts = [item for item in items if isinstance(item, str)]
    ids = [cast("list[object]", item) for item in items if isinstance(item, list)]
    if len(texts) + len(ids) != len(items):
        raise InvalidInput(f"{key} must be a text, token ids, or a list of them", field=key)
    return Prompt(
        text_bytes=sum(map(_utf8_length, texts)),
        exact_tokens=sum(map(len, ids)),
        count=len(items),
        start=texts[0][:_PREFIX_CHARACTERS] if texts else "",
    )


def _json_length(value: object) -> int:
    """Return about how many bytes a template makes of a value; 0 for nothing."""
    return len(orjson.dumps(value)) if value else 0


def _utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def _spliced(raw: bytes, added: dict[str, Any]) -> bytes:
    """Return the object with members added at its end; the rest stays byte for byte."""
    head = raw.rstrip()[:-1]
    return head + b"," + orjson.dumps(added)[1:]
