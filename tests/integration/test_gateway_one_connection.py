"""Requests of one connection share a task and what was looked up before, and nothing of each other.

A real gateway process; what became of each request is read from the usage records and seen by the engine.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway_process import KEYS, FakeEngine, GatewayProcess, assignment, chat

ONE, OTHER = sorted(KEYS)[:2]
TRACE = "00-{:032x}-00000000000000aa-01"


@pytest.fixture
def engine() -> Generator[FakeEngine]:
    with FakeEngine("node-1").serving() as engine:
        yield engine


@pytest.fixture
def gateway(tmp_path: Path, engine: FakeEngine) -> Generator[GatewayProcess]:
    with GatewayProcess(tmp_path / "gw").running() as gateway:
        gateway.push_and_open([engine])
        yield gateway


class Client:
    """One connection that is kept; the client never opens it again."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._kept = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=60)
        self._kept.connect()
        self._kept.auto_open = 0

    def ask(self, tenant: str, **headers: str) -> tuple[int, str]:
        """Return the status, and the id the gateway gave the request."""
        mine = {"authorization": f"Bearer {KEYS[tenant]}", "content-type": "application/json"}
        body = json.dumps(chat("tokens=1"))
        self._kept.request("POST", "/v1/chat/completions", body, mine | headers)
        answer = self._kept.getresponse()
        answer.read()
        return answer.status, answer.headers.get("x-request-id", "")

    def close(self) -> None:
        self._kept.close()


@pytest.fixture
def client(gateway: GatewayProcess) -> Generator[Client]:
    client = Client(gateway)
    yield client
    client.close()


def test_each_request_is_its_own_tenants_tiers_and_traces(
    gateway: GatewayProcess, engine: FakeEngine, client: Client
) -> None:
    told: dict[str, tuple[str, str, str | None]] = {}
    for number in range(24):
        tenant = (ONE, OTHER)[number % 2]
        tier = ("", "batch", "best_effort")[number % 3]
        trace = TRACE.format(number + 1) if number % 4 == 0 else None
        headers = {"x-rhodeck-tier": tier} if tier else {}
        status, name = client.ask(tenant, **headers, **({"traceparent": trace} if trace else {}))
        assert status == 200
        told[name] = tenant, tier or "interactive", trace
    records = {one["request_id"]: (one["tenant"], one["key_id"], one["tier"]) for one in gateway.usage()}
    assert records == {name: (tenant, f"k-{tenant}", tier) for name, (tenant, tier, _) in told.items()}
    seen = {
        one.request_id: {name.lower(): value for name, value in one.headers.items()}
        for one in engine.served
    }
    assert {name: headers.get("traceparent") for name, headers in seen.items()} == {
        name: trace for name, (_, _, trace) in told.items()
    }


def test_a_push_holds_from_the_next_request_on(
    gateway: GatewayProcess, engine: FakeEngine, client: Client
) -> None:
    """A key that went to another tenant, a tenant's own tier, a name of a pool, and a key that is gone."""
    document = assignment([engine])

    def push(generation: int, **changes: Any) -> None:
        answer = gateway.push(document | changes | {"generation": generation, "revision": generation})
        assert answer.status_code == 200, answer.text

    def asked() -> tuple[str, ...]:
        status, name = client.ask(ONE)
        assert status == 200
        record = gateway.usage()[-1]
        assert record["request_id"] == name
        return record["tenant"], record["key_id"], record["tier"], record["pool"]

    assert asked() == (ONE, f"k-{ONE}", "interactive", "main")
    moved = [{**one, "tenant": OTHER} for one in document["credentials"] if one["tenant"] == ONE]
    push(2, credentials=moved)
    assert asked() == (OTHER, f"k-{ONE}", "interactive", "main")
    slower = json.loads(json.dumps(document["policy"]))
    slower["tenants"][OTHER]["tier"] = "batch"
    push(3, credentials=moved, policy=slower)
    assert asked() == (OTHER, f"k-{ONE}", "batch", "main")
    push(4, credentials=moved, policy=slower, nodes=[{**document["nodes"][0], "pool": "spot"}])
    assert asked() == (OTHER, f"k-{ONE}", "batch", "spot")
    push(5, credentials=[one for one in document["credentials"] if one["tenant"] != ONE])
    assert client.ask(ONE)[0] == 401
