"""Our own client and the library's say the same of the same bytes, hostile ones included."""

from __future__ import annotations

import asyncio
import gzip
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address

import aiohttp
import pytest

from control.fetch import FetchedPage, FetchFailed, PageCaps, Wire, fetch_page, open_session
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


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Outcome = tuple[bytes, int, str | None] | Reason


async def outcome(http: aiohttp.ClientSession, wire: Wire | None, url: str) -> Outcome:
    try:
        page = await fetch_page(http, url, clock=SystemClock(), deadline_s=PATIENCE_S, caps=CAPS, wire=wire)
    except FetchFailed as failure:
        return failure.reason
    kind = page.content_type  # what is no text is shown another way
    return page.body, page.status, kind if kind is None or kind.isascii() else "?"


def chunk(piece: bytes) -> bytes:
    return b"%x\r\n" % len(piece) + piece + b"\r\n"


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


def of_one_server(handler: Handler, ask: Callable[[aiohttp.ClientSession, str], Awaitable[None]]) -> None:
    """Serve with `handler` and run `ask` with a session and the address."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()

    async def run() -> None:
        listening = await asyncio.start_server(handle, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/metrics"
        async with listening, open_session() as http:
            await ask(http, url)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await finished()

    asyncio.run(run())


def test_a_head_without_end_and_chunks_of_nothing_but_sizes_are_stopped():
    sent: list[int] = []
    begun = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    starts = [b"HTTP/1.1 200 OK\r\n", begun, begun]
    repeated = [b"X-More: " + b"y" * 1000 + b"\r\n", b"1;" + b"x" * 1000 + b"\r\nv\r\n"]
    repeated += [chunk(b"#aaaa\n") * 100]

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kind = len(sent)
        sent.append(0)
        writer.write(starts[kind])
        while True:  # until the client goes
            writer.write(repeated[kind])
            await writer.drain()
            sent[kind] += len(repeated[kind])

    async def ask(http: aiohttp.ClientSession, url: str) -> None:
        wire = Wire()
        for reason in (Reason.UNREACHABLE, Reason.TOO_LARGE, Reason.TOO_LARGE):
            assert await outcome(http, wire, url) is reason

    of_one_server(handler, ask)
    assert max(sent) < 64 * 1024 * 1024  # what fits into the sockets' buffers on the way


def test_trailers_are_bounded_by_themselves_however_large_the_page_before_them():
    body = b"#" * (2 * 1024 * 1024 - 1) + b"\n"
    trailers = [b"X-Sum: 1\r\n", b"X: " + b"y" * 1024 * 1024 + b"\r\n", b"X: y\r\n" * 100_000]

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(body))
        writer.write(b"0\r\n" + trailers.pop(0) + b"\r\n")
        await writer.drain()

    async def ask(http: aiohttp.ClientSession, url: str) -> None:
        ask_page = partial(fetch_page, http, url, clock=SystemClock(), deadline_s=PATIENCE_S, wire=Wire())
        assert len((await ask_page()).body) == len(body)
        while trailers:
            with pytest.raises(FetchFailed, match="65536 bytes around the page"):
                await ask_page()

    of_one_server(handler, ask)


def test_a_page_in_tiny_chunks_reaches_its_reader_as_few_pieces():
    chunks = 10_000  # an object and a turn of the loop for each would be a hundred times the page

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(chunk(b"#aaaa\n") * chunks + b"0\r\n\r\n")
        await writer.drain()

    async def ask(_: aiohttp.ClientSession, url: str) -> None:
        port, request = int(url.split(":")[2].split("/")[0]), b"GET / HTTP/1.1\r\n\r\n"
        async with await Wire().get(IPv4Address("127.0.0.1"), port, request) as answer:
            pieces = [piece async for piece in answer.pieces()]
        assert b"".join(pieces) == b"#aaaa\n" * chunks
        assert len(pieces) < 100

    of_one_server(handler, ask)


def test_what_follows_an_answer_makes_it_none():
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nvllm:a 1\nvllm:b 2\n")
        await writer.drain()
        await reader.read()

    async def ask(http: aiohttp.ClientSession, url: str) -> None:
        assert await outcome(http, Wire(), url) is Reason.UNREACHABLE

    of_one_server(handler, ask)


def test_a_slow_page_gives_its_connection_back_and_no_more_are_open_than_allowed():
    opened: list[asyncio.StreamWriter] = []
    is_slow = True

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        if is_slow:
            await reader.read()  # until the client goes
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")
            await writer.drain()
            await reader.read()

    async def ask(http: aiohttp.ClientSession, url: str) -> None:
        nonlocal is_slow
        wire, clock = Wire(connections=2), SystemClock()

        def page(deadline_s: float) -> asyncio.Task[FetchedPage]:
            asking = fetch_page(http, url, clock=clock, deadline_s=deadline_s, wire=wire)
            return asyncio.create_task(asking)

        holding = [page(PATIENCE_S) for _ in range(2)]
        async with asyncio.timeout(PATIENCE_S):
            while len(opened) < 2:
                await asyncio.sleep(0.01)
        failures = await asyncio.gather(*(page(0.2) for _ in range(4)), return_exceptions=True)
        assert [f.reason for f in failures if isinstance(f, FetchFailed)] == [Reason.TIMEOUT] * 4
        assert len(opened) == 2
        for task in holding:
            task.cancel()
        await asyncio.wait(holding)
        is_slow = False
        pages = await asyncio.gather(*(page(PATIENCE_S) for _ in range(6)))
        assert [each.body for each in pages] == [b"x"] * 6

    of_one_server(handler, ask)
