"""LoRA adapters that nodes hold beyond the models they are registered with, asked from the nodes.

Times are seconds. vLLM lists a loaded adapter in `/v1/models` with its base model as `parent`; only those
of a model the node is registered with count, and no name that is registered anywhere. Prevents: requests
for an adapter sent to a node that does not hold it, and a node that draws another model's traffic by
naming it.
Source: vLLM, "LoRA Adapters" (`/v1/models`, `parent`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Any, cast

import orjson

from admission.state import GatewayState
from admission.upstream import NodeFailed, Upstream
from fleet.messages import Assignment, NodeTarget

ASK_EVERY_S = 10.0
MAX_ADAPTERS = 200  # of one node
_LIMIT_BYTES = 1 << 20
_AT_ONCE = 8
_LABEL = re.compile(r"[^\x00-\x1f\x7f]{1,200}")


def adapters_in(answer: bytes, models: Iterable[str], taken: Iterable[str]) -> tuple[str, ...]:
    """Return the adapters of `models` in a `/v1/models` answer, sorted; none is named as one `taken`."""
    try:
        document: object = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return ()
    listed: object = cast("dict[str, Any]", document).get("data") if isinstance(document, dict) else None
    bases, others = set(models), set(taken)
    found: set[str] = set()
    for one in cast("list[object]", listed) if isinstance(listed, list) else ():
        said = cast("dict[str, Any]", one) if isinstance(one, dict) else {}
        name, parent = said.get("id"), said.get("parent")
        if isinstance(name, str) and isinstance(parent, str) and parent in bases and name not in others:
            found |= {name} if _LABEL.fullmatch(name) else set()
    return tuple(sorted(found)[:MAX_ADAPTERS])


class AdapterWatch:
    """Asks the nodes of one gateway for their adapters."""

    def __init__(self, state: GatewayState, upstream: Upstream) -> None:
        self._state = state
        self._upstream = upstream
        self._asked: dict[tuple[str, str], float] = {}  # by name and address of the node

    async def run(self) -> None:
        """Ask until cancelled, each node every `ASK_EVERY_S`, while the policy says so."""
        while True:
            held = self._state.assignment
            if held is not None and held.policy.routing.adapters == "discovered":
                await self._ask_due(held)
            await asyncio.sleep(1.0)

    async def _ask_due(self, held: Assignment) -> None:
        now_s = self._state.clock.monotonic_s()
        present = {(node.name, node.base_url) for node in held.nodes}
        self._asked = {key: at_s for key, at_s in self._asked.items() if key in present}
        due = [
            node
            for node in held.nodes
            if now_s - self._asked.get((node.name, node.base_url), float("-inf")) >= ASK_EVERY_S
        ]
        taken = {model for node in held.nodes for model in node.models}
        gate = asyncio.Semaphore(_AT_ONCE)
        answers = await asyncio.gather(*(self._ask(node, taken, gate) for node in due))
        self._asked |= {(node.name, node.base_url): now_s for node in due}
        known = dict(self._state.adapters)
        known |= {node.name: found for node, found in zip(due, answers, strict=True) if found is not None}
        names = {node.name for node in held.nodes}
        self._state.take_adapters({name: found for name, found in known.items() if found and name in names})

    async def _ask(
        self, node: NodeTarget, taken: set[str], at_once: asyncio.Semaphore
    ) -> tuple[str, ...] | None:
        """Return a node's adapters; None: it did not say, and what it said before holds."""
        url = node.base_url.rstrip("/") + "/v1/models"
        deadline_s = self._state.settings.poll_timeout_s
        try:
            async with at_once:
                page = await self._upstream.page(url, deadline_s=deadline_s, limit_bytes=_LIMIT_BYTES)
        except NodeFailed:
            return None
        return adapters_in(page.body, node.models, taken) if page.status == 200 else None
