"""The HTTP face of one simulated node: a bare ASGI callable with vLLM 0.32's paths.

A bare callable on uvicorn (httptools, uvloop) because per event it costs about half of what aiohttp.web
does and nothing here needs a framework. Responses are counted when they end, as vLLM's front end counts.
Prevents: a client or scraper that meets paths, codes or bodies here that a real node would not give.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson

from fleet.errors import FleetError, InvalidInput
from simfleet.embeddings_api import embeddings_answer, parse_embeddings
from simfleet.faults import Fault, parse_fault
from simfleet.node import Answer, SimNode
from simfleet.openai_api import (
    ApiError,
    GenerationCall,
    StreamWriter,
    parse_call,
    transfer_params,
    whole_answer,
)
from simfleet.page import CONTENT_TYPE
from simfleet.responses_api import ResponsesWriter, parse_responses, response, tokenize_answer

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

VERSION = "0.32.0"
MAX_BODY_BYTES = 16 * 1024 * 1024
LOOPBACK = ("127.0.0.1", "::1")
RESPONSES_PATH = "/v1/responses"
EMBEDDINGS_PATH = "/v1/embeddings"
GENERATION_PATHS = {
    "/v1/chat/completions": True,
    "/v1/completions": False,
    RESPONSES_PATH: True,
    EMBEDDINGS_PATH: False,
}  # is it a chat
TOKENIZE_PATHS = ("/tokenize", "/detokenize")
JSON = b"application/json"


class NodeApp:
    """Answers for one node. `order` carries out a fault on the node the caller named (None: this one)."""

    def __init__(self, node: SimNode, order: Callable[[str | None, Fault], Awaitable[None]]) -> None:
        self.node = node
        self._order = order

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path, method = scope["path"], scope["method"]
        if path in GENERATION_PATHS and method == "POST":
            await self._generate(path, scope, receive, send)
        elif path in TOKENIZE_PATHS and method == "POST":
            await self._tokenize(path, receive, send)
        elif path == "/metrics" and method == "GET":
            await self._metrics(send)
        elif path == "/sim/fault" and method == "POST" and scope["client"][0] in LOOPBACK:
            await self._fault(scope, receive, send)
        else:
            await self._small(path, method, scope, send)

    # -- generation ---------------------------------------------------------------------------------

    async def _generate(
        self, path: str, scope: MutableMapping[str, Any], receive: Receive, send: Send
    ) -> None:
        node, http = self.node, self.node.http
        began_s = node.now_s()
        status, sent_bytes = 200, 0
        body = b""
        node.in_flight += 1
        try:
            body = await _read_body(receive)
            call = self._call(path, body)
            answer_id = f"{_kind(call)}-{secrets.token_hex(8)}"
            answer = node.start(call)
            leaving = asyncio.create_task(_abort_when_gone(node, answer, receive))
            try:
                if call.is_stream:
                    await self._stream(call, answer_id, answer, send)
                else:
                    sent_bytes = await self._whole(call, answer_id, answer, send)
            finally:
                leaving.cancel()
                if not answer.is_over:
                    node.abort(answer)
        except ApiError as exc:
            status, payload = exc.status, exc.body()
            sent_bytes = len(payload)
            await _respond(send, status, payload)
        finally:
            node.in_flight -= 1
            http.book(path, "POST", status, max(0.0, node.now_s() - began_s), len(body), sent_bytes)

    def _call(self, path: str, body: bytes) -> GenerationCall:
        profile = self.node.profile
        if path == RESPONSES_PATH:
            return parse_responses(body, profile=profile, model=profile.model)
        if path == EMBEDDINGS_PATH:
            return parse_embeddings(body, profile=profile, model=profile.model)
        return parse_call(body, is_chat=GENERATION_PATHS[path], profile=profile, model=profile.model)

    async def _whole(self, call: GenerationCall, answer_id: str, answer: Answer, send: Send) -> int:
        while not answer.is_over:
            await answer.news.wait()
            answer.news.clear()
        if answer.is_gone:
            return 0
        if call.seeds:
            payload = embeddings_answer(call, answer_id, self._unix_s())
            await _respond(send, 200, payload)
            return len(payload)
        if call.is_response:
            made = response(call, answer_id, self._unix_s(), answer.produced, answer.reasons[0])
            payload = orjson.dumps(made)
            await _respond(send, 200, payload)
            return len(payload)
        transfer = transfer_params(call, self.node.name, self.node.profile.block_size)
        payload = whole_answer(call, answer_id, self._unix_s(), answer.produced, answer.reasons, transfer)
        await _respond(send, 200, payload)
        return len(payload)

    async def _stream(self, call: GenerationCall, answer_id: str, answer: Answer, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        writer = (ResponsesWriter if call.is_response else StreamWriter)(call, answer_id, self._unix_s())
        opening = writer.opening()
        delivered = [0] * len(answer.produced)
        told: list[str | None] = [None] * len(delivered)
        while not answer.is_over:
            await answer.news.wait()
            answer.news.clear()
            if answer.is_gone:
                return
            events = [opening]
            opening = ""
            for index, (produced, reason) in enumerate(zip(answer.produced, answer.reasons, strict=True)):
                if produced > delivered[index] or reason != told[index]:
                    events.append(writer.tokens(index, delivered[index], produced, reason))
                    delivered[index], told[index] = produced, reason
            if answer.open == 0:
                events.append(writer.closing(answer.produced))
            await send({"type": "http.response.body", "body": "".join(events).encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _unix_s(self) -> int:
        return int(self.node.clock.now().timestamp())

    # -- the rest -----------------------------------------------------------------------------------

    async def _tokenize(self, path: str, receive: Receive, send: Send) -> None:
        status, body = 200, b""
        try:
            body = await _read_body(receive)
            payload = tokenize_answer(path, body, self.node.profile)
        except ApiError as exc:
            status, payload = exc.status, exc.body()
        await _respond(send, status, payload)
        self.node.http.book(path, "POST", status, 0.001, len(body), len(payload))

    async def _metrics(self, send: Send) -> None:
        node = self.node
        if node.metrics_delay_s:
            await asyncio.sleep(node.metrics_delay_s)
        node.tick()
        await _respond(send, 200, node.page.render(node.engine, node.http), CONTENT_TYPE)

    async def _small(self, path: str, method: str, scope: MutableMapping[str, Any], send: Send) -> None:
        """Constant answers. The paths a probe asks are not counted, as in vLLM; the others are."""
        node = self.node
        if path in ("/health", "/ping") and method in ("GET", "POST"):
            await _respond(send, 200, b"", None)
        elif path == "/version" and method == "GET":
            await _respond(send, 200, orjson.dumps({"version": VERSION}))
        elif path == "/load" and method == "GET":
            await _respond(send, 200, orjson.dumps({"server_load": node.in_flight}))
        else:
            known = {
                "/v1/models": ("GET", self._models),
                **dict.fromkeys((*GENERATION_PATHS, *TOKENIZE_PATHS), ("POST", None)),
            }
            allowed, make = known.get(path, (None, None))
            if allowed is None:
                handler, status, payload = "none", 404, b'{"detail":"Not Found"}'
            elif method != allowed or make is None:
                handler, status, payload = path, 405, b'{"detail":"Method Not Allowed"}'
            else:
                handler, status, payload = path, 200, make()
            await _respond(send, status, payload)
            node.http.book(handler, method, status, 0.001, 0, len(payload))

    def _models(self) -> bytes:
        profile, created = self.node.profile, int(self.node.started_at_s)
        permission = {
            "id": f"modelperm-{created:x}",
            "object": "model_permission",
            "created": created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        model = {
            "id": profile.model,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": profile.model,
            "parent": None,
            "max_model_len": profile.max_model_len,
            "permission": [permission],
        }
        return orjson.dumps({"object": "list", "data": [model]})

    async def _fault(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Carry out a fault. Loopback callers only, and no web page: a browser would send an Origin."""
        if any(name == b"origin" for name, _ in scope["headers"]):
            await _respond(send, 403, b'{"detail":"Forbidden"}')
            return
        try:
            data = orjson.loads(await _read_body(receive))
            fault = parse_fault(data)
            node = data.get("node")
            if node is not None and not isinstance(node, str):
                raise InvalidInput(f"node is {node!r}", field="node", hint="Give a node's name")
            await self._order(node, fault)
        except orjson.JSONDecodeError as exc:
            await _respond(send, 400, orjson.dumps(InvalidInput(f"the body is not JSON: {exc}").as_dict()))
        except ApiError as exc:
            await _respond(send, exc.status, exc.body())
        except FleetError as exc:
            await _respond(send, 400, orjson.dumps(exc.as_dict()))
        else:
            await _respond(send, 200, orjson.dumps({"done": fault.kind.value}))


def _kind(call: GenerationCall) -> str:
    """Return what vLLM begins the answer's id with."""
    if call.seeds:
        return "embd"
    return "resp" if call.is_response else "chatcmpl" if call.is_chat else "cmpl"


async def _read_body(receive: Receive) -> bytes:
    """Read a request body up to the cap. Raises ApiError when it is larger or the client left."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApiError(400, "the client left before the body was complete")
        part = message.get("body", b"")
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise ApiError(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


async def _abort_when_gone(node: SimNode, answer: Answer, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    if not answer.is_over:
        node.abort(answer)


async def _respond(send: Send, status: int, body: bytes, content_type: bytes | None = JSON) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    if content_type is not None:
        headers.append((b"content-type", content_type))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
