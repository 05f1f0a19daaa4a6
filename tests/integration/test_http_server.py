"""The listening side of our own against uvicorn's: the same bytes, the same answers; bad ones end the same.

Both serve the same handler in this process. `whole_messages` reads a conversation with the parser both are
built on and says what can be answered; where the two are meant to differ is said at each test.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httptools
import pytest
import uvloop

from admission.clients import Listener
from admission.inbound import BodyTooLarge, ClientLeft
from admission.settings import Settings
from fleet.clock import ManualClock
from tests import uvicorn_listener

LIMIT_BYTES = 20_000
LAST = b"GET /last HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n"
Answers = list[tuple[int, bytes]]


async def handler(request: Any) -> None:
    """Say what was read; /early does not wait for the body, /stream answers in parts."""
    if request.path == "/early":
        request.keeps_alive = False
        request.answer(401, [(b"content-type", b"text/plain"), (b"connection", b"close")], b"early")
        return
    try:
        body = await request.body(LIMIT_BYTES)
    except ClientLeft:
        return
    except BodyTooLarge:
        request.keeps_alive = False
        request.answer(413, [(b"connection", b"close")], b"too large")
        return
    if request.path == "/stream":
        request.start(200, [(b"content-type", b"text/plain")])
        for part in (b"one", b"", b"two" * 1_000):
            await request.write(part)
        request.end(b"three")
        return
    seen = [name.decode("latin-1") for name, _ in request.headers if name.startswith(b"x-")]
    told = [request.method, request.path, request.query.decode("latin-1"), seen, body.decode("latin-1")]
    request.answer(200, [(b"content-type", b"application/json")], json.dumps(told).encode())


@contextlib.asynccontextmanager
async def ours(folder: Path, **limits: Any) -> AsyncGenerator[int]:
    clock = ManualClock(datetime(2026, 11, 1, tzinfo=UTC))
    listener = Listener(Settings(name="gw", state_dir=folder, **limits), clock, handler)
    server = await asyncio.get_running_loop().create_server(listener.connection, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await listener.close(0.0)
        while listener.connections:
            await asyncio.sleep(0.01)


class Reader:
    """Reads answers off a connection until it ends."""

    def __init__(self) -> None:
        self.answers: Answers = []
        self._parser = httptools.HttpResponseParser(self)
        self._body = b""

    def on_message_begin(self) -> None:
        self._body = b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if (status := self._parser.get_status_code()) >= 200:
            self.answers.append((status, self._body))

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)


async def talk(port: int, *parts: bytes) -> Answers:
    """Send the parts, each by itself, and return all answers until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found = Reader()
    try:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                writer.write(part)
                await writer.drain()
                if len(parts) > 1:
                    await asyncio.sleep(0)
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(60):
                while data := await reader.read(65_536):
                    found.feed(data)
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return found.answers


class Model:
    """What the parser makes of bytes: how many messages are whole, whether they end in an error."""

    def __init__(self, data: bytes) -> None:
        self.whole, self.is_between, self.is_broken, self.is_last = 0, True, False, False
        # Of another version than 1.0 and 1.1, with a fragment, or without one Host header, which uvicorn
        # passes over.
        self.is_foreign = False
        self._hosts = 0
        self._parser = httptools.HttpRequestParser(self)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.is_last = True
        except httptools.HttpParserError:
            self.is_broken = True

    def on_message_begin(self) -> None:
        self.is_between, self._hosts = False, 0

    def on_url(self, url: bytes) -> None:
        self.is_foreign = self.is_foreign or b"#" in url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._hosts += name.lower() == b"host"

    def on_headers_complete(self) -> None:
        version = self._parser.get_http_version()
        is_hosted = self._hosts == 1 or (self._hosts == 0 and version == "1.0")
        self.is_foreign = self.is_foreign or version not in ("1.0", "1.1") or not is_hosted
        is_kept = self._parser.should_keep_alive() and version >= "1.1"
        self.is_last = self.is_last or not is_kept

    def on_message_complete(self) -> None:
        self.is_between = True
        self.whole += 1


def run(story: Callable[[], Awaitable[None]]) -> None:
    uvloop.run(story())  # pyright: ignore[reportArgumentType]


def post(path: bytes, body: bytes, *headers: bytes) -> bytes:
    lines = b"".join(header + b"\r\n" for header in headers)
    length = b"Content-Length: %d\r\n" % len(body)
    return b"POST %s HTTP/1.1\r\nHost: g\r\n%s%s\r\n%s" % (path, lines, length, body)


def chunked(*parts: bytes, ending: bytes = b"0\r\n\r\n") -> bytes:
    head = b"POST /a HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + ending


