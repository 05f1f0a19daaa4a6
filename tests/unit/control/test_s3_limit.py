"""A service that keeps dripping bytes is given up after a time in all, not between two bytes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from io import BytesIO

import pytest

from control.s3_bucket import Bucket, Limit
from control.s3_signature import Key
from fleet.errors import Unavailable

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)


@contextmanager
def dripping(head: bytes) -> Generator[str]:
    """A server that answers `head` and then a byte ten times a second until the other side is gone."""
    listener = socket.create_server(("127.0.0.1", 0))
    is_over = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(head)
            while not is_over.wait(0.1):
                try:
                    connection.sendall(b"x")
                except OSError:
                    return

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        is_over.set()
        thread.join(60)
        listener.close()


def bucket(endpoint: str) -> Bucket:
    return Bucket(endpoint, "finance", Key("AK", "secret", "eu-central-1"), patience_s=1.0)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n",  # a body that never ends
        b"HTTP/1.1 200 OK\r\nX-Slow: ",  # a header that never ends
        b"HTTP/1.1 200 ",
    ],
)
def test_a_dripping_answer_is_given_up(head: bytes) -> None:
    with dripping(head) as endpoint, pytest.raises(Unavailable, match="no whole answer within 1 s"):
        bucket(endpoint).get("a.csv", NOW)


def test_a_put_to_a_dripping_service_is_given_up() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n"
    with dripping(head) as endpoint, pytest.raises(Unavailable, match="no whole answer"):
        bucket(endpoint).put("a.csv", BytesIO(b"abc"), 3, "0" * 64, "text/csv", NOW)


def test_a_limit_that_is_over_takes_no_connection() -> None:
    with Limit(0.01) as limit:
        limit._timer.join(60)  # it fires by itself
        with socket.socket() as late, pytest.raises(TimeoutError):
            limit.holds(late)
