"""How simulated clients treat a gateway that refuses: tenants' keys, retries, and what is counted."""

import asyncio
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from fleet.clock import SystemClock
from simfleet.traffic import MAX_ATTEMPTS, TENANTS, TrafficSettings, replay

KEYS = {tenant.name: f"key-{tenant.name}" for tenant in TENANTS}
CALM = [replace(tenant, share=1.0) for tenant in TENANTS[:1]]  # acme-chat alone: honours, streams


def run(refusals: int, **changes) -> tuple[Counter[str], list[dict], Counter[str]]:
    """Replay half a second at 60/s against a gateway that refuses each request `refusals` times first.

    Returns attempts by key, the bodies of first attempts, and the outcomes reported.
    """
    attempts: Counter[str] = Counter()
    seen: defaultdict[str, int] = defaultdict(int)
    bodies: list[dict] = []
    outcomes: Counter[str] = Counter()

    async def answer(request: web.Request) -> web.StreamResponse:
        attempts[request.headers["authorization"]] += 1
        body = await request.text()
        seen[body] += 1
        if seen[body] == 1:
            bodies.append(await request.json())
        if seen[body] <= refusals:
            return web.Response(status=429, headers={"Retry-After": "0"})
        return web.Response(body=b"data: [DONE]\n\n", content_type="text/event-stream")

    async def main() -> None:
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/v1/chat/completions", answer)
        async with TestServer(app) as server:
            settings = TrafficSettings(
                **({"gateways": [f"http://127.0.0.1:{server.port}/"], "keys": KEYS, "rate": 60.0,
                    "duration_s": 0.5} | changes)
            )  # fmt: skip
            await replay(settings, SystemClock(), lambda report: outcomes.update(report["outcomes"]))

    asyncio.run(main())
    return attempts, bodies, outcomes


def test_every_tenant_calls_with_its_own_key_and_the_traces_lengths():
    attempts, bodies, outcomes = run(refusals=0, rate=300.0)
    assert set(attempts) <= {f"Bearer {key}" for key in KEYS.values()}
    assert len(attempts) >= 5  # some 150 calls over six tenants, the rarest with a share of 8 %
    assert set(outcomes) == {"ok"}
    for body in bodies:
        assert body["max_tokens"] >= body["vllm_xargs"]["sim_output_tokens"] >= 1
        assert body["messages"][0]["role"] == "user"


@pytest.mark.parametrize("retry", ["honour", "ignore"])
def test_clients_come_back_after_a_refusal(retry):
    _, bodies, outcomes = run(refusals=1, tenants=CALM, retry=retry)
    assert outcomes["ok"] == outcomes["429"] == len(bodies) > 0


def test_clients_that_never_retry_give_up_at_once():
    attempts, bodies, outcomes = run(refusals=1, tenants=CALM, retry="never")
    assert outcomes["ok"] == 0
    assert outcomes["429"] == sum(attempts.values()) == len(bodies) > 0


def test_nobody_retries_for_ever():
    attempts, bodies, outcomes = run(refusals=1000, tenants=CALM, retry="honour")
    assert outcomes == {"429": MAX_ATTEMPTS * len(bodies)}
    assert sum(attempts.values()) == MAX_ATTEMPTS * len(bodies)


def test_arrivals_beyond_the_bound_are_counted_and_not_sent():
    attempts, _, outcomes = run(refusals=0, tenants=CALM, max_in_flight=1, rate=3000.0)
    assert outcomes["not_sent"] > 0
    assert outcomes["ok"] == sum(attempts.values())
