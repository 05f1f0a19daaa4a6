"""Prompts counted by the engines' own `/tokenize`: exact for whatever they serve, at a call's price.

Prevents: waiting for a node that does not answer (the caller's budget bounds it), and a count by another
model's tokenizer.
"""

from __future__ import annotations

import secrets
from typing import Any, cast

import orjson

from admission.calls import Call
from admission.nodes import NodeBook
from admission.passthrough import open_nodes
from admission.prompt_counts import PromptCounts
from admission.state import GatewayState
from admission.tokenizer_files import TokenizerFiles
from admission.upstream import NodeFailed, Upstream
from fleet.readings import Reason

_ANSWER_BYTES = 16 << 20  # it lists the ids


class EngineTokenizer:
    """Asks a node of the call's model."""

    basis = "counted by an engine"

    def __init__(self, state: GatewayState, nodes: NodeBook, upstream: Upstream) -> None:
        self._state = state
        self._nodes = nodes
        self._upstream = upstream

    def is_for(self, call: Call) -> bool:
        """Say whether vLLM's `/tokenize` takes this prompt: one text, or a chat."""
        if call.endpoint == "chat":
            return not call.document.get("continue_final_message")
        return call.endpoint == "completions" and isinstance(call.document.get("prompt"), str)

    async def count(self, call: Call) -> int | None:
        """Return what a node counts; None when none is open, or it fails or refuses.

        Only a refused connection counts against the node: all else may be the body's fault, and the request
        itself follows.
        """
        targets = open_nodes(self._state, self._nodes, call.model)
        if not targets:
            return None
        node = secrets.choice(targets)
        url = node.base_url.rstrip("/") + "/tokenize"
        try:
            exchange = await self._upstream.post(url, _body(call), f"tok-{secrets.token_hex(12)}")
            try:
                body = await exchange.body(_ANSWER_BYTES)
                is_well = exchange.status == 200
            finally:
                exchange.close()
            answer: object = orjson.loads(body) if is_well else None
        except NodeFailed as exc:
            if exc.reason is Reason.REFUSED:
                self._nodes.request_failed(node.name)
            return None
        except orjson.JSONDecodeError:
            return None
        found = cast("dict[str, Any]", answer).get("count") if isinstance(answer, dict) else None
        is_count = isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 2**31
        return cast(int, found) if is_count else None

    async def close(self) -> None:
        """Nothing is held."""


def _body(call: Call) -> bytes:
    """Return what `/tokenize` gets: the keys of the call that make its prompt."""
    keys = ("messages", "tools", "chat_template", "chat_template_kwargs", "add_generation_prompt")
    if call.endpoint != "chat":
        keys = ("prompt", "add_special_tokens")
    kept = {key: call.document[key] for key in keys if call.document.get(key) is not None}
    return orjson.dumps({"model": call.model, **kept})


def prompt_counts(state: GatewayState, nodes: NodeBook, upstream: Upstream) -> PromptCounts | None:
    """Return what counts prompts exactly, as configured; None: they are estimated.

    Raises InvalidInput when the folder or the library is not there.
    """
    settings = state.settings
    if settings.tokenizers_dir is not None:
        files = TokenizerFiles(settings.tokenizers_dir)
        state.on_change.append(files.follow)
        return PromptCounts(files, settings.tokenizer_budget_s)
    if settings.tokenize_by_engine:
        return PromptCounts(EngineTokenizer(state, nodes, upstream), settings.tokenizer_budget_s)
    return None
