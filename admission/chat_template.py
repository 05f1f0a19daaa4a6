"""A model's chat template, rendered as Hugging Face's `apply_chat_template` renders it, sandboxed.

The template is the operator's file, the messages are a client's data. Needs jinja2. Prevents: a template
that reads this process's objects, and data that is taken for template. Source: Hugging Face Transformers,
`utils/chat_template_utils.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn, cast

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

_TOKEN_KEYS = ("bos_token", "eos_token", "unk_token", "pad_token")
#: What evaluating a template over a client's data can raise, besides jinja2's own.
_RENDERING = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError,
              RecursionError)  # fmt: skip


class ChatTemplate:
    """One compiled template."""

    def __init__(self, source: str, config: Mapping[str, Any]) -> None:
        """Raises jinja2.TemplateSyntaxError for a source that is no template."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], autoescape=False
        )
        environment.filters["tojson"] = _to_json
        self._template = environment.from_string(source)
        self._tokens = {key: _token(config.get(key)) for key in _TOKEN_KEYS if config.get(key)}

    def render(self, document: Mapping[str, Any]) -> str | None:
        """Return the prompt of a chat; None when the template refuses it."""
        asked: object = document.get("chat_template_kwargs")
        options = cast("dict[str, Any]", asked) if isinstance(asked, dict) else {}
        continues = document.get("continue_final_message") is True
        values: dict[str, Any] = {
            **self._tokens,
            "add_generation_prompt": not continues and document.get("add_generation_prompt") is not False,
            "tools": document.get("tools") or None,
            "documents": None,
            "raise_exception": _refuse,
            **options,
            "messages": [_message(one) for one in cast("list[dict[str, Any]]", document["messages"])],
        }
        if continues:
            return None  # how the last message is cut open depends on the template
        try:
            return self._template.render(values)
        except _RENDERING:
            return None


def _message(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with its parts of text joined, as engines hand it to templates that want text."""
    content: object = given.get("content")
    if not isinstance(content, list):
        return dict(given)
    texts = [str(part.get("text", "")) for part in cast("list[dict[str, Any]]", content)]
    return {**given, "content": "\n".join(texts)}


def _token(value: object) -> str:
    """Return a special token's text: it is written as a text or as an object with `content`."""
    return str(cast("dict[str, Any]", value).get("content", "")) if isinstance(value, dict) else str(value)


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
