"""Our own client and the library's say the same of the same bytes, hostile ones included."""

from __future__ import annotations

import asyncio
import gzip
import random
from collections.abc import Iterator
from dataclasses import dataclass

import aiohttp
import pytest

from control.fetch import FetchFailed, PageCaps, Wire, fetch_page, open_session
from fleet.clock import SystemClock
from fleet.readings import Reason

SEEDS = 2
ANSWERS = 100  # a seed
PAGE = b"".join(b'vllm:num_requests_running{engine="%d"} %d\n' % (i, i * i) for i in range(200))
PATIENCE_S = 60.0
EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
CAPS = PageCaps(wire_bytes=64 * 1024, decoded_bytes=256 * 1024)


@dataclass(frozen=True)
class Served:
    """What a server writes and in which pieces; then it closes."""

    raw: bytes
    cuts: tuple[int, ...] = ()

    def pieces(self) -> Iterator[bytes]:
        for start, end in zip((0, *self.cuts), (*self.cuts, len(self.raw)), strict=True):
            yield self.raw[start:end]


class Server:
    """Answers each request with the bytes set last."""

    def __init__(self) -> None:
        self.served = Served(b"")
        self.requests: list[bytes] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            for piece in self.served.pieces():
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            writer.close()
            await writer.wait_closed()
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.transport.abort()


Outcome = tuple[bytes, int, str | None] | Reason


async def outcome(http: aiohttp.ClientSession, wire: Wire | None, url: str) -> Outcome:
    try:
        page = await fetch_page(http, url, clock=SystemClock(), deadline_s=PATIENCE_S, caps=CAPS, wire=wire)
    except FetchFailed as failure:
        return failure.reason
    kind = page.content_type  # what is no text is shown another way
    return page.body, page.status, kind if kind is None or kind.isascii() else "?"


def chunked(body: bytes, rng: random.Random, *, is_sound: bool) -> bytes:
    out, at = b"", 0
    while at < len(body):
        size = rng.randint(1, 4000)
        piece = body[at : at + size]
        extension = rng.choice([b"", b"", b";x=y"])
        out += b"%x" % len(piece) + extension + b"\r\n" + piece + b"\r\n"
        at += size
    # at a broken trailer the library waits for its deadline
    trailers = rng.choice([b"", b"X-Sum: 1\r\nContent-Encoding: gzip\r\n"]) if is_sound else b""
    return out + b"0\r\n" + trailers + b"\r\n"


def an_answer(rng: random.Random) -> Served:
    """A proper answer in one of many forms, and every second time something broken in it.

    Never with bytes after its end: whether those are seen depends on when they come.
    """
    is_sound = rng.random() < 0.5
    body = PAGE[: rng.choice([0, 1, 30, 2000, len(PAGE)])]
    headers = [b"Date: Mon, 02 Mar 2026 00:00:00 GMT", b"Server: uvicorn"]
    headers += rng.choice([[], [b"Content-Type: text/plain; version=0.0.4"], [b"content-type:text/html"]])
    if rng.random() < 0.25:
        body = gzip.compress(body)
        headers.append(b"Content-Encoding: gzip")
    framing = rng.choice(["length", "length", "chunked", "close"])
    if framing == "length":
        headers.append(b"Content-Length: %d" % len(body))
    elif framing == "chunked":
        headers.append(b"Transfer-Encoding: chunked")
        body = chunked(body, rng, is_sound=is_sound)
    if rng.random() < 0.3:
        headers.append(rng.choice([b"Connection: close", b"Connection: keep-alive"]))
    rng.shuffle(headers)
    status = rng.choice([b"200 OK"] * 8 + [b"302 Found", b"404 Not Found", b"503 Busy"])
    before = rng.choice([b""] * 8 + [b"HTTP/1.1 100 Continue\r\n\r\n", EARLY])
    raw = before + b"HTTP/1.1 " + status + b"\r\n" + b"".join(h + b"\r\n" for h in headers) + b"\r\n" + body
    raw = raw if is_sound else broken(raw, rng)
    cuts = min(rng.choice([0, 1, 4, 30]), max(0, len(raw) - 1))
    return Served(raw, tuple(sorted(rng.sample(range(1, max(2, len(raw))), cuts))))


def broken(raw: bytes, rng: random.Random) -> bytes:
    match rng.randrange(5):
        case 0:  # cut
            return raw[: rng.randrange(len(raw))]
        case 1:  # a byte of the body changed, or one after the last
            if b"chunked" in raw:
                return raw
            at = rng.randrange(raw.rindex(b"\r\n\r\n"), len(raw))
            return raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1 :]
        case 2:  # a byte of the head changed, but no length
            at = rng.randrange(raw.index(b"\r\n\r\n"))
            is_length = raw[raw.rindex(b"\n", 0, at) if b"\n" in raw[:at] else 0 :].startswith(
                b"\nContent-Length"
            )
            return raw if is_length else raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1 :]
        case 3:  # a line more in the head
            more = [b"Transfer-Encoding: chunked", b"X" * 9000, b": x", b"A b: c"]
            more += [b"Content-Length: 7"] if b"Content-Length" in raw or b"chunked" in raw else []
            return raw.replace(b"\r\n", b"\r\n" + rng.choice(more) + b"\r\n", 1)
        case _:  # a line twice
            at = raw.index(b"\r\n") + 2
            line = raw[at : raw.index(b"\r\n", at) + 2]
            return raw[:at] + line + raw[at:]


def is_ours_stricter(ours: Outcome, served: Served) -> bool:
    """Control characters and bare line feeds in a head: the library takes them, our parser does not."""
    last = served.raw[max(0, served.raw.rfind(b"HTTP/1.1 ")) :]  # behind an interim answer
    head = last.partition(b"\r\n\r\n")[0].replace(b"\r\n", b"").replace(b"\t", b"")
    return ours is Reason.UNREACHABLE and any(byte < 32 or byte == 127 for byte in head)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_both_clients_say_the_same_of_any_answer(seed: int):
    async def run() -> None:
        rng, server, wire = random.Random(seed), Server(), Wire()
        listening = await asyncio.start_server(server.handle, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/metrics"
        pages = 0
        async with listening, open_session() as http:
            for _ in range(ANSWERS):
                server.served = an_answer(rng)
                ours, theirs = await outcome(http, wire, url), await outcome(http, None, url)
                assert ours == theirs or is_ours_stricter(ours, server.served), server.served
                pages += not isinstance(ours, Reason)
            await finished()
        assert pages > ANSWERS / 3  # it is not all refusals

    asyncio.run(run())


async def finished() -> None:
    """Wait for the server's side of the last exchanges."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.wait_for(asyncio.gather(*others, return_exceptions=True), PATIENCE_S)
    await asyncio.sleep(0)