#: Each is followed by a last request, or closes itself.
SOUND = {
    "get": b"GET /a?b=1&c HTTP/1.1\r\nHost: g\r\n\r\n",
    "encoded path": b"GET /a%20b/%C3%A9 HTTP/1.1\r\nHost: g\r\n\r\n",
    "absolute target": b"GET http://h:1/a?b HTTP/1.1\r\nHost: g\r\n\r\n",
    "blank lines before": b"\r\n\r\nGET /a HTTP/1.1\r\nHost: g\r\n\r\n",
    "options": b"OPTIONS /a HTTP/1.1\r\nHost: g\r\n\r\n",
    "post": post(b"/a", b"abc"),
    "empty post": post(b"/a", b""),
    "get with a body": post(b"/a", b"abc").replace(b"POST", b"GET"),
    "headers": post(b"/a", b"abc", b"X-One: 1", b"x-two:2", b"X-Empty:"),
    "doubled headers": post(b"/a", b"abc", b"X-One: 1", b"X-One: 2"),
    "high bytes in a header": post(b"/a", b"abc", b"X-One: \xe9"),
    "chunked": chunked(b"abc", b"d" * 3_000),
    "chunk extensions": chunked(ending=b"3;a=b\r\nabc\r\n0;c\r\n\r\n"),
    "upper-case chunk size": chunked(ending=b"A\r\n0123456789\r\n0\r\n\r\n"),
    "large": post(b"/a", b"x" * (LIMIT_BYTES - 1)),
    "stream": post(b"/stream", b"abc"),
    "two": post(b"/a", b"abc") + post(b"/b", b"de"),
    "ten": post(b"/a", b"abc") * 10,
    "stream, then another": post(b"/stream", b"abc") + post(b"/b", b"de"),
    "closes": post(b"/a", b"abc", b"Connection: close"),
    "old": b"GET /a HTTP/1.0\r\n\r\n",
    "old with a body": b"POST /a HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc",
    "kept open explicitly": post(b"/a", b"abc", b"Connection: keep-alive"),
    "expects": post(b"/a", b"abc", b"Expect: 100-continue"),
    "early": post(b"/early", b"abc"),
    "too large": post(b"/a", b"x" * (LIMIT_BYTES + 1)),
    "too large, in chunks": chunked(*[b"y" * 4_000] * 6),
}


def with_last(message: bytes) -> bytes:
    return message if Model(message).is_last else message + LAST


def test_sound_requests_get_the_same_answers(tmp_path: Path) -> None:
    async def story() -> None:
        async with ours(tmp_path) as port, uvicorn_listener.serving(handler) as other:
            for name, message in SOUND.items():
                said = with_last(message)
                mine, theirs = await talk(port, said), await talk(other, said)
                assert mine == theirs, name
                assert mine, name

    run(story)


@pytest.mark.parametrize("name", ["post", "chunked", "chunk extensions", "headers", "two", "expects"])
def test_a_request_may_come_in_any_pieces(tmp_path: Path, name: str) -> None:
    said = with_last(SOUND[name])[:400] if len(SOUND[name]) > 400 else with_last(SOUND[name])
    if len(SOUND[name]) > 400:
        said = with_last(chunked(b"abc", b"d" * 30))

    async def story() -> None:
        async with ours(tmp_path) as port:
            whole = await talk(port, said)
            assert len(whole) == Model(said).whole
            for at in range(1, len(said)):
                assert await talk(port, said[:at], said[at:]) == whole, at
            assert await talk(port, *(said[at : at + 1] for at in range(len(said)))) == whole

    run(story)


BAD = {
    "not HTTP": b"\x16\x03\x01\x02\x00\x01" + b"x" * 50,
    "another version": b"GET /a HTTP/3.0\r\nHost: g\r\n\r\n",
    "unknown method": b"BREW /a HTTP/1.1\r\nHost: g\r\n\r\n",
    "a tunnel": b"CONNECT h:1 HTTP/1.1\r\nHost: g\r\n\r\n",
    "blank in the target": b"GET /a b HTTP/1.1\r\nHost: g\r\n\r\n",
    "length and chunked": b"POST /a HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n"
    b"\r\n0\r\n\r\n",
    "two lengths": b"POST /a HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "length with a sign": b"POST /a HTTP/1.1\r\nContent-Length: +3\r\n\r\nabc",
    "chunked not last": b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "blank before the colon": b"POST /a HTTP/1.1\r\nContent-Length : 3\r\n\r\nabc",
    "folded header": b"GET /a HTTP/1.1\r\nX-A: b\r\n c\r\n\r\n",
    "bare LF": b"GET /a HTTP/1.1\nHost: g\n\n",
    "NUL in a header": b"GET /a HTTP/1.1\r\nX-A: \x00\r\n\r\n",
    "bad chunk size": chunked(ending=b"zz\r\nabc\r\n"),
    "huge chunk size": chunked(ending=b"ffffffffffffffffff\r\nabc\r\n"),
}


