"""Five calls at once against a quota that holds one.

Seen in public at BerriAI/litellm#18730: a budget read before and charged after let five parallel calls
spend 663 of 100. And at #39309: a refused request still burnt quota.
"""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.gateway_process import FakeEngine, GatewayProcess, assignment, chat, eventually

# 100 tokens at once, one a second after that; a call books 64 for its answer and a few for its prompt.
EDGE = {
    "tokens_per_minute": 60,
    "burst_tokens": 100,
    "max_in_flight_tokens": 10_000,
    "max_concurrent_requests": 100,
}
CALLS = 5


@pytest.fixture
def engine() -> Generator[FakeEngine]:
    with FakeEngine("node-1").serving() as engine:
        yield engine


@pytest.fixture
def gateway(tmp_path: Path, engine: FakeEngine) -> Generator[GatewayProcess]:
    with GatewayProcess(tmp_path / "gw").running() as gateway:
        roomy = assignment([engine])["shares"]
        gateway.push_and_open([engine], shares={**roomy, "acme": EDGE})
        yield gateway


def call(gateway: GatewayProcess, text: str) -> httpx.Response:
    with gateway.client("acme") as client:
        return client.post("/v1/chat/completions", json=chat(text))


def test_one_is_served_the_others_are_refused_and_burn_nothing(
    gateway: GatewayProcess, engine: FakeEngine
) -> None:
    with ThreadPoolExecutor(CALLS) as crowd:
        answers = list(crowd.map(lambda _: call(gateway, "tokens=3 pause=2"), range(CALLS)))
    assert sorted(answer.status_code for answer in answers) == [200] + [429] * (CALLS - 1)
    assert len(engine.served) == 1, "a refused call reached the engine"
    refused = [answer for answer in answers if answer.status_code == 429]
    assert {answer.json()["error"]["code"] for answer in refused} == {"rejected_quota_rate"}
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in refused)
    # The one call used 10 tokens (7 + 3). Were the refused ones charged, nothing would be left of 100.
    eventually(lambda: gateway.status()["in_flight_tokens"] == 0)
    assert call(gateway, "tokens=1").status_code == 200
