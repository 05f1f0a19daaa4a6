"""What a node sends is read as a well-kept client reads it, however it is cut into packets.

The oracle is aiohttp on the same bytes: status, content type and body, or that the exchange failed.
"""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from admission.settings import Settings
from admission.upstream import KEEP_ALIVE_S, Exchange, NodeFailed, Upstream, target_of
from admission.wire import MAX_HEAD_BYTES, MAX_UNREAD_BYTES
from fleet.readings import Reason

OK = b"HTTP/1.1 200 OK\r\n"
JSON = b"Content-Type: application/json\r\n"
SSE = b"Content-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
ORACLE_S = aiohttp.ClientTimeout(total=5)
CLOSE = b""  # sent as a packet: the node closes

#: Answers, each then closed or not. Every one is read by both clients, in many different packets.
ANSWERS = {
    "length": OK + JSON + b"Content-Length: 11\r\n\r\n" + b'{"a": "bc"}',
    "empty": OK + b"Content-Length: 0\r\n\r\n",
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "chunked": OK + SSE + b"7\r\ndata: 1\r\n2\r\n\n\n\r\n0\r\n\r\n",
    "chunk extension": OK + SSE + b"4;x=y\r\nabcd\r\n0\r\n\r\n",
    "trailer": OK + SSE + b"4\r\nabcd\r\n0\r\nX-Sum: 1\r\n\r\n",
    "upper-case hex": OK + SSE + b"A\r\n0123456789\r\n00\r\n\r\n",
    "continue first": b"HTTP/1.1 100 Continue\r\n\r\n" + OK + JSON + b"Content-Length: 2\r\n\r\n{}",
    "client error": b"HTTP/1.1 422 Unprocessable\r\n" + JSON + b"Content-Length: 2\r\n\r\n{}",
    "server error": b"HTTP/1.1 503 Busy\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\nbusy",
    "asks to close": OK + JSON + b"Connection: close\r\nContent-Length: 2\r\n\r\n{}",
    "old version": b"HTTP/1.0 200 OK\r\n" + JSON + b"Content-Length: 2\r\n\r\n{}",
    "no type": OK + b"Content-Length: 2\r\n\r\n{}",
    "bare newlines in the body": OK + JSON + b"Content-Length: 4\r\n\r\n\r\n\r\n",
}
CLOSED = {
    "until the end": OK + JSON + b"\r\n" + b'{"no": "length"}',
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "short": OK + JSON + b"Content-Length: 50\r\n\r\n{}",
    "cut chunk": OK + SSE + b"20\r\nabcd",
    "no last chunk": OK + SSE + b"4\r\nabcd\r\n",
    "not http": b"SSH-2.0-OpenSSH_9.2\r\n",
    "bad chunk size": OK + SSE + b"zz\r\nabcd\r\n0\r\n\r\n",
    "length and chunked": OK + b"Content-Length: 3\r\n" + SSE + b"4\r\nabcd\r\n0\r\n\r\n",
    "two lengths": OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
    "bad status": b"HTTP/1.1 abc OK\r\nContent-Length: 0\r\n\r\n",
}


@dataclass
class Node:
    """A scripted node: answers request number n with `script(n)`, in packets; keeps what it was sent."""

    script: Callable[[int], list[bytes]]
    port: int = 0
    requests: int = 0
    connections: int = 0
    left: int = 0  # connections whose client went away
    got: bytes = b""


