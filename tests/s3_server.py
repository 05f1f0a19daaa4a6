"""A small strict S3 service over real sockets: checks signatures and payload hashes, keeps objects whole.

Its check of Signature Version 4 is written apart from ours, from the raw request. Trouble can be ordered:
refusals before anything is stored, connections cut after the object was stored. Prevents: a signer tested
against itself.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_PROOF = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<access>[^/,]+)/(?P<day>\d{8})/(?P<region>[^/]+)/s3/aws4_request,\s*"
    r"SignedHeaders=(?P<signed>[a-z0-9;-]+),\s*Signature=(?P<signature>[0-9a-f]{64})"
)
_MUST_SIGN = {"host", "x-amz-content-sha256", "x-amz-date"}


@dataclass
class S3:
    """A running service and what it holds."""

    url: str
    access: str
    secret: str
    region: str
    buckets: set[str]
    objects: dict[str, bytes] = field(default_factory=dict)  # "bucket/key"
    asked: list[str] = field(default_factory=list)  # "PUT bucket/key", refused ones too
    refuse: int = 0  # so many PUTs get 503 SlowDown
    cut: int = 0  # after so many PUTs the object is stored and the connection cut
    lock: threading.Lock = field(default_factory=threading.Lock)

    def takes(self, name: str) -> bool:
        """Count one off the ordered trouble `name`; say whether there was any."""
        with self.lock:
            left: int = getattr(self, name)
            setattr(self, name, max(0, left - 1))
            return left > 0


def _signature(service: S3, day: str, region: str, stamp: str, request: str) -> str:
    key = b"AWS4" + service.secret.encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{day}/{region}/s3/aws4_request\n"
    return hmac.new(
        key, (text + hashlib.sha256(request.encode()).hexdigest()).encode(), hashlib.sha256
    ).hexdigest()


def _refusal(service: S3, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, str] | None:
    """Return the code and S3's name of what is wrong with a request, or None."""
    found = _PROOF.fullmatch(handler.headers.get("Authorization", ""))
    if found is None:
        return 403, "AccessDenied"
    said = handler.headers.get("x-amz-content-sha256", "")
    names = found["signed"].split(";")
    if found["access"] != service.access or found["region"] != service.region:
        return 403, "InvalidAccessKeyId"
    if not set(names) >= _MUST_SIGN or names != sorted(names):
        return 403, "AccessDenied"
    lines = [f"{name}:{' '.join((handler.headers.get(name) or '').split())}" for name in names]
    request = "\n".join((handler.command, handler.path, "", *lines, "", found["signed"], said))
    stamp = handler.headers.get("x-amz-date", "")
    if not stamp.startswith(found["day"]) or not hmac.compare_digest(
        _signature(service, found["day"], found["region"], stamp, request), found["signature"]
    ):
        return 403, "SignatureDoesNotMatch"
    if hashlib.sha256(body).hexdigest() != said:
        return 400, "XAmzContentSHA256Mismatch"
    if handler.path.split("/")[1] not in service.buckets:
        return 404, "NoSuchBucket"
    return None


class _Handler(BaseHTTPRequestHandler):
    service: S3

    protocol_version = "HTTP/1.1"
    timeout = 60

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, code: int, body: bytes = b"", name: str = "") -> None:
        if name:
            body = f"<?xml version='1.0'?><Error><Code>{name}</Code><Message>m</Message></Error>".encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def _asked(self) -> bytes | None:
        self.service.asked.append(f"{self.command} {self.path[1:]}")
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) != length:
            return None
        wrong = _refusal(self.service, self, body)
        if wrong is not None:
            self._answer(wrong[0], name=wrong[1])
            return None
        return body

    def do_PUT(self) -> None:
        body = self._asked()
        if body is None:
            return
        if self.service.takes("refuse"):
            self._answer(503, name="SlowDown")
            return
        self.service.objects[self.path[1:]] = body
        if self.service.takes("cut"):
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._answer(200)

    def do_GET(self) -> None:
        if self._asked() is None:
            return
        found = self.service.objects.get(self.path[1:])
        if found is None:
            self._answer(404, name="NoSuchKey")
        else:
            self._answer(200, found)


@contextmanager
def s3_server(
    *, secret: str, access: str = "AKIDEXAMPLE", region: str = "eu-central-1", bucket: str = "finance"
) -> Generator[S3]:
    """Run the service on a free port of loopback until the block ends."""
    service = S3("", access, secret, region, {bucket})
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"service": service}))
    server.daemon_threads = False
    server.block_on_close = True
    service.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        thread.join(60)
        server.server_close()
