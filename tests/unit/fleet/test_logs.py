"""Log lines: one JSON object each, and no secret in any of them."""

from __future__ import annotations

import io
import json
import logging
import time

import pytest

from fleet import logs

CANARY = "canary-9f2c41d0"


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://rhodeck:{CANARY}@db:5432/rhodeck",
        f"postgresql://rhodeck:a@{CANARY}@db/rhodeck",  # an @ that should have been escaped
        f"postgresql://db/rhodeck?user=rhodeck&password={CANARY}&sslmode=require",
        f"postgresql://db/rhodeck?sslpassword={CANARY}",
        f"host=db password={CANARY} user=rhodeck",
        f"host=db password='two words {CANARY}' user=rhodeck",
        f"Authorization: Bearer {CANARY}",
        f"key rk-acme-{CANARY} is revoked",
        f"rk-acme-0123456789://rhodeck:{CANARY}@db/rhodeck",
        f"1+{'x' * 99}://rhodeck:{CANARY}@db/rhodeck",
    ],
)
def test_a_secret_is_cut_out_of_any_text_and_the_rest_stays(text: str) -> None:
    shown = logs.redact(text)
    assert CANARY not in shown
    assert "***" in shown
    for word in ("db", "user=rhodeck", "sslmode=require", "is revoked"):
        assert (word in text) == (word in shown)


@pytest.mark.parametrize(
    "text", ["http://gw-1:8400/v1/models", "the password has 3 characters", "a@b.example"]
)
def test_what_holds_no_secret_is_left_alone(text: str) -> None:
    assert logs.redact(text) == text


def line_of(message: str, **fields: object) -> dict[str, object]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonFormatter("test"))
    logger = logging.Logger("rhodeck.test")
    logger.addHandler(handler)
    logger.info(message, extra=fields)
    (line,) = stream.getvalue().splitlines()
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    "part", ["x", "x-", "rk-", "://", "://x:", ":", "password=", "password='", "bearer "]
)
def test_a_long_text_costs_what_its_length_costs(part: str) -> None:
    """Names and answers of others come into log lines: none may hold up the process that writes them."""

    def cost_s(text: str) -> float:
        begun_s = time.process_time()
        logs.redact(text)
        return time.process_time() - begun_s

    short, long = ((part * length)[:length] for length in (4_000, 64_000))
    least_s = min(cost_s(short) for _ in range(5))
    most_s = 64 * (least_s + 1e-4)  # of 16 times the length; where time squares it is 256 times
    assert min(cost_s(long) for _ in range(3)) < most_s


def test_fields_named_after_secrets_are_never_written() -> None:
    line = line_of("called", admin_token=CANARY, api_key=CANARY, tokens=5, url=f"http://u:{CANARY}@h/")
    assert CANARY not in json.dumps(line)
    assert (line["tokens"], line["message"], line["process"]) == (5, "called", "test")


def test_a_name_cannot_forge_a_second_line() -> None:
    line = line_of("tenant refused", tenant='x\n{"level": "info", "message": "all is well"}')
    assert line["message"] == "tenant refused"