@asynccontextmanager
async def serving(node: Node) -> AsyncGenerator[Node]:
    writers = set[asyncio.StreamWriter]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        node.connections += 1
        writers.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                node.got = head + await reader.readexactly(int(length or 0))
                node.requests += 1
                for packet in node.script(node.requests - 1):
                    if packet == CLOSE:
                        return
                    writer.write(packet)
                    await writer.drain()
                    await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError):
            node.left += 1
        finally:
            writer.close()
            writers.discard(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    node.port = server.sockets[0].getsockname()[1]
    try:
        yield node
    finally:
        server.close()
        for writer in list(writers):
            writer.transport.abort()
        await server.wait_closed()
        await until(lambda: not writers)


async def until(probe: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not probe():
            await asyncio.sleep(0.005)


Seen = tuple[int, str, bytes] | None  # status, type and body; None: it failed


async def as_ours(upstream: Upstream, url: str) -> Seen:
    try:
        exchange = await upstream.post(url, b"{}", "r1")
        try:
            return exchange.status, exchange.content_type, await exchange.body(10**6)
        finally:
            exchange.close()
    except NodeFailed:
        return None


async def as_the_oracle(session: aiohttp.ClientSession, url: str) -> Seen:
    try:
        async with session.post(url, data=b"{}") as answer:
            kind = answer.headers.get("Content-Type", "application/json")
            return answer.status, kind, await answer.read()
    except (aiohttp.ClientError, OSError, TimeoutError):  # some cuts of a bad chunk it waits for for ever
        return None


def packets(answer: bytes, rng: random.Random) -> list[bytes]:
    """Cut an answer at random places: whole, in a few pieces, or byte by byte."""
    if not answer:
        return []
    pieces = rng.choice([0, 1, 3, len(answer)])
    cuts = sorted({rng.randrange(1, len(answer)) for _ in range(pieces)}) if len(answer) > 1 else []
    return [answer[a:b] for a, b in zip([0, *cuts], [*cuts, len(answer)], strict=True)]


async def both(answer: bytes, *, closes: bool, seed: int) -> tuple[set[Seen], set[Seen]]:
    rng = random.Random(seed)
    node = Node(lambda _: packets(answer, rng) + ([CLOSE] if closes else []))
    ours, oracle = set[Seen](), set[Seen]()
    async with serving(node), Upstream(settings()) as upstream:
        url = f"http://127.0.0.1:{node.port}/v1/chat/completions"
        async with aiohttp.ClientSession(auto_decompress=False, timeout=ORACLE_S) as session:
            for _ in range(8):
                ours.add(await as_ours(upstream, url))
                oracle.add(await as_the_oracle(session, url))
    return ours, oracle


def settings(*, first_byte_s: float = 60.0, idle_s: float = 60.0) -> Settings:
    return Settings(
        name="gw", state_dir=Path("unused"), first_byte_timeout_s=first_byte_s, idle_timeout_s=idle_s
    )


@pytest.mark.parametrize("name", ANSWERS)
def test_a_whole_answer_is_read_as_the_oracle_reads_it(name: str) -> None:
    ours, oracle = asyncio.run(both(ANSWERS[name], closes=False, seed=1))
    assert ours == oracle
    assert None not in ours
    assert len(ours) == 1  # however it was cut


@pytest.mark.parametrize("name", CLOSED)
def test_an_answer_that_ends_with_its_connection_too(name: str) -> None:
    ours, oracle = asyncio.run(both(CLOSED[name], closes=True, seed=2))
    assert len(ours) == 1
    if name == "until the end":
        assert ours == oracle != {None}
    else:  # where the oracle is lenient ours may fail; it takes no broken answer for a whole one
        assert ours == {None}


def run(story: Callable[[Node, Upstream, str], Awaitable[None]], node: Node, **changes: float) -> None:
    async def play() -> None:
        async with serving(node), Upstream(settings(**changes)) as upstream:
            await story(node, upstream, f"http://127.0.0.1:{node.port}/v1/completions")

    asyncio.run(play())


async def whole(upstream: Upstream, url: str) -> bytes:
    exchange = await upstream.post(url, b'{"a":1}', "req-7")
    try:
        return await exchange.body(10**6)
    finally:
        exchange.close()


def answered(_: int) -> list[bytes]:
    return [ANSWERS["length"]]


def test_the_request_says_what_the_engine_needs() -> None:
    async def story(node: Node, upstream: Upstream, url: str) -> None:
        await whole(upstream, url)
        head, _, body = node.got.partition(b"\r\n\r\n")
        assert head.startswith(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % node.port)
        assert b"\r\nX-Request-Id: req-7\r\n" in head
        assert b"\r\nAccept-Encoding: identity\r\n" in head
        assert body == b'{"a":1}'

    run(story, Node(answered))


def test_connections_are_used_again_and_one_each_at_a_time() -> None:
    async def story(node: Node, upstream: Upstream, url: str) -> None:
        for _ in range(20):
            await whole(upstream, url)
        assert node.connections == 1
        await asyncio.gather(*(whole(upstream, url) for _ in range(5)))
        assert node.connections <= 5
        assert node.requests == 25

    run(story, Node(answered))


@pytest.mark.parametrize("name", ["asks to close", "old version"])
def test_a_connection_the_node_means_to_close_is_not_used_again(name: str) -> None:
    async def story(node: Node, upstream: Upstream, url: str) -> None:
        for _ in range(3):
            await whole(upstream, url)
        assert node.connections == 3

    run(story, Node(lambda _: [ANSWERS[name]]))


def test_a_node_that_closes_after_each_answer_loses_no_request() -> None:
    """It does not say that it closes, and its end is there before our loop had a look at it."""
    rounds = 20
    closed = [threading.Event() for _ in range(rounds)]
    got: list[bytes] = []

    def serve(listening: socket.socket) -> None:
        for one in closed:
            connection, _ = listening.accept()
            with connection:
                got.append(connection.recv(65_536))
                connection.sendall(ANSWERS["length"])
            one.set()

    async def play(port: int) -> None:
        async with Upstream(settings()) as upstream:
            for one in closed:
                assert await whole(upstream, f"http://127.0.0.1:{port}/") == b'{"a": "bc"}'
                one.wait(60)  # the loop stands still meanwhile

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        try:
            asyncio.run(play(listening.getsockname()[1]))
        finally:
            listening.shutdown(socket.SHUT_RDWR)  # wakes it where it still waits
            thread.join(60)
    assert len(got) == rounds


@pytest.mark.parametrize("extra", [b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"garbage", b"\r\nx"])
def test_bytes_after_an_answer_cost_the_connection_and_reach_no_other_request(extra: bytes) -> None:
    async def story(node: Node, upstream: Upstream, url: str) -> None:
        for _ in range(4):
            assert await whole(upstream, url) == b'{"a": "bc"}'
            await asyncio.sleep(0.05)  # they may come late
        assert node.connections == 4

    run(story, Node(lambda _: [ANSWERS["length"] + extra]))


def test_an_answer_before_its_request_was_taken_costs_the_connection() -> None:
    async def story() -> None:
        connections = 0
        release = asyncio.Event()

        async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            await reader.readuntil(b"\r\n\r\n")
            writer.write(ANSWERS["client error"])
            await release.wait()
            writer.close()

        server = await asyncio.start_server(hasty, "127.0.0.1", 0, limit=1_024)
        async with Upstream(settings()) as upstream:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/chat/completions"
            for number in (1, 2):  # more than two sockets hold: the rest waits with us
                exchange = await upstream.post(url, b"x" * (32 << 20), "r1")
                assert (exchange.status, await exchange.body(100)) == (422, b"{}")
                exchange.close()
                assert connections == number
            release.set()
        server.close()
        await server.wait_closed()

    asyncio.run(story())


def test_an_exchange_closed_early_is_cut_and_the_node_notices() -> None:
    async def story(node: Node, upstream: Upstream, url: str) -> None:
        exchange = await upstream.post(url, b"{}", "r")
        assert exchange.is_stream
        assert await exchange.read()
        exchange.close()
        exchange.close()  # twice is once
        with pytest.raises(NodeFailed):
            await exchange.body(10)
        await until(lambda: node.left == 1)

    run(story, Node(lambda _: [OK + SSE, b"4\r\nabcd\r\n"]))


def test_a_node_that_says_nothing_and_one_that_falls_silent_are_given_up() -> None:
    async def mute(node: Node, upstream: Upstream, url: str) -> None:
        with pytest.raises(NodeFailed) as caught:
            await upstream.post(url, b"{}", "r")
        assert caught.value.is_timeout
        await until(lambda: node.left == 1)

    run(mute, Node(lambda _: []), first_byte_s=0.2)

    async def silent(node: Node, upstream: Upstream, url: str) -> None:
        exchange = await upstream.post(url, b"{}", "r")
        with pytest.raises(NodeFailed) as caught:
            await exchange.body(10**6)
        assert caught.value.is_timeout
        exchange.close()
        await until(lambda: node.left == 1)

    run(silent, Node(lambda _: [OK + SSE, b"4\r\nabcd\r\n"]), idle_s=0.2)


def test_a_slow_reader_holds_the_node_back_and_loses_nothing() -> None:
    size = 40 * MAX_UNREAD_BYTES
    sent: list[int] = []

    def script(_: int) -> list[bytes]:
        sent.append(size)
        return [OK + JSON + b"Content-Length: %d\r\n\r\n" % size, *[b"x" * 65_536] * (size // 65_536)]

    async def story(_node: Node, upstream: Upstream, url: str) -> None:
        exchange = await upstream.post(url, b"{}", "r")
        await asyncio.sleep(0.3)
        held = len(await exchange.read())
        assert held <= MAX_UNREAD_BYTES + 1_000_000  # one read of the transport more at most
        assert held + len(await exchange.body(size)) == size
        exchange.close()

    run(story, Node(script))


def test_a_head_without_end_and_a_body_over_its_limit_are_refused() -> None:
    async def story(_node: Node, upstream: Upstream, url: str) -> None:
        with pytest.raises(NodeFailed) as caught:
            await upstream.post(url, b"{}", "r")
        assert caught.value.reason is Reason.TOO_LARGE

    run(story, Node(lambda _: [OK, *[b"X-Pad: %s\r\n" % (b"y" * 1_000)] * (MAX_HEAD_BYTES // 1_000 + 2)]))

    async def page(_node: Node, upstream: Upstream, url: str) -> None:
        with pytest.raises(NodeFailed) as caught:
            await upstream.page(url, deadline_s=60, limit_bytes=10)
        assert caught.value.reason is Reason.TOO_LARGE
        assert (await upstream.page(url, deadline_s=60, limit_bytes=11)).body == b'{"a": "bc"}'

    run(page, Node(answered))


BODY_BEGUN = OK + SSE + b"4\r\nabcd\r\n"


@pytest.mark.parametrize(
    ("begin", "more", "end"),
    [
        (b"0\r\nX: ", b"y" * 1_000, b"\r\n\r\n"),
        (b"0\r\n", b"X-Pad: %s\r\n" % (b"y" * 991), b"\r\n"),
        (b"1;", b"y" * 1_000, b"\r\nv\r\n0\r\n\r\n"),
    ],
    ids=["a trailer without end", "trailers without end", "a chunk extension without end"],
)
def test_what_stands_around_a_body_is_bounded_as_its_head_is(begin: bytes, more: bytes, end: bytes) -> None:
    counts = [10, 4 * MAX_HEAD_BYTES // 1_000]

    def script(number: int) -> list[bytes]:
        return [BODY_BEGUN + begin, *[more] * counts[number], end]

    async def story(_node: Node, upstream: Upstream, url: str) -> None:
        assert (await whole(upstream, url)).startswith(b"abcd")
        with pytest.raises(NodeFailed) as caught:
            await whole(upstream, url)
        assert caught.value.reason is Reason.TOO_LARGE

    run(story, Node(script))


def test_nobody_listening_is_a_refusal_and_a_name_nobody_knows_is_unreachable() -> None:
    async def story(node: Node, upstream: Upstream, url: str) -> None:
        server = await asyncio.start_server(lambda _r, _w: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        for place, reason in (
            (f"127.0.0.1:{port}", Reason.REFUSED),
            ("no.such.invalid:80", Reason.UNREACHABLE),
        ):
            with pytest.raises(NodeFailed) as caught:
                await upstream.post(f"http://{place}/v1/completions", b"{}", "r")
            assert caught.value.reason is reason

    run(story, Node(answered))


@pytest.mark.parametrize(
    "url",
    [
        "http://node\r\nX: y/", "http://node:99999/", "http://node/a b", "ftp://node/", "http://u:p@node/",
        "//x", "http://[::1/",
    ],
)  # fmt: skip
def test_an_address_that_cannot_go_on_a_request_line_goes_nowhere(url: str) -> None:
    with pytest.raises(NodeFailed):
        target_of(url)


def test_idle_connections_are_closed_before_the_engine_would() -> None:
    async def story(node: Node, upstream: Upstream, url: str) -> None:
        await whole(upstream, url)
        await until(lambda: node.left == 1)
        assert KEEP_ALIVE_S < 5.0  # vLLM's

    run(story, Node(answered))


def test_an_exchange_tells_its_status_and_type() -> None:
    async def story(_node: Node, upstream: Upstream, url: str) -> None:
        exchange: Exchange = await upstream.post(url, b"{}", "r")
        assert (exchange.status, exchange.content_type) == (503, "text/plain")
        assert not exchange.is_stream
        exchange.close()

    run(story, Node(lambda _: [ANSWERS["server error"]]))
