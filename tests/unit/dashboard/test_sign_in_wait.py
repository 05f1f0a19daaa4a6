"""Somebody who signs in while the database hangs is told so, and the next one at once."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from starlette.requests import Request
from starlette.types import Message

from dashboard import routes
from dashboard.patience import Patience
from fleet.clock import ManualClock


def form(body: bytes) -> Request:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {
        "type": "http", "method": "POST", "scheme": "http", "path": routes.SIGN_IN_PATH,
        "query_string": b"", "headers": [], "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1),
    }  # fmt: skip
    return Request(scope, receive)


def test_a_sign_in_ends_while_the_database_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    thawed, asked = threading.Event(), list[str]()

    def hangs(_of: object, name: str, _password: str) -> str | None:
        asked.append(name)
        assert thawed.wait(60)
        return None

    monkeypatch.setattr(routes, "_token", hangs)
    monkeypatch.setattr(routes, "deps", SimpleNamespace)
    patience = Patience(ManualClock(datetime(2026, 11, 30, tzinfo=UTC)), wait_s=0.05)

    async def two() -> list[tuple[int, bytes]]:
        checker = routes.Checker(patience)
        answers = [await checker.check(form(b"name=ann&password=x")) for _ in range(2)]
        return [(answer.status_code, bytes(answer.body)) for answer in answers]

    try:
        answers = asyncio.run(two())
    finally:
        thawed.set()
    assert [code for code, _ in answers] == [503, 503]
    assert all(b"has not answered within" in body for _, body in answers)
    assert asked == ["ann"]  # the second was told at once
