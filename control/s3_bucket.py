"""A bucket of an S3-compatible service: put an object whole, read a small one. Blocking; for threads.

Durations are seconds. One connection a call, to an address that was checked; no redirects, no proxies.
The path names the bucket, which every such service knows. What a service answers is shown only as its
error code. Prevents: a secret in a log, half an object (one PUT is one object, and its hash is signed), a
service that drips bytes holding a thread for ever, and a call to the cloud's metadata service.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import ssl
import threading
from dataclasses import dataclass
from datetime import datetime
from io import BytesIO
from ipaddress import ip_address
from typing import IO, Any
from urllib.parse import urlsplit

from control.fetch import is_allowed
from control.s3_signature import EMPTY_SHA256, Key, path_of, signed_headers
from fleet.errors import InvalidInput, Unavailable

TIMEOUT_S = 60.0
#: Who takes an object more slowly than this is given up: 8 Mbit/s.
LEAST_BYTES_PER_S = 1_000_000
#: The most one PUT takes. Source: Amazon S3 User Guide, "Uploading objects".
MAX_OBJECT_BYTES = 5 * 1024**3
_MAX_ANSWER_BYTES = 64 * 1024
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_CODE = re.compile(rb"<Code>([A-Za-z0-9]{1,60})</Code>")


class Limit:
    """Ends a connection after so many seconds in all, however often a byte comes."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.is_over = False
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> Limit:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._timer.join()

    def holds(self, connected: socket.socket) -> None:
        """Say which connection is ended. Raises TimeoutError if time is over already."""
        with self._lock:
            self._socket = connected
            if self.is_over:
                raise TimeoutError(0, f"no connection within {self.seconds:.0f} s")

    def _end(self) -> None:
        with self._lock:
            self.is_over = True
            if self._socket is not None:
                with contextlib.suppress(OSError):  # it is closed already
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Where objects go and as whom."""

    endpoint: str  # https://host[:port]
    name: str
    key: Key
    patience_s: float = TIMEOUT_S  # for a call without content; more for what must be sent

    def put(self, name: str, body: IO[bytes], size: int, sha256: str, kind: str, now: datetime) -> None:
        """Store the `size` bytes of `body` as object `name`. Raises Unavailable with the service's code."""
        if size > MAX_OBJECT_BYTES:
            raise InvalidInput(
                f"{name} has {size} bytes, more than the {MAX_OBJECT_BYTES} of one PUT",
                hint="Take Parquet, which is a fifth of CSV's size",
                field="files",
            )
        headers = {"content-length": str(size), "content-type": kind}
        code, answer = self._call("PUT", name, body, headers, sha256, now)
        if code != 200:
            raise _refused(f"{name} was not stored in {self.name}", code, answer)

    def get(self, name: str, now: datetime) -> bytes | None:
        """Return a small object, or None if there is none. Raises Unavailable."""
        code, answer = self._call("GET", name, BytesIO(), {}, EMPTY_SHA256, now)
        if code == 404 and b"NoSuchBucket" not in answer:
            return None
        if code != 200:
            raise _refused(f"{name} of {self.name} was not read", code, answer)
        return answer

    def _call(
        self, method: str, name: str, body: IO[bytes], headers: dict[str, str], sha256: str, now: datetime
    ) -> tuple[int, bytes]:
        parts = urlsplit(self.endpoint)
        path = path_of(f"{parts.path.rstrip('/')}/{self.name}/{name}")
        signed = signed_headers(self.key, method, parts.netloc, path, headers, sha256, now)
        size = int(headers.get("content-length", 0))
        limit = Limit(self.patience_s + size / LEAST_BYTES_PER_S)
        try:
            with limit:
                connection = _connection(parts.scheme, parts.hostname or "", parts.port, limit)
                try:
                    connection.request(method, path, body=body, headers=signed)
                    answer = connection.getresponse()
                    status, said = answer.status, answer.read(_MAX_ANSWER_BYTES)
                finally:
                    connection.close()
            if limit.is_over:  # what was read may be a part
                raise TimeoutError(0, f"no whole answer within {limit.seconds:.0f} s")
            return status, said
        except (OSError, UnicodeError, http.client.HTTPException) as exc:  # UnicodeError: no host's name
            why = exc.strerror if isinstance(exc, OSError) and exc.strerror else type(exc).__name__
            if limit.is_over:
                why = f"no whole answer within {limit.seconds:.0f} s"
            raise Unavailable(
                f"{parts.netloc} cannot be reached: {why}", hint="It is tried again by itself"
            ) from exc


def checked_endpoint(url: str) -> str:
    """Return `url` if it can be a service's address. Raises InvalidInput."""
    hint = "Write it as https://host[:port]"
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise InvalidInput("the endpoint is not a URL", hint=hint, field="endpoint") from None
    is_plain = parts.scheme in ("http", "https") and len(url) <= 300 and url.isascii() and url.isprintable()
    labels = (parts.hostname or "").removesuffix(".").split(".")
    is_host = all(0 < len(label) < 64 for label in labels)  # RFC 1035, 2.3.4
    if not (is_plain and is_host) or parts.query or parts.fragment or "@" in parts.netloc:
        raise InvalidInput(
            "the endpoint is not an address of http or https without user name and query",
            hint=hint,
            field="endpoint",
        )
    return url.rstrip("/")


def checked_bucket(name: str) -> str:
    """Return `name` if it can be a bucket's. Source: Amazon S3 User Guide, "Bucket naming rules"."""
    if not _BUCKET.fullmatch(name) or ".." in name:
        raise InvalidInput(
            f"{name[:80]!r} cannot be a bucket",
            hint="3 to 63 of a-z, 0-9, '-', '.', with a letter or digit at both ends",
            field="bucket",
        )
    return name


def _refused(what: str, code: int, answer: bytes) -> Unavailable:
    said = _CODE.search(answer)
    return Unavailable(
        f"{what}: HTTP {code}" + (f" {said[1].decode()}" if said else ""),
        hint="See the service's message of that code; it is tried again by itself",
    )


def _connection(scheme: str, host: str, port: int | None, limit: Limit) -> http.client.HTTPConnection:
    """Return an open connection to the first address of `host`, all of which may be called.

    `limit` ends it, TLS included, whatever the other side still drips.
    """
    port = port or (443 if scheme == "https" else 80)
    found: list[Any] = [each[4] for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for address in found:
        if not is_allowed(ip_address(address[0].partition("%")[0])):
            raise OSError(0, f"{host} has an address that is never called")
    connected = socket.create_connection(found[0][:2], timeout=limit.seconds)
    try:
        if scheme == "https":
            connected = ssl.create_default_context().wrap_socket(
                connected, server_hostname=host, do_handshake_on_connect=False
            )
        limit.holds(connected)
        if isinstance(connected, ssl.SSLSocket):
            connected.do_handshake()
    except OSError:
        connected.close()
        raise
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    connection.sock = connected
    return connection
