"""The first lines of a client's request: the target, the version, the coding of its body; what is refused.

Prevents: a request of another protocol, or coded in a way nobody here decodes, served as if it were a plain
one of HTTP/1.1; and a path that a rule in front lets pass read as another one here.
Source: RFC 9112, 2.3, 3 and 6.1; RFC 3986, 7.3; RFC 9110, 7.8, 15.6.2 and 15.6.6.
"""

from __future__ import annotations

from typing import Any, Final

import httptools

from admission.calls import ENDPOINTS
from admission.inbound import HeaderList, whole_answer

Refusal = tuple[int, bytes]
BAD: Refusal = (400, b"this is not a request that can be read")
SLOW: Refusal = (408, b"the request came too slowly")
LEAVING: Refusal = (503, b"the gateway is shutting down")
FAULT: Refusal = (500, b"the gateway failed")
HOSTS: Refusal = (400, b"a request of HTTP/1.1 has one Host header")
CODED: Refusal = (501, b"no transfer coding but chunked is understood")
VERSION: Refusal = (505, b"HTTP/1.1 and HTTP/1.0 are spoken here")
#: Names of headers as they mostly come, and as they are looked for.
_LOWER: Final = {
    form: name.lower()
    for name in (
        b"Host", b"Authorization", b"Content-Type", b"Content-Length", b"Accept", b"Accept-Encoding",
        b"Connection", b"User-Agent", b"Transfer-Encoding", b"Traceparent", b"X-Request-Id",
    )
    for form in (name, name.lower())
}  # fmt: skip
_FRAMING = (b"content-length", b"transfer-encoding")
#: What nearly all ask for, read already.
_PLAIN: Final = {path.encode(): (path, b"") for path in ENDPOINTS}


def lower_name(name: bytes) -> bytes:
    """Return a header's name in lower case."""
    known = _LOWER.get(name)
    return name.lower() if known is None else known


def other_version(version: str, url: bytes, came: bytes) -> Refusal | None:
    """Return the refusal of a request line that is not HTTP/1.1; None: it is HTTP/1.0.

    `came` holds that line. The parser reads those of RTSP and Icecast, too, and does not tell.
    """
    if any(url + name in came for name in (b" RTSP/", b" ICE/")):
        return BAD
    return None if version == "1.0" else VERSION


def is_coded(headers: HeaderList) -> bool:
    """Say whether a body that is chunked last was coded before. Source: RFC 9112, 6.1.

    Where chunked is not last the parser refuses it: its end is not known.
    """
    said = b",".join(value for name, value in headers if name == b"transfer-encoding").lower().split(b",")
    codings = [one.strip() for one in said if one.strip()]
    return len(codings) > 1 and codings[-1] == b"chunked"


def host_fault(headers: HeaderList, version: str) -> Refusal | None:
    """Return the refusal of a head without a Host header, or with several. Source: RFC 9112, 3.2."""
    hosts = sum(1 for name, _ in headers if name == b"host")
    return HOSTS if hosts > 1 or (hosts == 0 and version == "1.1") else None


def bears_body(headers: HeaderList) -> bool:
    """Say whether a body follows a head that the parser took."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and int(value) > 0)
        for name, value in headers
    )


def framing(headers: HeaderList, *, is_last: bool) -> bytes:
    """Return a head that says no more than how the body of a request is framed, and if it is the last."""
    told = [name + b": " + value for name, value in headers if name in _FRAMING]
    if is_last:
        told.append(b"connection: close")
    return b"\r\n".join([b"POST / HTTP/1.1", *told, b"", b""])


def target_of(url: bytes) -> tuple[str, bytes] | None:
    """Return path and query of a request target, as they came; None when it has no path, or a fragment.

    Nothing is decoded or resolved: `/%61dmin` is another path than `/admin` to whoever stands in front.
    """
    known = _PLAIN.get(url)
    if known is not None:
        return known
    path, _, query = url.partition(b"?")
    if b"#" in url:
        return None
    if not path.startswith(b"/"):
        try:
            parsed: Any = httptools.parse_url(url)  # its stubs say bytes where it gives None
        except httptools.HttpParserInvalidURLError:
            return None
        path = b"" if parsed.path is None else parsed.path
        query = b"" if parsed.query is None else parsed.query
    if not path or not path.isascii():
        return None
    return path.decode("ascii"), query


def refusal_bytes(refusal: Refusal) -> bytes:
    """Return an answer of the listener's own."""
    status, reason = refusal
    kind = b"server_error" if status >= 500 else b"invalid_request_error"
    body = b'{"error":{"message":"%s","type":"%s","code":null,"param":null}}' % (reason, kind)
    return whole_answer(status, [b"content-type: application/json\r\n", b"connection: close\r\n"], body)
