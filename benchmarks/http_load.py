"""A mock engine and a load, processes of their own on raw sockets; what is measured is a proxy between.

The engine answers any POST with one fixed chat answer of about 1.1 KB, or with a stream of events when the
body asks for one, and serves the pages gateways and routers look at. The load keeps a number of connections
busy, or sends at an even rate, and prints what it saw as a line of JSON. Times are seconds or ms, as named.

    python -m benchmarks.http_load engine --port 0
    python -m benchmarks.http_load load URL --connections 64 --seconds 4 [--rate 200] [--stream]
    python -m benchmarks.http_load load URL --connections 64 --seconds 60 --requests 1000
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import cast
from urllib.parse import urlsplit

import uvloop

MODEL = "m-70b"
PROMPT = "The quick brown fox jumps over the lazy dog. " * 22  # about 1 KB
EVENTS, EVENT_PAUSE_S = 50, 0.02
_ANSWER = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "word " * 180},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 230, "completion_tokens": 180, "total_tokens": 410},
    }
).encode()
_MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode()
_METRICS = f"""vllm:num_requests_running{{engine="0",model_name="{MODEL}"}} 0
vllm:num_requests_waiting{{engine="0",model_name="{MODEL}"}} 0
vllm:kv_cache_usage_perc{{engine="0",model_name="{MODEL}"}} 0.1
vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="400000"}} 1.0
vllm:prompt_tokens_total{{engine="0",model_name="{MODEL}"}} 0
vllm:generation_tokens_total{{engine="0",model_name="{MODEL}"}} 0
vllm:request_success_total{{engine="0",finished_reason="stop",model_name="{MODEL}"}} 0
process_start_time_seconds 1.7e9
""".encode()
_EVENT = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m-70b",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
)
_LAST = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m-70b","choices":[],'
    b'"usage":{"prompt_tokens":230,"completion_tokens":50,"total_tokens":280}}\n\ndata: [DONE]\n\n'
)


def whole(body: bytes, kind: bytes = b"application/json") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s" % (kind, len(body), body)


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


_PAGES = {
    b"/metrics": whole(_METRICS, b"text/plain; version=0.0.4"),
    b"/v1/models": whole(_MODELS),
    b"/health": whole(b""),
    b"/get_server_info": whole(b"{}"),
    b"/get_model_info": whole(b"{}"),
}
_CHAT = whole(_ANSWER)


class Engine(asyncio.Protocol):
    """One connection to the mock engine. Requests are not pipelined."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._data = cast("asyncio.Transport", transport), b""
        self._streams = set[asyncio.Task[None]]()

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        lower = head.lower()
        if not found:
            return
        if b"transfer-encoding: chunked" in lower:
            if not body.endswith(b"0\r\n\r\n"):
                return
        elif len(body) < int(lower.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0):
            return
        self._data = b""
        path = head.split(b" ", 2)[1].partition(b"?")[0]
        if not path.startswith(b"/v1/chat"):
            self._transport.write(_PAGES.get(path, whole(b"{}")))
        elif b'"stream":true' in body.replace(b" ", b""):
            task = asyncio.ensure_future(self._stream())
            self._streams.add(task)
            task.add_done_callback(self._streams.discard)
        else:
            self._transport.write(_CHAT)

    async def _stream(self) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
        self._transport.write(head + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(EVENTS):
            await asyncio.sleep(EVENT_PAUSE_S)
            if self._transport.is_closing():
                return
            self._transport.write(chunk(_EVENT))
        self._transport.write(chunk(_LAST) + b"0\r\n\r\n")


async def engine(port: int) -> None:
    """Serve until killed; print the port first."""
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", port)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await asyncio.Event().wait()


class Client(asyncio.Protocol):
    """One kept connection of the load: a request at a time, its answer read to the end."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self._data, self._need = cast("asyncio.Transport", transport), b"", -1
        self._waiter: asyncio.Future[int] | None = None
        self.events = 0

    def ask(self, request: bytes) -> asyncio.Future[int]:
        self._waiter = asyncio.get_running_loop().create_future()
        self._data, self._need = b"", -1
        self.transport.write(request)
        return self._waiter

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._need == -1:
            head, found, _ = self._data.partition(b"\r\n\r\n")
            if not found:
                return
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            self._need = len(head) + 4 + int(length) if length else -2
        if len(self._data) >= self._need if self._need > 0 else self._data.endswith(b"0\r\n\r\n"):
            self.events += self._data.count(b"data: {")
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(int(self._data[9:12]))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(0)


def request_bytes(host: str, key: str, *, is_stream: bool) -> bytes:
    body = json.dumps(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": PROMPT}],
            "max_tokens": 200,
            **({"stream": True, "stream_options": {"include_usage": True}} if is_stream else {}),
        }
    ).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    head += f"Authorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def load(
    url: str, key: str, connections: int, seconds: float, rate: float, *, is_stream: bool, most: int = 0
) -> dict[str, object]:
    """Return what the load saw: finished, failed, events, latencies in ms (p50, p99).

    It ends after `seconds`, or after `most` requests where that is given.
    """
    place = urlsplit(url)
    loop = asyncio.get_running_loop()
    request = request_bytes(place.netloc, key, is_stream=is_stream)
    clients: list[Client] = []
    for _ in range(connections):
        _, client = await loop.create_connection(Client, place.hostname or "", place.port or 80)
        clients.append(client)
    finished, failed, waits = 0, 0, list[float]()
    until = loop.time() + seconds

    async def keep_busy(client: Client, first_at: float) -> None:
        nonlocal finished, failed
        due = first_at
        while loop.time() < until and not 0 < most <= finished:
            if rate:
                await asyncio.sleep(max(0.0, due - loop.time()))
                due += connections / rate
            began = time.perf_counter()
            status = await client.ask(request)
            waits.append(1000 * (time.perf_counter() - began))
            finished += status == 200
            failed += status != 200
            if status == 0:
                return

    begin = loop.time()
    gaps = 1 / rate if rate else 0.0
    await asyncio.gather(*(keep_busy(c, begin + n * gaps) for n, c in enumerate(clients)))
    took = loop.time() - begin
    for client in clients:
        client.transport.close()
    waits.sort()
    return {
        "finished": finished,
        "failed": failed,
        "seconds": took,
        "events": sum(client.events for client in clients),
        "p50_ms": waits[len(waits) // 2] if waits else None,
        "p99_ms": waits[int(0.99 * (len(waits) - 1))] if waits else None,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description="A mock engine, or a load.")
    arguments.add_argument("what", choices=("engine", "load"))
    arguments.add_argument("url", nargs="?", default="")
    arguments.add_argument("--port", type=int, default=0)
    arguments.add_argument("--key", default="none")
    arguments.add_argument("--connections", type=int, default=64)
    arguments.add_argument("--seconds", type=float, default=4.0)
    arguments.add_argument("--rate", type=float, default=0.0)
    arguments.add_argument("--requests", type=int, default=0)
    arguments.add_argument("--stream", action="store_true")
    chosen = arguments.parse_args()
    if chosen.what == "engine":
        uvloop.run(engine(chosen.port))
        return
    seen = uvloop.run(
        load(
            chosen.url,
            chosen.key,
            chosen.connections,
            chosen.seconds,
            chosen.rate,
            is_stream=chosen.stream,
            most=chosen.requests,
        )
    )
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
