"""Three gateway processes, one quota, and the controller that lends it killed.

The truth is the engine's: tokens it was let to produce, against what the quota lets flow and one burst.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from sqlalchemy.orm import Session

from control.commands_fleet import add_node, add_pool
from control.commands_policy import ensure_first_revision, publish
from control.gateway_registry import add_gateway
from control.roles import Actor, Role
from control.tenant_keys import create_tenant_key
from fleet.policy import default_policy
from tests.gateway_process import (
    ADMIN_TOKEN,
    MODEL,
    PROMPT_TOKENS,
    FakeEngine,
    GatewayProcess,
    assignment,
    chat,
    eventually,
)
from tests.postgres_server import FreshDatabase

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

SCRIPT = Path(__file__).parents[1] / "controller_process.py"
ADMIN = Actor("ada", Role.ADMIN, "cli")
NAMES = ["gw-1", "gw-2", "gw-3"]
OUTPUT_TOKENS = 13
USED_TOKENS = PROMPT_TOKENS + OUTPUT_TOKENS
QUOTA = {
    "tokens_per_minute": 6_000,
    "burst_tokens": 600,
    "max_in_flight_tokens": 100_000,
    "max_concurrent_requests": 300,
}
PER_S = QUOTA["tokens_per_minute"] / 60
#: Ten seconds of the quota. Gates open thrice as wide serve it in 3.3 s: 667 tokens more than may flow
#: meanwhile, and the burst was used up before.
LONG_TOKENS = 10 * PER_S


class Crowd:
    """Clients that ask one gateway all the time, whatever they are answered."""

    def __init__(self, gateway: GatewayProcess, key: str, clients: int = 2) -> None:
        self.is_over = threading.Event()
        self.threads = [threading.Thread(target=self._ask, args=(gateway, key)) for _ in range(clients)]
        for thread in self.threads:
            thread.start()

    def _ask(self, gateway: GatewayProcess, key: str) -> None:
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(
            base_url=gateway.base_url, headers=headers, trust_env=False, timeout=30
        ) as client:
            while not self.is_over.is_set():
                body = chat(f"tokens={OUTPUT_TOKENS}", max_tokens=OUTPUT_TOKENS)
                client.post("/v1/chat/completions", json=body)
                self.is_over.wait(0.03)

    def end(self) -> None:
        self.is_over.set()
        for thread in self.threads:
            thread.join(60)


@pytest.fixture
def engine() -> Generator[FakeEngine]:
    with FakeEngine("node-1").serving() as engine:
        yield engine


@pytest.fixture
def gateways(tmp_path: Path) -> Generator[list[GatewayProcess]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(GatewayProcess(tmp_path / name, name=name).running()) for name in NAMES]


@pytest.fixture
def start(database: FreshDatabase, tmp_path: Path) -> Generator[Callable[[str], subprocess.Popen[bytes]]]:
    """Start a controller that lends quotas; all are killed at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(owner: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(SCRIPT), database.dsn, owner, "2.0", ADMIN_TOKEN, "quotas"]
        with (tmp_path / f"{owner}.log").open("wb") as log:
            started.append(subprocess.Popen(command, stdout=log, stderr=log))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait(10)


def register(database: FreshDatabase, engine: FakeEngine, gateways: list[GatewayProcess]) -> str:
    """Put the fleet and a policy into the database; return the tenant's key."""
    now = datetime.now(UTC)
    with Session(database.engine) as session, session.begin():
        ensure_first_revision(session, author=ADMIN, now=now)
        add_pool(session, ADMIN, name="main", models=[MODEL], now=now)
        add_node(session, ADMIN, name=engine.name, url=engine.base_url, pool="main", now=now)
        for gateway in gateways:
            add_gateway(session, name=gateway.name, url=gateway.base_url, actor=ADMIN, now=now)
        document = default_policy().as_document()
        document["tenants"] = {"acme": assignment([])["policy"]["tenants"]["acme"] | QUOTA}
        publish(
            session,
            document=document,
            parent=1,
            author=ADMIN,
            note="why",
            now=now,
            strategy="all_at_once",
        )
        return create_tenant_key(session, tenant="acme", label="test", actor=ADMIN, now=now).secret


def rate(gateway: GatewayProcess) -> float:
    """Return the lent rate in force; 0: it has its even part."""
    return gateway.metric("rhodeck_gateway_quota_lease", tenant="acme", limit="tokens_per_minute")


def test_one_quota_over_three_gateways_while_its_controller_is_killed_and_replaced(
    database: FreshDatabase,
    engine: FakeEngine,
    gateways: list[GatewayProcess],
    start: Callable[[str], subprocess.Popen[bytes]],
) -> None:
    key = register(database, engine, gateways)
    first = start("c1")
    for gateway in gateways:
        eventually(lambda gateway=gateway: "acme" in gateway.status()["shares"])
        eventually(lambda gateway=gateway: gateway.status()["nodes_usable"] == 1)
    began_s = time.monotonic()
    crowds = [Crowd(gateways[0], key)]

    def served() -> int:
        return USED_TOKENS * len(engine.served)

    def bound() -> float:
        """Return the most that may have been served by now: what flowed, one burst, a request a client."""
        return QUOTA["burst_tokens"] + PER_S * (time.monotonic() - began_s) + USED_TOKENS * 6

    try:
        # All the traffic meets one gateway: it is lent nearly all there is.
        eventually(lambda: rate(gateways[0]) > 0.8 * QUOTA["tokens_per_minute"])
        assert served() <= bound()
        crowds += [Crowd(gateway, key) for gateway in gateways[1:]]
        first.kill()
        # Nobody renews: what was borrowed ends, and later what was lent away returns.
        eventually(lambda: all(rate(gateway) == 0 for gateway in gateways))
        before = served()
        eventually(lambda: served() >= before + LONG_TOKENS, within_s=120)
        assert served() <= bound()
        for crowd in crowds[1:]:
            crowd.end()
        start("c2")
        eventually(lambda: rate(gateways[0]) > 0.8 * QUOTA["tokens_per_minute"])
        assert served() <= bound()
    finally:
        for crowd in crowds:
            crowd.end()
