"""Tokenizers of models from local files, `<folder>/<model>/tokenizer.json`, with the chat template beside.

Counts what vLLM would count for the same body: a completion's text with special tokens, a chat as its
template renders it, without. Owns the process that does it (`tokenizer_worker`): started, watched, started
again. Times are seconds. Needs the `tokenizers` extra. Prevents: a tokenizer that is stuck or gone holding
up a request: what is not counted is estimated.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any, cast

import orjson

from admission.calls import Call
from fleet.errors import InvalidInput
from fleet.messages import Assignment

log = logging.getLogger(__name__)

STUCK_S = 60.0  # a prompt takes milliseconds, a large file it waits behind takes seconds
AGAIN_S = 5.0  # until a process that ended is started again
_END_S = 2.0
_TEMPLATE_KEYS = ("chat_template", "documents", "mm_processor_kwargs")  # change the prompt in other ways
_CHAT_KEYS = ("messages", "tools", "chat_template_kwargs", "add_generation_prompt",
              "continue_final_message")  # fmt: skip
_KEPT_ENVIRONMENT = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH")  # no secrets of ours


class TokenizerFiles:
    """The tokenizers of one folder. `follow` an assignment, then `count`."""

    basis = "counted by its tokenizer"

    def __init__(self, folder: Path) -> None:
        """Raises InvalidInput when the folder or the library is not there."""
        if importlib.util.find_spec("tokenizers") is None:
            raise InvalidInput(
                "the tokenizers library is not installed",
                field="--tokenizers-dir",
                hint="pip install 'rhodeck[tokenizers]', or leave the flag out: prompts are estimated then",
            )
        if not folder.is_dir():
            raise InvalidInput(f"{folder} is not a folder", field="--tokenizers-dir",
                               hint="It holds <model>/tokenizer.json for each model")  # fmt: skip
        self._folder = folder.resolve()
        self._models: list[str] = []
        self._ready: dict[str, bool] = {}  # model: whether it has a chat template
        self._asked: dict[int, asyncio.Future[int | None]] = {}
        self._numbers = count()
        self._process: Process | None = None
        self._task: asyncio.Task[None] | None = None

    def follow(self, assignment: Assignment) -> None:
        """Have the files of the assignment's models read."""
        self._models = sorted({model for node in assignment.nodes for model in node.models})
        self._ready = {model: found for model, found in self._ready.items() if model in self._models}
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="tokenizer")
        self._say({"follow": self._models})

    def is_for(self, call: Call) -> bool:
        """Say whether the model has a tokenizer here and the body is one it can count."""
        has_template = self._ready.get(call.model)
        if has_template is None or call.prompt.exact_tokens:
            return False
        if call.endpoint in ("completions", "embeddings"):
            return "messages" not in call.document
        if call.endpoint != "chat" or not has_template:
            return False
        has_others = any(call.document.get(key) for key in _TEMPLATE_KEYS)
        return not has_others and _is_text(call.document)

    async def count(self, call: Call) -> int | None:
        """Return the prompt's tokens; None when the process is away or cannot count them."""
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            if not self._say({"id": number, "model": call.model, **_question(call)}):
                return None
            async with asyncio.timeout(STUCK_S):
                return await answer
        except TimeoutError:
            log.error("the tokenizer is stuck and starts again", extra={"model": call.model})
            self._kill()
            return None
        finally:
            self._asked.pop(number, None)

    async def close(self) -> None:
        """End the process."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # -- the process --------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Keep a process running until cancelled."""
        while True:
            try:
                await self._once()
            except OSError as exc:
                log.error("the tokenizer cannot be started", extra={"reason": exc.strerror})
            log.warning("the tokenizer ended: prompts are estimated", extra={"again_s": AGAIN_S})
            await asyncio.sleep(AGAIN_S)

    async def _once(self) -> None:
        environment = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
        command = (sys.executable, "-m", "admission.tokenizer_worker", str(self._folder))
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment, start_new_session=True
        )
        self._process = process
        try:
            self._say({"follow": self._models})
            while process.stdout is not None and (line := await process.stdout.readline()):
                self._take_in(orjson.loads(line))
        finally:
            self._process, self._ready = None, {}
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_result(None)
            await _end(process)

    def _say(self, document: dict[str, Any]) -> bool:
        """Send a line; False when there is nobody to send it to."""
        process = self._process
        if process is None or process.stdin is None or process.stdin.is_closing():
            return False
        process.stdin.write(orjson.dumps(document) + b"\n")
        return True

    def _take_in(self, told: dict[str, Any]) -> None:
        if "id" in told:
            answer = self._asked.get(told["id"])
            if answer is not None and not answer.done():
                answer.set_result(told["count"])
        elif "fault" in told:
            log.error("tokenizer cannot be read", extra={"model": told["model"], "reason": told["fault"]})
        elif told["model"] in self._models:
            self._ready[told["model"]] = told["has_template"]
            log.info("tokenizer read", extra={"model": told["model"]})

    def _kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()


async def _end(process: Process) -> None:
    """Close a process's input; kill it when that does not end it."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(_END_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _question(call: Call) -> dict[str, Any]:
    """Return what the process has to know of a call."""
    if call.endpoint == "chat":
        return {"chat": {key: call.document[key] for key in _CHAT_KEYS if key in call.document}}
    given: object = call.document["input" if call.endpoint == "embeddings" else "prompt"]
    texts = [given] if isinstance(given, str) else given
    return {"texts": texts, "special": call.document.get("add_special_tokens") is not False}


def _is_text(document: Mapping[str, Any]) -> bool:
    """Say whether every message is text: an image's tokens are the model's secret."""
    for message in cast("list[dict[str, Any]]", document["messages"]):
        content: object = message.get("content")
        if isinstance(content, list):
            for part in cast("list[object]", content):
                if not isinstance(part, dict) or cast("dict[str, Any]", part).get("type") != "text":
                    return False
    return True
