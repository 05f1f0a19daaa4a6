"""Fetching pages over real sockets from servers that misbehave, and from places that must not be asked."""

from __future__ import annotations

import asyncio
import gzip
import socket
import tracemalloc
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

import pytest
from aiohttp import web

from control.fetch import (
    FetchedPage,
    FetchFailed,
    PageCaps,
    Wire,
    _ahead_s,
    fetch_page,
    is_allowed,
    open_session,
    shown_url,
    split_url,
)
from fleet.clock import SystemClock
from fleet.readings import Reason
from tests import in_process

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
PAGE = b"vllm:num_requests_running 1\n"


@pytest.fixture(params=["wire", "library"], autouse=True)
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything here holds over connections of our own and over the library's."""
    monkeypatch.setattr(f"{__name__}.opened_wire", Wire if request.param == "wire" else lambda: None)


def opened_wire() -> Wire | None:
    raise AssertionError("set for each test")


async def fetch(url: str, *, deadline_s: float = 60.0, caps: PageCaps | None = None) -> FetchedPage:
    clock, wire = SystemClock(), opened_wire()
    async with open_session() as session:
        return await fetch_page(session, url, clock=clock, deadline_s=deadline_s, caps=caps, wire=wire)


def outcome(
    handler: Handler, *, path: str = "/metrics", deadline_s: float = 60.0, caps: PageCaps | None = None
) -> FetchedPage | Reason:
    """Serve one raw handler on an ephemeral port and fetch from it."""

    async def run() -> FetchedPage | Reason:
        server = await asyncio.start_server(closing(handler), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            return await fetch(f"http://127.0.0.1:{port}{path}", deadline_s=deadline_s, caps=caps)
        except FetchFailed as failure:
            return failure.reason
        finally:
            server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await asyncio.sleep(0)  # the transports close in the loop's next turn

    return asyncio.run(run())


def closing(handler: Handler) -> Handler:
    async def closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        finally:
            writer.transport.abort()

    return closed


def answers(raw: bytes) -> Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    return handler


def http(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    head = "\r\n".join((f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers))
    return head.encode() + b"\r\n\r\n" + body


def test_a_page_comes_whole_with_its_type_and_its_times():
    got = outcome(answers(http(PAGE, "Content-Type: text/plain; version=0.0.4")))
    assert isinstance(got, FetchedPage)
    assert (got.body, got.status, got.content_type) == (PAGE, 200, "text/plain; version=0.0.4")
    assert got.duration_s >= 0


def test_the_host_header_names_the_host_and_no_packing_is_asked_for():
    asked: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(http(PAGE))
        writer.close()
        await writer.wait_closed()

    async def run() -> int:
        async with await asyncio.start_server(handler, "127.0.0.1", 0) as server:
            port: int = server.sockets[0].getsockname()[1]
            await fetch(f"http://localhost:{port}")
            return port

    port = asyncio.run(run())
    (request,) = asked
    assert request.startswith(b"GET /metrics HTTP/1.1\r\n")
    assert f"Host: localhost:{port}\r\n".encode() in request
    assert b"Accept-Encoding: identity\r\n" in request


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (http(b"", status="500 Internal Server Error"), Reason.HTTP_ERROR),
        (
            http(b"", "Location: http://169.254.169.254/latest/meta-data", status="302 Found"),
            Reason.HTTP_ERROR,
        ),
        (http(b"", status="204 No Content"), Reason.HTTP_ERROR),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nvllm:a 1\n", Reason.UNREACHABLE),  # cut short
        (b"", Reason.UNREACHABLE),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Reason.UNREACHABLE),
        (http(PAGE, "Content-Encoding: br"), Reason.NOT_METRICS),
        (http(b"no gzip at all", "Content-Encoding: gzip"), Reason.NOT_METRICS),
        (http(gzip.compress(PAGE)[:-9], "Content-Encoding: gzip"), Reason.UNREACHABLE),
        # half a page that unpacks well is the worst: its second half must not be lost unseen
        (http(gzip.compress(PAGE) + gzip.compress(PAGE), "Content-Encoding: gzip"), Reason.NOT_METRICS),
    ],
)
def test_answers_that_are_no_page(raw: bytes, reason: Reason):
    assert outcome(answers(raw)) is reason


def test_a_packed_page_is_unpacked():
    got = outcome(answers(http(gzip.compress(PAGE), "Content-Encoding: gzip")))
    assert isinstance(got, FetchedPage)
    assert got.body == PAGE


def test_a_bomb_is_stopped_by_ratio_and_by_size():
    bomb = gzip.compress(b"\0" * 256 * 1024 * 1024, compresslevel=9)  # 256 MB in 255 KB
    served = answers(http(bomb, "Content-Encoding: gzip"))
    tracemalloc.start()
    assert outcome(served) is Reason.TOO_LARGE
    assert outcome(served, caps=PageCaps(ratio=10**9)) is Reason.TOO_LARGE
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 48 * 1024 * 1024  # the cap of 16 MiB, once as pieces and once as a whole


