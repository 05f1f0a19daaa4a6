"""What the tests' engine serves besides chat: responses, and tokenizing; as vLLM does.

A prompt's text commands it as in `tests.gateway_process`: "tokens=5 fault=failed". Faults of a stream:
"failed" and "incomplete" end it so, "cut" breaks it off. Token ids are the bytes of the text.
"""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any, Protocol

from aiohttp import web

#: As `tokenize_status`: the connection ends without an answer.
CUT = 0


class Noted(Protocol):
    """What the engine keeps of a request."""

    body: dict[str, Any]
    output_tokens: int
    ending: str


class Noting(Protocol):
    """The engine these endpoints belong to."""

    prompt_tokens: int
    tokenized: list[dict[str, Any]]
    holds_tokenize: threading.Event | None
    tokenize_status: int

    async def note(self, request: web.Request) -> Noted: ...


def add_routes(app: web.Application, engine: Noting) -> None:
    """Serve the endpoints for `engine`, which notes every generation."""

    async def responses(request: web.Request) -> web.StreamResponse:
        served = await engine.note(request)
        given = served.body["input"]
        text = given if isinstance(given, str) else given[-1]["content"]
        command = dict(word.split("=") for word in text.split() if "=" in word)
        tokens, pause = int(command.get("tokens", 3)), float(command.get("pause", 0))
        try:
            if served.body.get("stream"):
                return await _stream(request, engine, served, tokens, pause, command.get("fault", ""))
            served.output_tokens = tokens
            served.ending = "finished"
            return web.json_response(_response(engine, served, command.get("fault", "completed")))
        except (asyncio.CancelledError, ConnectionError):
            served.ending = "aborted"
            raise

    async def tokenize(request: web.Request) -> web.Response:
        body = await request.json()
        engine.tokenized.append(body)
        held = engine.holds_tokenize
        while held is not None and not held.is_set():
            await asyncio.sleep(0.01)
        if engine.tokenize_status == CUT and request.transport is not None:
            request.transport.close()
        if engine.tokenize_status != 200:
            return web.Response(status=engine.tokenize_status or 500)
        if "messages" in body:
            text = "".join(f"<{m['role']}>{m['content']}" for m in body["messages"])
        else:
            text = body["prompt"]
        ids = list(text.encode())
        return web.json_response({"count": len(ids), "max_model_len": 4096, "tokens": ids})

    async def detokenize(request: web.Request) -> web.Response:
        body = await request.json()
        engine.tokenized.append(body)
        return web.json_response({"prompt": bytes(body["tokens"]).decode()})

    app.router.add_post("/v1/responses", responses)
    app.router.add_post("/tokenize", tokenize)
    app.router.add_post("/detokenize", detokenize)


def _response(engine: Noting, served: Noted, status: str) -> dict[str, Any]:
    text = {"type": "output_text", "text": "word " * served.output_tokens, "annotations": []}
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
    usage = {
        "input_tokens": engine.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 2},
        "output_tokens": served.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": engine.prompt_tokens + served.output_tokens,
    }
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": status,
        "model": served.body["model"],
        "output": [message | {"content": [text]}],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage,
        "error": {"code": "server_error", "message": "boom"} if status == "failed" else None,
    }


async def _stream(
    request: web.Request, engine: Noting, served: Noted, tokens: int, pause: float, fault: str
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    number = 0

    async def tell(kind: str, **fields: Any) -> None:
        nonlocal number
        document = {"type": kind, "sequence_number": number, **fields}
        number += 1
        await response.write(f"event: {kind}\ndata: {json.dumps(document)}\n\n".encode())

    begun = _response(engine, served, "in_progress") | {"usage": None, "output": []}
    await tell("response.created", response=begun)
    for index in range(tokens):
        if fault == "cut" and index == tokens // 2:
            served.ending = "cut"
            assert request.transport is not None
            request.transport.abort()
            return response
        if fault == "stall" and index == tokens // 2:
            await asyncio.Event().wait()
        await asyncio.sleep(pause)
        served.output_tokens += 1
        await tell(
            "response.output_text.delta",
            item_id="msg_1",
            output_index=0,
            content_index=0,
            delta=f"w{index} event: response.completed",
            logprobs=[],
        )
    ending = fault if fault in ("failed", "incomplete") else "completed"
    served.ending = "refused" if ending == "failed" else "finished"
    await tell(f"response.{ending}", response=_response(engine, served, ending))
    return response
