"""Tokenizing, passed to a node of the model: no tokens are booked and nothing is metered as generation.

Times are seconds, sizes bytes. A tenant has as many of these calls open as it may have requests at once.
Prevents: a tokenizer that is a way around quotas (one call costs an engine's front end milliseconds), a
body no engine can stand taking nodes out of service, and usage records of what no GPU computed.
Source: vLLM, `entrypoints/serve/tokenize`.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import Counter, defaultdict
from typing import Any, Final, cast

import orjson

from admission.answers import Answer, error_body, invalid_answer, outcome_answer
from admission.calls import unambiguous
from admission.identity import Caller
from admission.metrics import Family
from admission.nodes import NodeBook
from admission.state import GatewayState, with_adapters
from admission.upstream import NodeFailed, Upstream
from fleet.errors import InvalidInput, NotFound
from fleet.messages import NodeTarget
from fleet.outcomes import Outcome
from fleet.readings import Reason

#: Path here -> path at the node.
PASSED: Final = {
    "/tokenize": "/tokenize",
    "/detokenize": "/detokenize",
    "/v1/tokenize": "/tokenize",
    "/v1/detokenize": "/detokenize",
}
_DEADLINE_S = 10.0
_TRIES = 2


class Passthrough:
    """Passes the calls of one gateway."""

    def __init__(self, state: GatewayState, nodes: NodeBook, upstream: Upstream) -> None:
        self._state = state
        self._nodes = nodes
        self._upstream = upstream
        self._open: Counter[str] = Counter()  # by tenant
        self._turns = itertools.count()
        self._failed = set[str]()  # nodes whose last call of these failed
        self._counts: defaultdict[tuple[str, ...], int] = defaultdict(int)

    async def answer(self, caller: Caller, path: str, raw: bytes) -> Answer:
        """Return what the client gets for one call to a path of `PASSED`."""
        target = PASSED[path]
        found = await self._answer(caller, target, raw)
        self._counts[(caller.label, target[1:], f"{found.status // 100}xx")] += 1
        return found

    async def _answer(self, caller: Caller, target: str, raw: bytes) -> Answer:
        try:
            model, raw = self._model(raw)
        except (InvalidInput, NotFound) as exc:
            return invalid_answer(exc)
        if self._state.is_draining:
            return outcome_answer(Outcome.DRAINING, "The gateway is shutting down.")
        if self._open[caller.tenant] >= (most := self._most(caller.tenant)):
            message = f"{most} calls of this tenant are open, as many as it may have requests at once."
            body = error_body(message, "rate_limit_error", Outcome.REJECTED_QUOTA_REQUESTS.value)
            return Answer(429, body, ((b"retry-after", b"1"), (b"retry-after-ms", b"1000")))
        self._open[caller.tenant] += 1
        try:
            return await self._pass(target, model, raw)
        finally:
            self._open[caller.tenant] -= 1
            if not self._open[caller.tenant]:
                del self._open[caller.tenant]

    def _model(self, raw: bytes) -> tuple[str, bytes]:
        """Return the model asked for, and a body that reads one way. Raises InvalidInput, NotFound."""
        try:
            document: object = orjson.loads(raw)
        except orjson.JSONDecodeError as exc:
            raise InvalidInput(f"the body is not JSON: {exc.msg}", hint="Send a JSON object") from exc
        model = cast("dict[str, Any]", document).get("model") if isinstance(document, dict) else None
        if not isinstance(model, str) or not model:
            raise InvalidInput("model is missing", field="model", hint="GET /v1/models lists them")
        if model not in self._state.models:
            raise NotFound(f"model {model[:100]!r} is not served here", field="model",
                           hint="GET /v1/models lists the models")  # fmt: skip
        return model, unambiguous(cast("dict[str, Any]", document), raw)

    def _most(self, tenant: str) -> int:
        """Return how many requests the tenant may have at once, by its part here or by the policy."""
        assignment = self._state.assignment
        if assignment is None:
            return 0
        share = assignment.shares.get(tenant)
        if share is not None:
            return share.max_concurrent_requests
        quota = assignment.policy.tenant(tenant)
        return 0 if quota is None else quota.max_concurrent_requests

    async def _pass(self, target: str, model: str, raw: bytes) -> Answer:
        """Ask a node; another one when it fails. The calls change nothing, so twice is no harm.

        A node that refuses the connection has failed. One that answers 5xx, breaks off or is late has when
        another node answers the same body: where all fail, it may be the body's fault. That it tokenizes
        again takes back only such failures: an engine may be dead behind a front end that tokenizes.
        """
        targets = open_nodes(self._state, self._nodes, model)
        if not targets:
            return outcome_answer(Outcome.NO_NODES, f"No node of {model[:100]!r} is open.")
        first = next(self._turns)
        why = suspect = ""
        for turn in range(min(_TRIES, len(targets))):
            node = targets[(first + turn) % len(targets)]
            try:
                async with asyncio.timeout(_DEADLINE_S):
                    answer = await self._ask(node.base_url.rstrip("/") + target, raw)
            except NodeFailed as exc:
                why = str(exc)
                if exc.reason is Reason.REFUSED:
                    self._blame(node.name)
                else:
                    suspect = node.name
            except TimeoutError:
                why, suspect = f"no answer in {_DEADLINE_S:g} s", node.name
            else:
                if suspect:
                    self._blame(suspect)
                if node.name in self._failed:
                    self._failed.discard(node.name)
                    self._nodes.request_worked(node.name)
                return answer
        return outcome_answer(Outcome.UPSTREAM_ERROR, f"The engine failed: {why}.")

    def _blame(self, name: str) -> None:
        self._failed.add(name)
        self._nodes.request_failed(name)

    async def _ask(self, url: str, raw: bytes) -> Answer:
        exchange = await self._upstream.post(url, raw, f"tok-{secrets.token_hex(12)}")
        try:
            body = await exchange.body(self._state.settings.answer_bytes)
            if exchange.status >= 500 or exchange.status in (401, 403) or 300 <= exchange.status < 400:
                raise NodeFailed(Reason.HTTP_ERROR, f"it answered {exchange.status}")
            return Answer(exchange.status, body, (), exchange.content_type.encode("ascii", "replace"))
        finally:
            exchange.close()

    def families(self) -> list[Family]:
        """Return the calls counted, for the metrics page."""
        return [
            Family(
                "rhodeck_gateway_passed_total",
                "Calls passed to a node without being booked.",
                ("tenant", "path", "status"),
                self._counts,
                "counter",
            )
        ]


def open_nodes(state: GatewayState, nodes: NodeBook, model: str) -> list[NodeTarget]:
    """Return the open nodes that serve a model, as an adapter found on them, too."""
    conditions, held = nodes.conditions({}), state.assignment
    return [
        node
        for node in (() if held is None else with_adapters(held, state.adapters).nodes)
        if model in node.models and conditions.get(node.name) == ""
    ]