def test_a_body_over_the_cap_is_not_read_to_its_end():
    sent = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        try:
            while sent < 200 * 1024 * 1024:
                writer.write(b"x" * 65536)
                await writer.drain()
                sent += 65536
        except ConnectionError:
            pass

    assert outcome(handler, caps=PageCaps(wire_bytes=1024 * 1024)) is Reason.TOO_LARGE
    assert sent < 100 * 1024 * 1024


def test_a_drip_ends_at_the_deadline():
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        try:
            for _ in range(10_000):
                writer.write(b"v")
                await writer.drain()
                await asyncio.sleep(0.02)
        except ConnectionError:
            pass

    assert outcome(handler, deadline_s=0.3) is Reason.TIMEOUT


def test_a_closed_port_is_refused():
    with socket.socket() as holder:  # bound and not listening: nobody else gets the port
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        with pytest.raises(FetchFailed) as failure:
            asyncio.run(fetch(f"http://127.0.0.1:{port}/metrics"))
    assert failure.value.reason is Reason.REFUSED
    assert failure.value.retryable


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://2852039166/",  # the same address as one number
        "http://0xa9fea9fe/",
        "http://0251.0376.0251.0376/",
        "http://[::ffff:169.254.169.254]/",
        "http://[fe80::1]/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://[2002:a9fe:a9fe::]/",
        "http://[fd00:ec2::254]/",
        "http://100.100.100.200/",
        "http://0.0.0.0:8000/",
        "http://224.0.0.1/",
        "http://255.255.255.255/",
        "file:///etc/passwd",
        "gopher://127.0.0.1/",
        "//127.0.0.1/",
        "http://user:secret@127.0.0.1/",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:0/",
        "http:///metrics",
        "http://127.0.0.1/\r\nX: y",
        "http://127.0.0.1\\@169.254.169.254/",
        "http://[::1/",
    ],
)
def test_addresses_that_must_not_be_asked(url: str):
    with pytest.raises(FetchFailed) as failure:
        asyncio.run(fetch(url))
    assert failure.value.reason in {Reason.BLOCKED, Reason.UNREACHABLE}
    assert failure.value.reason is Reason.BLOCKED or "has no address" in failure.value.detail
    assert "secret" not in str(failure.value)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.1.2.3", "192.168.0.9", "fd12::1", "8.8.8.8"])
def test_addresses_where_fleets_live_are_allowed(address: str):
    assert is_allowed(ip_address(address))


def test_the_connection_goes_to_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch):
    # A name that answers with a public address first and with the metadata service after: asked once.
    asked: list[str] = []

    async def run() -> FetchedPage:
        app = web.Application()

        async def serve(_: web.Request) -> web.Response:
            return web.Response(body=PAGE)

        app.router.add_get("/metrics", serve)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]

        async def flip(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
            asked.append(host)
            address = "127.0.0.1" if len(asked) == 1 else "169.254.169.254"
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", flip)
        try:
            return await fetch(f"http://node.example:{port}/metrics")
        finally:
            await in_process.close(runner)

    assert asyncio.run(run()).body == PAGE
    assert asked == ["node.example"]


def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert isinstance(outcome(answers(http(PAGE))), FetchedPage)


def test_an_empty_path_is_the_metrics_page_and_others_stay():
    assert split_url("http://h:8000").path == "/metrics"
    assert split_url("http://h:8000/").path == "/metrics"
    assert split_url("http://h/prometheus/metrics?x=1").path == "/prometheus/metrics"


def test_shown_addresses_have_no_secrets():
    assert shown_url("http://user:secret@h:8000/metrics?token=secret#f") == "http://h:8000/metrics"


@pytest.mark.parametrize(
    ("date_s", "ahead_s"),
    # an exchange from 990 to 1000 s; a date of whole seconds stands for up to a second more
    [(995, 0.0), (990, 0.0), (989, 0.0), (1000, 0.0), (1007, 7.0), (980, -9.0)],
)
def test_a_servers_clock_is_off_by_what_the_exchange_does_not_explain(date_s: float, ahead_s: float):
    assert _ahead_s(date_s, 1_000.0, 10.0) == pytest.approx(ahead_s)


def test_what_broke_an_exchange_is_told_in_one_line_without_the_address():
    async def run() -> FetchFailed:
        server = await asyncio.start_server(
            closing(answers(b"HTTP/9.9 \x1b[31m what?\r\n" * 40)), "127.0.0.1", 0
        )
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(FetchFailed) as failure:
                await fetch(f"http://127.0.0.1:{port}/metrics?key=secret", deadline_s=60.0)
            return failure.value

    failure = asyncio.run(run())
    assert "secret" not in failure.detail
    assert failure.detail.isprintable()
    assert len(failure.detail) < 300
