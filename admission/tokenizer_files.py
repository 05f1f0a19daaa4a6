"""Tokenizers of models from local files, `<folder>/<model>/tokenizer.json`, with the chat template beside.

Counts what vLLM would count for the same body: a completion's text with special tokens, a chat as its
template renders it, without. Needs the `tokenizers` extra. Prevents: a name that leads out of the folder,
a file that takes the gateway down, and tokenising on the event loop (one thread does it, without the lock).
Source: Hugging Face, "Chat templates"; vLLM, `entrypoints/chat_utils.py`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import orjson

from admission.calls import Call
from fleet.errors import InvalidInput
from fleet.messages import Assignment

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from admission.chat_template import ChatTemplate

log = logging.getLogger(__name__)

_FILE_BYTES = 128 << 20
_TEMPLATE_KEYS = ("chat_template", "documents", "mm_processor_kwargs")  # change the prompt in other ways


class TokenizerFiles:
    """The tokenizers of one folder. `follow` an assignment, then `count`."""

    basis = "counted by its tokenizer"

    def __init__(self, folder: Path) -> None:
        """Raises InvalidInput when the folder or the library is not there."""
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one thread, not one a core
        try:
            import tokenizers
        except ImportError as exc:
            raise InvalidInput(
                "the tokenizers library is not installed",
                field="--tokenizers-dir",
                hint="pip install 'rhodeck[tokenizers]', or leave the flag out: prompts are estimated then",
            ) from exc
        if not folder.is_dir():
            raise InvalidInput(f"{folder} is not a folder", field="--tokenizers-dir",
                               hint="It holds <model>/tokenizer.json for each model")  # fmt: skip
        self._load = tokenizers.Tokenizer.from_str
        self._folder = folder.resolve()
        self._loaded: dict[str, tuple[Tokenizer, ChatTemplate | None]] = {}
        self._asked = set[str]()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")

    def follow(self, assignment: Assignment) -> None:
        """Read the files of models that are new, in the thread."""
        models = {model for node in assignment.nodes for model in node.models}
        for gone in self._loaded.keys() - models:
            del self._loaded[gone]
        self._asked &= models
        for model in sorted(models - self._asked):
            self._asked.add(model)
            self._thread.submit(self._read, model)

    def is_for(self, call: Call) -> bool:
        """Say whether the model has a tokenizer here and the body is one it can count."""
        found = self._loaded.get(call.model)
        if found is None or call.prompt.exact_tokens:
            return False
        if call.endpoint in ("completions", "embeddings"):
            return "messages" not in call.document
        if call.endpoint != "chat" or found[1] is None:
            return False
        has_others = any(call.document.get(key) for key in _TEMPLATE_KEYS)
        return not has_others and _is_text(call.document)

    async def count(self, call: Call) -> int | None:
        """Return the prompt's tokens, counted in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._count, call)

    async def close(self) -> None:
        """End the thread once it has counted what it counts."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _count(self, call: Call) -> int | None:
        found = self._loaded.get(call.model)
        if found is None:
            return None
        tokenizer, template = found
        if call.endpoint == "chat":
            text = None if template is None else template.render(call.document)
            return None if text is None else _size(tokenizer, [text], has_special=False)
        given = call.document["input" if call.endpoint == "embeddings" else "prompt"]
        texts = [given] if isinstance(given, str) else cast("list[str]", given)
        has_special = call.document.get("add_special_tokens") is not False
        return _size(tokenizer, texts, has_special=has_special)

    def _read(self, model: str) -> None:
        """Read a model's files. What cannot be read is logged, and the model's prompts are estimated."""
        folder = (self._folder / model).resolve()
        if not folder.is_relative_to(self._folder) or folder == self._folder:
            log.warning("a model's name leads out of the tokenizers' folder", extra={"model": model})
            return
        path = folder / "tokenizer.json"
        if not path.is_file():
            log.info("no tokenizer for this model; its prompts are estimated", extra={"model": model})
            return
        try:
            if path.stat().st_size > _FILE_BYTES:
                raise ValueError(f"larger than {_FILE_BYTES} bytes")
            tokenizer = self._load(path.read_text(encoding="utf-8"))
            tokenizer.no_truncation()
            tokenizer.no_padding()
            self._loaded[model] = (tokenizer, _template(folder))
            log.info("tokenizer read", extra={"model": model})
        except Exception as exc:  # the library raises nothing narrower for a file it cannot use
            log.error("tokenizer cannot be read", extra={"model": model, "reason": str(exc)[:200]})


def _size(tokenizer: Tokenizer, texts: list[str], *, has_special: bool) -> int:
    encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=has_special)
    return sum(len(one.ids) for one in encoded)


def _is_text(document: Mapping[str, Any]) -> bool:
    """Say whether every message is text: an image's tokens are the model's secret."""
    for message in cast("list[dict[str, Any]]", document["messages"]):
        content: object = message.get("content")
        if isinstance(content, list):
            for part in cast("list[object]", content):
                if not isinstance(part, dict) or cast("dict[str, Any]", part).get("type") != "text":
                    return False
    return True


def _template(folder: Path) -> ChatTemplate | None:
    """Return the model's chat template; None when there is none or it needs what is not installed."""
    try:
        from admission.chat_template import ChatTemplate
    except ImportError:
        log.info("jinja2 is not installed: chats are estimated", extra={"folder": folder.name})
        return None
    config: dict[str, Any] = {}
    if (path := folder / "tokenizer_config.json").is_file():
        read: object = orjson.loads(path.read_bytes())
        config = cast("dict[str, Any]", read) if isinstance(read, dict) else {}
    source: object = config.get("chat_template")
    if (path := folder / "chat_template.jinja").is_file():
        source = path.read_text(encoding="utf-8")
    return ChatTemplate(source, config) if isinstance(source, str) else None
