"""A quota over three gateway processes while the store that counts it is frozen, killed and started again.

Seen in public at envoyproxy/ratelimit#462 (each request waits out a dead store) and BerriAI/litellm#6288
(a limit times the number of replicas). The truth is the engine's: tokens it was let to produce.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from control.assignments import build
from fleet.policy import parse
from tests.gateway_process import (
    ADMIN_TOKEN,
    KEYS,
    FakeEngine,
    GatewayProcess,
    assignment,
    chat,
    eventually,
)
from tests.quota_crowd import LONG_TOKENS, PER_S, Crowd, Meter, quota
from tests.quota_store import QuotaStore

pytestmark = pytest.mark.slow

NAMES = ["gw-1", "gw-2", "gw-3"]
BURST = 300


def documents(engine: FakeEngine) -> dict[str, dict[str, Any]]:
    """Return the assignment of each gateway: the tenant's quota is counted exactly, parts are even."""
    base = assignment([engine])
    policy = base["policy"]
    tenant = policy["tenants"]["acme"] | quota(BURST) | {"quota_mode": "exact"}
    policy = policy | {"tenants": policy["tenants"] | {"acme": tenant}}
    built = build(parse(policy), 1, NAMES, [], [], ())
    shares = {
        name: {tenant: share.model_dump() for tenant, share in made.shares.items()}
        for name, made in built.items()
    }
    return {
        name: base | {"gateway": name, "policy": policy, "shares": shares[name], "kv_share_ratio": 1 / 3}
        for name in NAMES
    }


@pytest.fixture
def engine() -> Generator[FakeEngine]:
    with FakeEngine("node-1").serving() as engine:
        yield engine


@pytest.fixture
def store(tmp_path: Path) -> Generator[QuotaStore]:
    with QuotaStore(tmp_path / "store").running() as store:
        yield store


@pytest.fixture
def gateways(tmp_path: Path, store: QuotaStore, engine: FakeEngine) -> Generator[list[GatewayProcess]]:
    (tmp_path / "url").write_text(store.url)
    with contextlib.ExitStack() as stack:
        made = [
            stack.enter_context(
                GatewayProcess(
                    tmp_path / name,
                    *["--quota-store-url-file", str(tmp_path / "url")],
                    *["--quota-store-budget-s", "1"],  # a busy machine is no dead store
                    name=name,
                ).running()
            )
            for name in NAMES
        ]
        for gateway in made:
            assert gateway.push(documents(engine)[gateway.name]).status_code == 200
        for gateway in made:
            eventually(lambda gateway=gateway: gateway.status()["nodes_usable"] == 1)
            eventually(lambda gateway=gateway: gateway.metric("rhodeck_gateway_quota_store_trusted") == 1)
        yield made


def trusted(gateways: list[GatewayProcess]) -> float:
    return sum(gateway.metric("rhodeck_gateway_quota_store_trusted") for gateway in gateways)


@pytest.mark.timeout(900)
def test_three_gateways_admit_one_quota_while_its_store_is_frozen_killed_and_back(
    store: QuotaStore, gateways: list[GatewayProcess], engine: FakeEngine
) -> None:
    meter = Meter(engine, BURST, clients=6)
    crowd = Crowd([one.base_url for one in gateways for _ in range(2)], KEYS["acme"], pause_s=0.02)
    try:
        eventually(lambda: meter.served() >= BURST + 4 * PER_S)
        assert meter.served() <= meter.bound(1)
        with store.frozen():
            eventually(lambda: trusted(gateways) == 0)
            before = meter.served()
            # By leases now: neither open nor shut.
            eventually(lambda: meter.served() >= before + LONG_TOKENS, within_s=240)
            # Each gateway had at most its part of one burst left.
            assert meter.served() <= meter.bound(2)
        eventually(lambda: trusted(gateways) == 3)
        store.kill()
        eventually(lambda: trusted(gateways) == 0)
        before = meter.served()
        eventually(lambda: meter.served() >= before + LONG_TOKENS, within_s=240)
        assert meter.served() <= meter.bound(3)
        store.start()  # empty
        eventually(lambda: trusted(gateways) == 3)
        before = meter.served()
        eventually(lambda: meter.served() >= before + 4 * PER_S)
        assert meter.served() <= meter.bound(4)
    finally:
        crowd.end()
    assert crowd.codes == {200, 429}
    eventually(lambda: all(gateway.status()["in_flight_tokens"] == 0 for gateway in gateways))
    eventually(lambda: b"\r\n0\r\n" in store.ask("HGET", "{rhodeck:acme}:quota", "T"))


def test_a_gateway_killed_with_requests_running_gives_back_what_it_held(
    store: QuotaStore, gateways: list[GatewayProcess], engine: FakeEngine
) -> None:
    with (
        gateways[0].client("acme") as client,
        contextlib.suppress(Exception),
        client.stream(
            "POST", "/v1/chat/completions", json=chat("tokens=500 pause=0.2", stream=True, max_tokens=100)
        ),
    ):
        eventually(lambda: b"\r\n0\r\n" not in store.ask("HGET", "{rhodeck:acme}:quota", "R"))
        gateways[0].process.kill()
    # Nobody else asks: its end comes when the next request of the tenant does, 15 s after its last sign.

    def is_given_back() -> bool:
        with gateways[1].client("acme") as client:
            client.post("/v1/chat/completions", json=chat("tokens=1", max_tokens=1))
        return b"\r\n0\r\n" in store.ask("HGET", "{rhodeck:acme}:quota", "R")

    eventually(is_given_back)


def test_a_gateway_without_a_store_says_what_it_does_not_enforce(
    tmp_path: Path, engine: FakeEngine
) -> None:
    with GatewayProcess(tmp_path / "gw", name="gw-1").running() as gateway:
        assert gateway.push(documents(engine)["gw-1"]).status_code == 200
        assert "/tenants/acme/quota_mode" in gateway.status()["unsupported"]
        # It admits by its part: 100 of 300 at once.
        assert gateway.status()["shares"]["acme"]["burst_tokens"] == 100
    assert ADMIN_TOKEN not in gateway.log_path.read_text()
