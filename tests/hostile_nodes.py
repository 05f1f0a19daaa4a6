"""A process that plays nodes which misbehave, and good ones beside them: each a raw socket of its own.

Started as `python tests/hostile_nodes.py GOOD`; prints one JSON object, kind -> port, and serves until its
standard input closes. A process of its own, so that what it takes in memory and time is not the reader's.
Prevents: tests of misbehaviour that an HTTP library is too well-behaved to play.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import sys
from collections.abc import Awaitable, Callable

Handler = Callable[[asyncio.StreamWriter], Awaitable[None]]

MIB = 1024 * 1024
ENGINE = 'engine="0",model_name="m"'
CORE = (
    f"vllm:num_requests_running{{{ENGINE}}} 1\n"
    f"vllm:num_requests_waiting{{{ENGINE}}} 0\n"
    f"vllm:kv_cache_usage_perc{{{ENGINE}}} 0.25\n"
    f'vllm:request_success_total{{{ENGINE},finished_reason="stop"}} 5\n'
    f"vllm:prompt_tokens_total{{{ENGINE}}} 50\n"
    f"vllm:generation_tokens_total{{{ENGINE}}} 50\n"
).encode()


def http(body: bytes, *headers: str, status: str = "200 OK", length: int | None = None) -> bytes:
    """Return a whole answer. `length`: the length it claims, where that is not its own."""
    claimed = len(body) if length is None else length
    lines = (f"HTTP/1.1 {status}", f"Content-Length: {claimed}", "Connection: close", *headers)
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def says(raw: bytes) -> Handler:
    """Answer with these bytes and close."""

    async def handler(writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()

    return handler


def page(body: bytes, *headers: str) -> Handler:
    """Answer with a metrics page."""
    return says(http(body, "Content-Type: text/plain; version=0.0.4", *headers))


def for_ever(head: bytes, piece: bytes, every_s: float = 0.0) -> Handler:
    """Answer with a head, then the same piece again and again."""

    async def handler(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(every_s)

    return handler


async def silence(_writer: asyncio.StreamWriter) -> None:
    """Take the connection and say nothing."""
    await asyncio.Event().wait()


async def reset(writer: asyncio.StreamWriter) -> None:
    """Send half a page and reset the connection."""
    writer.write(http(CORE, length=10_000))
    await writer.drain()
    writer.transport.abort()


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n" % len(piece) + piece + b"\r\n"


def many_series(size: int) -> bytes:
    """Return `size` bytes of different series of a family that is read."""
    lines, at, number = [CORE], len(CORE), 0
    while at < size:
        line = b'vllm:lora_requests_info{engine="0",running_lora_adapters="%d"} 1\n' % number
        lines.append(line)
        at += len(line)
        number += 1
    return b"".join(lines)


def numbers() -> bytes:
    """Return a page whose every other value is impossible."""
    bad = ("NaN", "-Inf", "+Inf", "1e400", "-7", "1e18", "0x10", "1_000", "\u0663", "")
    lines = [f"vllm:num_preemptions_total{{{ENGINE}}} {value}\n".encode() for value in bad]
    return CORE + b"".join(lines) + f"vllm:kv_cache_usage_perc{{{ENGINE}}} -0.4\n".encode()


def kinds() -> dict[str, Handler]:
    """Return every kind of node, by name."""
    chunked = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
    bare = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"
    bomb = gzip.compress(b"\0" * 256 * MIB, compresslevel=9)
    labels = ",".join(f'l{i}="x"' for i in range(20_000))
    filler = b"# HELP vllm:x " + b"h" * 1_000 + b"\n"
    return {
        "endless": for_ever(bare, b"vllm:a 1\n" * 7_000),
        "endless_chunks": for_ever(chunked, chunk(b"vllm:a 1\n" * 7_000)),
        "empty_lines": page(b"\n" * (15 * MIB)),
        "bomb": says(http(bomb, "Content-Type: text/plain", "Content-Encoding: gzip")),
        "drip": for_ever(chunked, chunk(b"v"), 0.2),
        "drip_of_headers": for_ever(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n", 0.2),
        "silence": silence,
        "interim_for_ever": for_ever(b"", b"HTTP/1.1 102 Processing\r\n\r\n", 0.01),
        "header_flood": for_ever(b"HTTP/1.1 200 OK\r\n", b"X-Flood: " + b"f" * 4_000 + b"\r\n"),
        "long_header": says(b"HTTP/1.1 200 OK\r\nX: " + b"y" * MIB + b"\r\n\r\n" + CORE),
        "redirect": says(http(b"", "Location: http://169.254.169.254/latest/", status="302 Found")),
        "login": says(http(b"<html><form>sign in</form></html>", "Content-Type: text/html")),
        "json": says(http(b"[]", "Content-Type: application/json")),
        "unasked_packing": says(http(CORE, "Content-Encoding: br")),
        "short": says(http(CORE, length=len(CORE) + 500)),
        "claims_much": says(http(CORE, length=10**12)),
        "reset": reset,
        "no_http": says(b"SSH-2.0-OpenSSH_9.2\r\n"),
        "many_series": page(many_series(15 * MIB)),
        "comments": page(CORE + filler * (15 * MIB // len(filler))),
        "giant_label": page(CORE + b'vllm:cache_config_info{x="' + b"a" * (8 * MIB) + b'"} 1\n'),
        "many_labels": page(CORE + f"vllm:cache_config_info{{{labels}}} 1\n".encode()),
        "escapes": page(CORE + b'vllm:cache_config_info{x="' + rb"\\\"\n" * 400_000 + b'"} 1\n'),
        "unclosed": page(CORE + b"vllm:cache_config_info{" * 200_000),
        "numbers": page(numbers()),
        "bytes": page(CORE + b"vllm:\xff\xfe\x00{\x00} 1\n" * 10_000),
        "twice": page(CORE + CORE.replace(b" 5\n", b" 9\n")),
    }


def good(number: int) -> Handler:
    """A node that works: its counters grow with each page."""
    asked = 0

    async def handler(writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        body = CORE.replace(b" 50\n", b" %d\n" % (50 + 10 * asked + number))
        writer.write(http(body.replace(b" 5\n", b" %d\n" % (5 + asked)), "Content-Type: text/plain"))
        await writer.drain()

    return handler


async def _answer(handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        await reader.readuntil(b"\r\n\r\n")
        await handler(writer)
        writer.close()
        await writer.wait_closed()


async def main(good_nodes: int) -> None:
    """Serve every kind and `good_nodes` good nodes until standard input closes."""
    loop = asyncio.get_running_loop()
    handlers = kinds() | {f"good-{i}": good(i) for i in range(good_nodes)}
    ports: dict[str, int] = {}
    tasks: set[asyncio.Task[None]] = set()
    for name, handler in handlers.items():

        def accept(r: asyncio.StreamReader, w: asyncio.StreamWriter, h: Handler = handler) -> None:
            tasks.add(task := loop.create_task(_answer(h, r, w)))
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=MIB)
        ports[name] = server.sockets[0].getsockname()[1]
    print(json.dumps(ports), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
