"""Fetch one page from an address an operator gave: bounded in time and size, and nowhere it must not go.

Times are seconds on the caller's monotonic clock, sizes bytes. The name is resolved once, every address
it has is checked, and the connection goes to the address that was checked. No redirects, no proxies from
the environment, no cookies. Prevents: a scrape target that reads the cloud's metadata service, a page
that unpacks to gigabytes, and a drip that holds a round open.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

import aiohttp
from yarl import URL

from control.fetch_body import FetchFailed, PageCaps, read_body
from control.fetch_wire import Address, NotConnected, Wire
from control.page_room import Place
from fleet.clock import Clock
from fleet.readings import Reason

DEADLINE_S = 5.0
_READ_BYTES = 64 * 1024
_SHOWN_CHARS = 200
_ADDRESSES_TRIED = 4
_SHOWN_BYTES = 2_000
#: Paths that go on the wire as they are written; others are put in shape first.
_USUAL_PATH = re.compile(r"/[A-Za-z0-9/_.~?=&:@,;-]*")

__all__ = [
    "DEADLINE_S",
    "PLAIN",
    "Ask",
    "FetchFailed",
    "FetchedPage",
    "PageCaps",
    "Wire",
    "fetch_page",
    "is_allowed",
    "open_session",
    "shown_url",
    "split_url",
]

#: Metadata services that do not live on a link-local address.
_METADATA = {ip_address("100.100.100.200"), ip_address("fd00:ec2::254"), ip_address("fd20:ce::254")}
_NAT64 = ip_network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Ask:
    """How to ask, where a plain GET for text does not do.

    With `form` or `content` it is a POST. Answers with one of `statuses` come back, whatever they say;
    `tls` replaces the system's certificates. With `is_answer_wanted` False the body of a 2xx answer is not
    read, and the first 2,000 bytes of another one. Headers may hold secrets: no error repeats them.
    """

    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    form: Mapping[str, str] | None = None
    content: bytes | None = field(default=None, repr=False)
    is_answer_wanted: bool = True
    statuses: frozenset[int] = frozenset({200})
    tls: ssl.SSLContext | None = None
    sink: Callable[[bytes], None] | None = None  # takes the body piece by piece; the page's is empty then


#: A metrics page.
PLAIN = Ask()


@dataclass(frozen=True, slots=True)
class FetchedPage:
    """A complete answer. `started_s` is when the request began, the date of the page."""

    body: bytes
    status: int
    content_type: str | None
    started_s: float
    duration_s: float
    ahead_s: float | None = None  # of the server's clock over ours, beyond what the exchange explains
    retry_after_s: float | None = None  # how long the server asks to be left alone; None: it does not say


class _Answered(NamedTuple):
    """What came back, before it is a page. Times in headers are as the server wrote them."""

    body: bytes
    status: int
    kind: str | None
    date_s: float | None
    retry_after: str | None = None


def open_session(*, connections: int = 100) -> aiohttp.ClientSession:
    """Return a session fit for `fetch_page`. Call it inside the running loop and close it.

    Connections are not kept: vLLM drops idle ones after 5 s, so a kept one is mostly a broken one.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections, force_close=True, use_dns_cache=False),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        auto_decompress=False,
    )


def is_allowed(address: Address) -> bool:
    """True where a metrics page may be fetched from. Loopback and private networks are: fleets live there.

    Link-local (cloud metadata), multicast, unspecified and reserved addresses are not, in any IPv6 dress.
    """
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_allowed(inner)
    if address in _METADATA or address.is_link_local or address.is_multicast or address.is_unspecified:
        return False
    return address.is_loopback or not address.is_reserved


