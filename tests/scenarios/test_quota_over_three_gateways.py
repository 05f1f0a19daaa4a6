"""A quota over three gateway processes while the store that counts it is frozen, killed and started again.

Seen in public at envoyproxy/ratelimit#462 (each request waits out a dead store) and BerriAI/litellm#6288
(a limit times the number of replicas). The truth is the engine's: tokens it was let to produce.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from control.assignments import build
from fleet.policy import parse
from tests.gateway_process import (
    ADMIN_TOKEN,
    PROMPT_TOKENS,
    FakeEngine,
    GatewayProcess,
    assignment,
    chat,
    eventually,
)
from tests.quota_store import QuotaStore

pytestmark = pytest.mark.slow

NAMES = ["gw-1", "gw-2", "gw-3"]
OUTPUT_TOKENS = 13
USED_TOKENS = PROMPT_TOKENS + OUTPUT_TOKENS  # by each request, as the engine counts
QUOTA = {
    "tokens_per_minute": 6_000,
    "burst_tokens": 300,
    "max_in_flight_tokens": 100_000,
    "max_concurrent_requests": 100,
}
PER_S = QUOTA["tokens_per_minute"] / 60
#: Ten seconds of the quota. Gates open thrice as wide serve it in 3.3 s: 667 tokens more than may flow in
#: that time, which is above the burst and the requests in passing that `bound` allows for.
LONG_TOKENS = 10 * PER_S


def documents(engine: FakeEngine) -> dict[str, dict[str, Any]]:
    """Return the assignment of each gateway: the tenant's quota is counted exactly, parts are even."""
    base = assignment([engine])
    policy = base["policy"]
    tenant = policy["tenants"]["acme"] | QUOTA | {"quota_mode": "exact"}
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


class Crowd:
    """Clients that ask every gateway all the time, whatever they are answered."""

    def __init__(self, gateways: list[GatewayProcess]) -> None:
        self.is_over = threading.Event()
        self.codes: set[int] = set()
        self.threads = [
            threading.Thread(target=self._ask, args=(gateway,)) for gateway in gateways for _ in range(2)
        ]
        for thread in self.threads:
            thread.start()

    def _ask(self, gateway: GatewayProcess) -> None:
        with gateway.client("acme") as client:
            while not self.is_over.is_set():
                answer = client.post(
                    "/v1/chat/completions", json=chat(f"tokens={OUTPUT_TOKENS}", max_tokens=OUTPUT_TOKENS)
                )
                self.codes.add(answer.status_code)
                self.is_over.wait(0.02)

    def end(self) -> None:
        self.is_over.set()
        for thread in self.threads:
            thread.join(60)


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


def served(engine: FakeEngine) -> int:
    return USED_TOKENS * len(engine.served)


@pytest.mark.timeout(900)
def test_three_gateways_admit_one_quota_while_its_store_is_frozen_killed_and_back(
    store: QuotaStore, gateways: list[GatewayProcess], engine: FakeEngine
) -> None:
    began_s = time.monotonic()

    def bound(bursts: int) -> float:
        """Return the most that may have been served by now: what flowed, bursts, and one request a client.

        (A prompt may be booked too small; what is used is charged when the request has ended.)
        """
        flowed = PER_S * (time.monotonic() - began_s)
        return bursts * QUOTA["burst_tokens"] + flowed + USED_TOKENS * len(crowd.threads)

    crowd = Crowd(gateways)
    try:
        eventually(lambda: served(engine) >= QUOTA["burst_tokens"] + 4 * PER_S)
        assert served(engine) <= bound(1)
        with store.frozen():
            eventually(lambda: trusted(gateways) == 0)
            before = served(engine)
            # By leases now: neither open nor shut.
            eventually(lambda: served(engine) >= before + LONG_TOKENS, within_s=240)
            # Each gateway had at most its part of one burst left.
            assert served(engine) <= bound(2)
        eventually(lambda: trusted(gateways) == 3)
        store.kill()
        eventually(lambda: trusted(gateways) == 0)
        before = served(engine)
        eventually(lambda: served(engine) >= before + LONG_TOKENS, within_s=240)
        assert served(engine) <= bound(3)
        store.start()  # empty
        eventually(lambda: trusted(gateways) == 3)
        before = served(engine)
        eventually(lambda: served(engine) >= before + 4 * PER_S)
        assert served(engine) <= bound(4)
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
        assert gateway.status()["unsupported"] == ["/tenants/acme/quota_mode"]
        # It admits by its part: 100 of 300 at once.
        assert gateway.status()["shares"]["acme"]["burst_tokens"] == 100
    assert ADMIN_TOKEN not in gateway.log_path.read_text()