def test_bad_requests_are_refused_by_both_and_nothing_behind_them_is_answered(tmp_path: Path) -> None:
    async def story() -> None:
        async with ours(tmp_path) as port, uvicorn_listener.serving(handler) as other:
            for name, message in BAD.items():
                mine, theirs = await talk(port, message + LAST), await talk(other, message + LAST)
                assert [status for status, _ in mine] == [400], name
                assert [status for status, _ in theirs] == [400], name

    run(story)


def test_answers_that_are_due_come_before_a_refusal(tmp_path: Path) -> None:
    # uvicorn writes its 400 at once, in front of answers to the requests before: ours keep their order
    async def story() -> None:
        async with ours(tmp_path) as port:
            for message in BAD.values():
                answers = await talk(port, SOUND["two"] + SOUND["stream"] + message + LAST)
                assert [status for status, _ in answers] == [200, 200, 200, 400]
            # what follows a request that said that it is the last is nobody's
            answers = await talk(port, SOUND["closes"] + BAD["not HTTP"] + LAST)
            assert [status for status, _ in answers] == [200]

    run(story)


#: Heads of another version, protocol or coding (RFC 9112, 2.3 and 6.1), or with a fragment, which no target
#: has (RFC 9112, 3.2), and the status each gets.
FOREIGN = {
    b"GET /a?b#c HTTP/1.1\r\nHost: g\r\n\r\n": 400,
    b"POST /a HTTP/2.0\r\nHost: g\r\nContent-Length: 3\r\n\r\nabc": 505,
    b"POST /a HTTP/2.0\r\nHost: g\r\nConnection: keep-alive\r\nContent-Length: 3\r\n\r\nabc": 505,
    b"GET /a HTTP/0.9\r\n\r\n": 505,
    b"GET /a\r\n\r\n": 505,
    b"POST /a RTSP/1.0\r\nHost: g\r\nContent-Length: 3\r\n\r\nabc": 400,
    b"GET /a RTSP/1.0\r\nHost: g\r\nConnection: keep-alive\r\n\r\n": 400,
    b"SOURCE /a ICE/1.0\r\nHost: g\r\n\r\n": 400,
    b"POST /a HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n": 501,
    b"POST /a HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: x\r\ntransfer-encoding: Chunked\r\n\r\n"
    b"0\r\n\r\n": 501,
    b"POST /a HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: gzip\r\n\r\nabc": 400,  # where it ends is not known
    b"POST /a HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n": 400,
}