@lru_cache(maxsize=8192)
def split_url(url: str, *, default_path: str = "/metrics") -> SplitResult:
    """Return the parts of an address; an empty path becomes the default. Raises FetchFailed (BLOCKED).

    Only http and https, a host, a port that is a number, no user name, no blanks or control characters.
    """
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise FetchFailed(
            Reason.BLOCKED,
            "the address has characters in it that an address cannot have",
            hint="Write names of other scripts in their xn-- form",
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as problem:
        raise FetchFailed(Reason.BLOCKED, f"not an address: {problem}") from problem
    if parts.scheme not in {"http", "https"}:
        raise FetchFailed(
            Reason.BLOCKED,
            f"scheme {parts.scheme or 'missing'} is not allowed",
            hint="Give an address that begins with http:// or https://",
        )
    if not parts.hostname or port == 0:
        raise FetchFailed(Reason.BLOCKED, "the address names no host, or port 0")
    if "@" in parts.netloc:
        raise FetchFailed(Reason.BLOCKED, "a user name in the address is not allowed")
    path = parts.path if parts.path not in {"", "/"} else default_path
    return parts._replace(path=path, fragment="")


def shown_url(url: str) -> str:
    """Return the address for people and logs: without user name, query and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(unreadable address)"
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


async def fetch_page(
    session: aiohttp.ClientSession,
    url: str,
    *,
    clock: Clock,
    deadline_s: float = DEADLINE_S,
    caps: PageCaps | None = None,
    ask: Ask = PLAIN,
    place: Place | None = None,
    wire: Wire | None = None,
) -> FetchedPage:
    """Return the page at `url`, within `deadline_s` seconds from name to last byte.

    With `place` a large page waits, within its deadline, for room that all pages share. With `wire` a
    plain page is asked for over that instead of `session`: the same answers for a third of the work.

    Raises FetchFailed with the reason: refused, timeout, too_large, http_error (any status that was not
    asked for, redirects included), blocked, unreachable, not_metrics (packed in a way we do not read).
    """
    parts = split_url(url, default_path="/metrics" if ask.content is None else "/")
    started_s = clock.monotonic_s()
    try:
        async with asyncio.timeout(deadline_s):
            addresses = await _addresses(parts)
            if wire is None or ask is not PLAIN or parts.scheme != "http":
                wire = None
            answered = await _get(wire or session, parts, addresses, caps or PageCaps(), ask, place)
    except TimeoutError:
        said = f"no complete answer within {deadline_s:g} s"
        if place is not None and place.is_waiting:
            said += "; at the end it waited for other nodes' large pages to be read"
        raise FetchFailed(Reason.TIMEOUT, said) from None
    body, status, kind, date_s, asked_back = answered
    duration_s = clock.monotonic_s() - started_s
    ahead_s = None if date_s is None else _ahead_s(date_s, clock.now().timestamp(), duration_s)
    wanted_s = retry_after_s(asked_back, clock.now().timestamp())
    return FetchedPage(body, status, kind, started_s, duration_s, ahead_s, wanted_s)


def retry_after_s(said: str | None, now_s: float) -> float | None:
    """Return the seconds a Retry-After header asks for, at least 0: a number or a date. None: neither.

    Source: RFC 9110, section 10.2.3.
    """
    text = "" if said is None else said.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    date_s = _date_s(text or None)
    return None if date_s is None else max(0.0, date_s - now_s)


def _ahead_s(date_s: float, now_s: float, duration_s: float) -> float:
    """Return how far a date (whole seconds) lies outside the exchange it was written in; 0 inside it."""
    if date_s > now_s:
        return date_s - now_s
    return min(0.0, date_s + 1.0 - (now_s - duration_s))


async def _addresses(parts: SplitResult) -> list[Address]:
    """Resolve once. One forbidden address among several condemns the name."""
    host = parts.hostname or ""
    if _is_plain_address(host):
        return [ip_address(host)]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, parts.port or 80, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
        )
    except (OSError, UnicodeError) as problem:
        raise FetchFailed(Reason.UNREACHABLE, f"{host} has no address: {problem}") from problem
    addresses = list(dict.fromkeys(ip_address(str(item[4][0]).partition("%")[0]) for item in found))
    for address in addresses:
        if not is_allowed(address):
            raise FetchFailed(
                Reason.BLOCKED,
                f"{host} is {address}, which is not allowed as a scrape target",
                hint="Link-local, multicast and metadata addresses are never fetched from",
            )
    return addresses[:_ADDRESSES_TRIED]


@lru_cache(maxsize=8192)
def _is_plain_address(host: str) -> bool:
    """True where the host is an address in its usual form, and one that may be asked."""
    try:
        return "%" not in host and is_allowed(ip_address(host))
    except ValueError:
        return False


async def _get(
    client: aiohttp.ClientSession | Wire,
    parts: SplitResult,
    addresses: list[Address],
    caps: PageCaps,
    ask: Ask,
    place: Place | None,
) -> _Answered:
    """Try each address until one takes the connection."""
    failure = FetchFailed(Reason.UNREACHABLE, f"{parts.hostname} has no address")
    for address in addresses:
        try:
            if isinstance(client, Wire):
                return await _get_over(client, parts, address, caps, place)
            return await _get_from(client, parts, address, caps, ask, place)
        except (aiohttp.ClientConnectorError, NotConnected) as problem:
            cause = problem.problem if isinstance(problem, NotConnected) else problem.os_error
            reason = Reason.REFUSED if isinstance(cause, ConnectionRefusedError) else Reason.UNREACHABLE
            failure = FetchFailed(reason, f"{address} port {parts.port or _port(parts)}: {cause}")
        except (aiohttp.ClientError, OSError) as problem:
            raise FetchFailed(Reason.UNREACHABLE, _broke(problem)) from problem
    raise failure


def _broke(problem: aiohttp.ClientError | OSError) -> str:
    """Return how an exchange broke off, without the address (its query may hold a secret), in one line."""
    said = problem.message if isinstance(problem, aiohttp.ClientResponseError) else str(problem)
    line = " ".join("".join(c if c.isprintable() else " " for c in said).split())
    return f"{type(problem).__name__}: {line[:_SHOWN_CHARS]}"


def _port(parts: SplitResult) -> int:
    return 443 if parts.scheme == "https" else 80


async def _get_from(
    session: aiohttp.ClientSession,
    parts: SplitResult,
    address: Address,
    caps: PageCaps,
    ask: Ask,
    place: Place | None,
) -> _Answered:
    host = f"[{address}]" if address.version == 6 else str(address)
    netloc = f"{host}:{parts.port}" if parts.port else host
    plain = {"Host": parts.netloc, "Accept": "text/plain", "Accept-Encoding": "identity"}
    async with session.request(
        "GET" if ask.form is None and ask.content is None else "POST",
        URL(parts._replace(netloc=netloc).geturl()),
        headers={**plain, **ask.headers},
        data=ask.form if ask.content is None else ask.content,
        ssl=ask.tls or True,
        allow_redirects=False,
        auto_decompress=False,
        server_hostname=parts.hostname if parts.scheme == "https" else None,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None, sock_read=None),
    ) as answer:
        if answer.status not in ask.statuses:
            raise _refused(answer.status)
        if ask.sink is not None:
            body = await _pour(answer, caps, ask.sink)
        elif ask.is_answer_wanted:
            pieces = answer.content.iter_chunked(_READ_BYTES)
            body = await read_body(pieces, answer.headers.get("Content-Encoding", ""), caps, place)
        else:
            body = b"" if answer.ok else await answer.content.read(_SHOWN_BYTES)
        said = answer.headers
        return _Answered(
            body,
            answer.status,
            said.get("Content-Type"),
            _date_s(said.get("Date")),
            said.get("Retry-After"),
        )


async def _get_over(
    wire: Wire, parts: SplitResult, address: Address, caps: PageCaps, place: Place | None
) -> _Answered:
    path = parts.path if parts.query == "" else f"{parts.path}?{parts.query}"
    if not _USUAL_PATH.fullmatch(path):
        path = URL(parts.geturl()).raw_path_qs
    request = (
        f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAccept: text/plain\r\n"
        "Accept-Encoding: identity\r\nConnection: close\r\n\r\n"
    )
    async with await wire.get(address, parts.port or 80, request.encode()) as answer:
        if answer.status != 200:
            raise _refused(answer.status)
        said = answer.headers
        body = await read_body(answer.pieces(), said.get("content-encoding", ""), caps, place)
        return _Answered(body, answer.status, said.get("content-type"), _date_s(said.get("date")))


def _refused(status: int) -> FetchFailed:
    return FetchFailed(Reason.HTTP_ERROR, f"answered with status {status}, not 200")


def _date_s(text: str | None) -> float | None:
    """Return the time a Date header names (whole Unix seconds); None where there is none to be read."""
    try:
        return None if text is None else parsedate_to_datetime(text[:64]).timestamp()
    except (ValueError, OverflowError):
        return None


async def _pour(answer: aiohttp.ClientResponse, caps: PageCaps, sink: Callable[[bytes], None]) -> bytes:
    """Hand the body on as it comes. Nothing is unpacked: it was asked for plain."""
    encoding = answer.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in {"", "identity"}:
        raise FetchFailed(Reason.NOT_METRICS, f"packed as {encoding[:40]!r}, which was not asked for")
    wire = 0
    async for piece in answer.content.iter_any():
        wire += len(piece)
        if wire > caps.wire_bytes:
            raise FetchFailed(Reason.TOO_LARGE, f"more than {caps.wire_bytes} bytes on the wire")
        sink(piece)
    return b""
