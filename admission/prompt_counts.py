"""Prompts counted exactly where a tokenizer is configured: within a time budget, beside the event loop.

Sizes are bytes and tokens, times seconds. Two sources: `tokenizer.json` files of the models, read by the
`tokenizers` library, or the engines' own `/tokenize`. Prevents: exactness that delays a request (beyond the
budget the estimate holds), one tokenizer thread that a queue forms at, and the same prompt counted again at
each retry of a client.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Coroutine, Iterable
from typing import Any, Protocol

import orjson

from admission.calls import Call

log = logging.getLogger(__name__)

MAX_BYTES = 256 << 10  # of one prompt; a larger one takes longer than any budget
MAX_PENDING = 8  # counted at once; who comes on top is estimated
_CACHED = 10_000
_KEYS = ("messages", "prompt", "input", "instructions", "tools", "chat_template_kwargs", "documents",
         "add_generation_prompt", "continue_final_message", "add_special_tokens")  # fmt: skip


class Source(Protocol):
    """Who counts."""

    basis: str  # in words, for explanations

    def is_for(self, call: Call) -> bool:
        """Say whether this call's prompt can be counted exactly."""
        ...

    def count(self, call: Call) -> Coroutine[Any, Any, int | None]:
        """Return the prompt's tokens; None when it turns out that they cannot be counted."""
        ...

    async def close(self) -> None:
        """Stop counting."""
        ...


class PromptCounts:
    """Exact counts of one gateway's prompts."""

    def __init__(self, source: Source, budget_s: float) -> None:
        self._source = source
        self._budget_s = budget_s
        self._cache: OrderedDict[bytes, int] = OrderedDict()
        self._running: dict[bytes, asyncio.Task[int | None]] = {}
        self.results: Counter[str] = Counter()  # by result, since the start
        self.basis = source.basis

    async def tokens(self, call: Call) -> int | None:
        """Return the exact count, or None within the budget: then the estimate holds."""
        prompt = call.prompt
        if prompt.text_bytes > MAX_BYTES:
            return self._told("too_large")
        if not prompt.text_bytes or not self._source.is_for(call):
            return self._told("not_countable")
        key = _digest(call)
        known = self._cache.get(key)
        if known is not None:
            self._cache.move_to_end(key)
            self.results["cached"] += 1
            return known
        task = self._running.get(key)
        if task is None:
            if len(self._running) >= MAX_PENDING:
                return self._told("busy")
            task = asyncio.ensure_future(self._source.count(call))
            self._running[key] = task
            task.add_done_callback(lambda ended: self._take_in(key, ended))
        done, _ = await asyncio.wait((task,), timeout=self._budget_s)
        if not done:
            return self._told("late")
        found = None if task.cancelled() or task.exception() is not None else task.result()
        self.results["not_countable" if found is None else "counted"] += 1
        return found

    def _told(self, result: str) -> None:
        self.results[result] += 1

    def _take_in(self, key: bytes, ended: asyncio.Task[int | None]) -> None:
        """Keep what was counted, in time or not: the client's next try finds it."""
        self._running.pop(key, None)
        if ended.cancelled():
            return
        if (fault := ended.exception()) is not None:
            log.error("a prompt could not be counted", exc_info=fault)
            return
        found = ended.result()
        if found is not None:
            self._cache[key] = found
            if len(self._cache) > _CACHED:
                self._cache.popitem(last=False)

    async def close(self) -> None:
        """Stop counting."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._source.close()


def _digest(call: Call) -> bytes:
    """Return a digest of model and prompt: what else a call asks for does not change the count."""
    parts = [call.endpoint, call.model, *_values(call.document)]
    return hashlib.blake2b(orjson.dumps(parts), digest_size=16).digest()


def _values(document: Any) -> Iterable[Any]:
    return (document.get(key) for key in _KEYS)