def test_other_versions_protocols_and_codings_are_refused_by_their_names_and_end_the_connection(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with ours(tmp_path) as port:
            for message, status in FOREIGN.items():
                head = message.index(b"\r\n\r\n")
                for at in (*range(1, head, 5), len(message)):  # whole, and its head in two
                    answers = await talk(port, SOUND["post"] + message[:at], message[at:] + LAST)
                    assert [answer[0] for answer in answers] == [200, status], (message, at)
            # what only reads like them is served
            plain = (
                b"POST /a HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: , CHUNKED\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
            )
            old = post(b"/a", b"GET /b RTSP/1.0").replace(b"HTTP/1.1", b"HTTP/1.0")
            for message in (plain + LAST, old):
                assert {status for status, _ in await talk(port, message)} == {200}

    run(story)


def test_a_request_names_one_host(tmp_path: Path) -> None:
    # RFC 9112, 3.2: 400 for none in HTTP/1.1 and for several in any version
    none, one, two = b"", b"Host: g\r\n", b"Host: g\r\nHOST: g\r\n"
    statuses = {(b"1.1", none): 400, (b"1.1", one): 200, (b"1.1", two): 400}
    statuses |= {(b"1.0", none): 200, (b"1.0", one): 200, (b"1.0", two): 400}

    async def story() -> None:
        async with ours(tmp_path) as port:
            for (version, host), status in statuses.items():
                said = b"POST /a HTTP/%s\r\n%sContent-Length: 3\r\n\r\nabc" % (version, host)
                answers = await talk(port, said + LAST)
                after = [200] if (version, status) == (b"1.1", 200) else []
                assert [answer[0] for answer in answers] == [status, *after], said

    run(story)


#: What the JDK's HttpClient sends with each request over a plain connection.
H2C = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAEAAEAAAAIAAAAB")


def test_the_body_behind_an_offer_of_another_protocol_is_read(tmp_path: Path) -> None:
    # Seen in public at vllm-project/vllm#57203 and Kludex/uvicorn#2722: every such request lost its body.
    plain = {"length": post(b"/a", b"abc"), "chunked": chunked(b"abc", b"d" * 30)}
    plain["two"] = post(b"/a", b"abc") + post(b"/b", b"de")
    lines = b"".join(line + b"\r\n" for line in H2C)

    async def story() -> None:
        async with ours(tmp_path) as port:
            for name, message in plain.items():
                wanted = await talk(port, message + LAST)
                said = message.replace(b"Host: g\r\n", b"Host: g\r\n" + lines) + LAST
                assert await talk(port, said) == wanted, name
                for at in range(1, len(said), 3):
                    assert await talk(port, said[:at], said[at:]) == wanted, (name, at)
                assert await talk(port, *(said[at : at + 1] for at in range(len(said)))) == wanted, name
            closes = post(b"/a", b"abc", b"Connection: close", *H2C)
            assert [status for status, _ in await talk(port, closes)] == [200]
            many = post(b"/a", b"abc", *H2C) * 300 + LAST  # in one packet
            assert [status for status, _ in await talk(port, many)] == [200] * 301

    run(story)


def test_what_follows_an_offer_is_parsed_as_strictly(tmp_path: Path) -> None:
    offer = post(b"/a", b"abc", *H2C)

    async def story() -> None:
        async with ours(tmp_path) as port:
            for name, message in BAD.items():
                answers = await talk(port, offer + message + LAST)
                assert [status for status, _ in answers] == [200, 400], name
            broken = chunked(b"abc", ending=b"zz\r\n").replace(
                b"Host: g", b"Host: g\r\n" + b"\r\n".join(H2C)
            )
            assert [status for status, _ in await talk(port, broken + LAST)] == [400]
            # Without a body, what follows is of the other protocol: nothing of it is answered.
            bare = b"GET /a HTTP/1.1\r\nHost: g\r\n" + b"\r\n".join(H2C) + b"\r\n\r\n"
            assert [status for status, _ in await talk(port, bare + LAST)] == [200]

    run(story)


def mutated(rng: random.Random) -> bytes:
    message = bytearray(rng.choice([*SOUND.values()]))[:2_000]
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(min(len(message), 250))
        match rng.randrange(4):
            case 0:
                message[at] = rng.choice(b"\r\n :;,0aA\x00\xff\t%?#/")
            case 1:
                del message[at : at + rng.randint(1, 4)]
            case 2:
                message[at:at] = rng.choice(
                    [b"\r\n", b" ", b"Content-Length: 1\r\n", b"0\r\n\r\n", b"\n", b","]
                )
            case _:
                other = rng.choice([*SOUND.values(), *BAD.values()])
                message[at:at] = other[: rng.randint(1, 60)]
    return bytes(message)


def test_mutated_requests_end_as_the_parser_says_and_as_behind_uvicorn(tmp_path: Path) -> None:
    rng = random.Random(20261129)

    async def story() -> None:
        counts = {"sound": 0, "broken": 0}
        async with ours(tmp_path) as port, uvicorn_listener.serving(handler) as other:
            while min(counts.values()) < 60 or sum(counts.values()) < 300:
                said = with_last(mutated(rng))
                model = Model(said)
                if b"/early" in said or len(said) > LIMIT_BYTES or (model.is_last and model.is_broken):
                    continue  # whether what follows is looked at is a question of time
                if not model.is_broken and not (model.is_between and model.is_last):
                    continue  # both would wait for more
                mine, theirs = await talk(port, said), await talk(other, said)
                if model.is_foreign:
                    assert [status for status, _ in mine][-1:] in ([400], [505]), said
                elif model.is_broken:
                    counts["broken"] += 1
                    # one 400, at the end; a target that cannot be read ends it earlier
                    assert [status for status, _ in mine][-1:] == [400], said
                    assert len(mine) <= model.whole + 1, said
                    assert 400 in [status for status, _ in theirs], said
                elif 400 in [status for status, _ in theirs]:
                    assert [status for status, _ in mine][-1:] == [400], said
                else:
                    counts["sound"] += 1
                    assert mine == theirs, said

    run(story)


def test_an_answer_to_head_has_a_length_and_no_body(tmp_path: Path) -> None:
    said = b"HEAD /a HTTP/1.1\r\nHost: g\r\n\r\nHEAD /stream HTTP/1.0\r\n\r\n"

    async def story() -> None:
        async with ours(tmp_path) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            first, second, rest = (await reader.read()).split(b"\r\n\r\n")
            length = len(json.dumps(["HEAD", "/a", "", [], ""]))
            assert b"\r\ncontent-length: %d" % length in first
            assert second.startswith(b"HTTP/1.1 200 ")
            assert rest == b""
            writer.close()
            await writer.wait_closed()

    run(story)


def test_trailers_are_no_headers(tmp_path: Path) -> None:
    async def story() -> None:
        async with ours(tmp_path) as port:
            [answer, _] = await talk(port, chunked(b"abc", ending=b"0\r\nX-Tenant: evil\r\n\r\n") + LAST)
            assert json.loads(answer[1]) == ["POST", "/a", "", [], "abc"]
            # and they are bounded: the head's bound holds for what stands around a body
            endless = chunked(ending=b"0\r\n" + b"X-A: b\r\n" * 5_000)
            assert [status for status, _ in await talk(port, endless)] == [431]

    run(story)


def test_an_old_client_gets_no_chunks(tmp_path: Path) -> None:
    # uvicorn sends chunks to HTTP/1.0, which knows none
    async def story() -> None:
        async with ours(tmp_path) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            assert b"chunked" not in head.lower()
            assert body == b"one" + b"two" * 1_000 + b"three"
            writer.close()
            await writer.wait_closed()

    run(story)


def test_a_client_that_still_sends_reads_its_refusal(tmp_path: Path) -> None:
    # 5 MB are on their way when the answer comes: cut at once, it would be lost in a reset
    async def story() -> None:
        async with ours(tmp_path) as port:
            for _ in range(5):
                said = b"POST /early HTTP/1.1\r\nHost: g\r\nContent-Length: 5000000\r\n\r\n"
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(said)
                found = Reader()
                for _ in range(50):
                    writer.write(b"x" * 100_000)
                    await asyncio.sleep(0)
                while data := await reader.read(65_536):
                    found.feed(data)
                assert found.answers == [(401, b"early")]
                writer.transport.abort()

    run(story)


def test_a_refusal_is_read_though_more_requests_are_on_their_way(tmp_path: Path) -> None:
    async def refusing(request: Any) -> None:
        await request.body(LIMIT_BYTES)
        request.keeps_alive = False
        request.answer(400, [], b"no")

    async def story() -> None:
        clock = ManualClock(datetime(2026, 11, 1, tzinfo=UTC))
        listener = Listener(Settings(name="gw", state_dir=tmp_path), clock, refusing)
        server = await asyncio.get_running_loop().create_server(listener.connection, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        parts = [post(b"/a", b"x" * 5_000)] * 20  # it is answered and ended at the first
        seen = [await talk(port, *parts) for _ in range(10)]
        server.close()
        await listener.close(0.0)
        assert seen == [[(400, b"no")]] * 10

    run(story)


def test_requests_sent_ahead_wait_their_turn_unread(tmp_path: Path) -> None:
    running = most = 0

    async def counting(request: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        request.answer(200, [], request.path.encode())

    async def story() -> None:
        clock = ManualClock(datetime(2026, 11, 1, tzinfo=UTC))
        listener = Listener(Settings(name="gw", state_dir=tmp_path), clock, counting)
        server = await asyncio.get_running_loop().create_server(listener.connection, "127.0.0.1", 0)
        said = b"".join(b"GET /%d HTTP/1.1\r\nHost: g\r\n\r\n" % number for number in range(30))
        answers = await talk(server.sockets[0].getsockname()[1], said, LAST)
        assert [body for _, body in answers] == [b"/%d" % number for number in range(30)] + [b"/last"]
        assert most == 1
        server.close()
        await listener.close(0.0)

    run(story)


def test_who_still_sends_when_the_process_ends_is_told_so(tmp_path: Path) -> None:
    async def story() -> None:
        is_read = asyncio.Event()

        async def reading(request: Any) -> None:
            is_read.set()
            await handler(request)

        clock = ManualClock(datetime(2026, 11, 1, tzinfo=UTC))
        listener = Listener(Settings(name="gw", state_dir=tmp_path), clock, reading)
        server = await asyncio.get_running_loop().create_server(listener.connection, "127.0.0.1", 0)
        said = b"POST /a HTTP/1.1\r\nHost: g\r\nContent-Length: 100\r\n\r\nabc"
        talking = asyncio.create_task(talk(server.sockets[0].getsockname()[1], said))
        await asyncio.wait_for(is_read.wait(), 60)
        server.close()
        await listener.close(0.2)
        [(status, body)] = await talking
        assert status == 503
        assert b"shutting down" in body

    run(story)
