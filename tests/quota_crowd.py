"""What tests of one quota over several real gateways share: fleet, clients that never let go, the bound.

The truth is the engine's: tokens it was let to produce, against what the quota lets flow and its bursts.
Times are seconds, rates tokens a second.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx
from sqlalchemy.orm import Session

from control.commands_fleet import add_node, add_pool
from control.commands_policy import ensure_first_revision, publish
from control.gateway_registry import add_gateway
from control.roles import Actor, Role
from control.tenant_keys import create_tenant_key
from fleet.policy import default_policy
from tests.gateway_process import ADMIN_TOKEN, MODEL, PROMPT_TOKENS, FakeEngine, assignment, chat
from tests.postgres_server import FreshDatabase

SCRIPT = Path(__file__).parent / "controller_process.py"
ADMIN = Actor("ada", Role.ADMIN, "cli")
OUTPUT_TOKENS = 13
USED_TOKENS = PROMPT_TOKENS + OUTPUT_TOKENS  # by each request, as the engine counts
TOKENS_PER_MINUTE = 6_000
PER_S = TOKENS_PER_MINUTE / 60
#: Ten seconds of the quota. Gates open thrice as wide serve it in 3.3 s: 667 tokens more than may flow in
#: that time, which is above the bursts and the requests in passing that `Meter.bound` allows for.
LONG_TOKENS = 10 * PER_S


def quota(burst_tokens: int) -> dict[str, int]:
    """Return a quota of which only rate and burst are ever met."""
    return {
        "tokens_per_minute": TOKENS_PER_MINUTE,
        "burst_tokens": burst_tokens,
        "max_in_flight_tokens": 100_000,
        "max_concurrent_requests": 300,
    }


class Crowd:
    """One client for each address, asking all the time whatever it is answered. Clients may be given."""

    def __init__(
        self,
        addresses: Iterable[str | httpx.Client],
        key: str,
        *,
        pause_s: float | Sequence[float] = 0.03,
        token_s: float = 0.0,
    ) -> None:
        """`pause_s` is between an answer and the next request, `token_s` the engine's time a token."""
        self._body = chat(f"tokens={OUTPUT_TOKENS} pause={token_s}", max_tokens=OUTPUT_TOKENS)
        self.is_over = threading.Event()
        self.codes: set[int] = set()
        self.threads: list[threading.Thread] = []
        for place, address in enumerate(addresses):
            pause = pause_s if isinstance(pause_s, (int, float)) else pause_s[place]
            client = (
                httpx.Client(base_url=address, trust_env=False, timeout=60)
                if isinstance(address, str)
                else address
            )
            self.threads.append(threading.Thread(target=self._ask, args=(client, key, pause)))
        for thread in self.threads:
            thread.start()

    def _ask(self, client: httpx.Client, key: str, pause_s: float) -> None:
        headers = {"Authorization": f"Bearer {key}"}
        with closing(client):
            while not self.is_over.is_set():
                answer = client.post("/v1/chat/completions", json=self._body, headers=headers)
                self.codes.add(answer.status_code)
                self.is_over.wait(pause_s)

    def end(self) -> None:
        """Let everybody finish."""
        self.is_over.set()
        for thread in self.threads:
            thread.join(90)


@dataclass
class Meter:
    """What one tenant was served since the meter was made, and the most it may have been."""

    engine: FakeEngine
    burst_tokens: int
    clients: int  # that ask at once: each may have a request in passing
    began_s: float = field(default_factory=time.monotonic)

    def served(self) -> int:
        """Return the tokens the engine was let to produce."""
        return USED_TOKENS * len(self.engine.served)

    def bound(self, bursts: int = 1) -> float:
        """Return the most that may have been served by now: what flowed, bursts, one request a client.

        (A prompt may be booked too small; what is used is charged when the request has ended.)
        """
        flowed = PER_S * (time.monotonic() - self.began_s)
        return bursts * self.burst_tokens + flowed + USED_TOKENS * self.clients


def register(
    database: FreshDatabase, engine: FakeEngine, gateways: dict[str, str], burst_tokens: int
) -> str:
    """Put the fleet (gateway name -> URL) and a policy into the database; return the tenant's key."""
    now = datetime.now(UTC)
    with Session(database.engine) as session, session.begin():
        ensure_first_revision(session, author=ADMIN, now=now)
        add_pool(session, ADMIN, name="main", models=[MODEL], now=now)
        add_node(session, ADMIN, name=engine.name, url=engine.base_url, pool="main", now=now)
        for name, url in gateways.items():
            add_gateway(session, name=name, url=url, actor=ADMIN, now=now)
        document = default_policy().as_document()
        document["tenants"] = {"acme": assignment([])["policy"]["tenants"]["acme"] | quota(burst_tokens)}
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


class Controllers(ExitStack):
    """Controller processes that lead, reconcile and lend quotas. All are killed at the end."""

    def __init__(self, database: FreshDatabase, logs: Path) -> None:
        super().__init__()
        self._database, self._logs = database, logs

    def start(self, owner: str) -> subprocess.Popen[bytes]:
        """Start one more."""
        command = [sys.executable, str(SCRIPT), self._database.dsn, owner, "2.0", ADMIN_TOKEN, "quotas"]
        with (self._logs / f"{owner}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        self.callback(process.wait, 10)
        self.callback(process.kill)
        return process
