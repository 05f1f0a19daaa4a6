"""`python -m admission.tokenizer_worker FOLDER`: counts prompts in a process of its own, by lines of JSON.

In: `{"follow": [model, …]}` or `{"id", "model", "texts", "special"}` or `{"id", "model", "chat"}`. Out:
`{"model", "has_template"}` for each file read, `{"model", "fault"}` for each that cannot be, and
`{"id", "count"}` for each prompt (null: not countable). It ends with its input. A process, not a thread:
the library holds the interpreter's lock for the seconds it reads a file, and a hostile text can keep a
tokenizer busy for ever. Prevents: one model's file bringing the streams of all others to a stop.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson
from tokenizers import Tokenizer

from admission.chat_template import ChatTemplate

_FILE_BYTES = 128 << 20


class Worker:
    """The tokenizers read so far."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._read: dict[str, tuple[Tokenizer, ChatTemplate | None]] = {}
        self._known = set[str]()

    def answer(self, asked: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the answers to one line."""
        if "follow" in asked:
            wanted = cast("list[str]", asked["follow"])
            self._read = {model: found for model, found in self._read.items() if model in wanted}
            new = [model for model in wanted if model not in self._known]
            self._known = set(wanted)
            return [told for model in new if (told := self._take(model)) is not None]
        return [{"id": asked["id"], "count": self._count(asked)}]

    def _count(self, asked: dict[str, Any]) -> int | None:
        found = self._read.get(asked["model"])
        if found is None:
            return None
        tokenizer, template = found
        texts: list[str] = asked.get("texts", [])
        if "chat" in asked:
            text = None if template is None else template.render(asked["chat"])
            if text is None:
                return None
            texts = [text]
        encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=bool(asked.get("special")))
        return sum(len(one.ids) for one in encoded)

    def _take(self, model: str) -> dict[str, Any] | None:
        """Read a model's files; None where it has none."""
        folder = (self._folder / model).resolve()
        if not folder.is_relative_to(self._folder) or folder == self._folder:
            return {"model": model, "fault": "its name leads out of the folder"}
        path = folder / "tokenizer.json"
        if not path.is_file():
            return None
        if path.stat().st_size > _FILE_BYTES:
            return {"model": model, "fault": f"tokenizer.json is larger than {_FILE_BYTES} bytes"}
        try:
            tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
            tokenizer.no_truncation()
            tokenizer.no_padding()
            template = _template(folder)
        except Exception as exc:  # the library raises nothing narrower for a file it cannot use
            return {"model": model, "fault": str(exc)[:200]}
        self._read[model] = (tokenizer, template)
        return {"model": model, "has_template": template is not None}


def _template(folder: Path) -> ChatTemplate | None:
    """Return the model's chat template, if it has one."""
    config: dict[str, Any] = {}
    if (path := folder / "tokenizer_config.json").is_file():
        read: object = orjson.loads(path.read_bytes())
        config = cast("dict[str, Any]", read) if isinstance(read, dict) else {}
    source: object = config.get("chat_template")
    if (path := folder / "chat_template.jinja").is_file():
        source = path.read_text(encoding="utf-8")
    return ChatTemplate(source, config) if isinstance(source, str) else None


def serve(folder: Path, lines: BinaryIO, out: BinaryIO) -> None:
    """Answer line by line until the input ends."""
    worker = Worker(folder)
    for line in lines:
        for told in worker.answer(orjson.loads(line)):
            out.write(orjson.dumps(told) + b"\n")
        out.flush()


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one thread, not one a core
    os.nice(5)  # an exact count is worth less than a stream
    serve(Path(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer)
