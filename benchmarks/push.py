"""Claim: what gateways are to run reaches 100 of them in 50 ms; looking after 200 takes 5 % of a core.

A process of its own plays the gateways: each has an address, takes assignments by their real form, digests
them and answers with its status. Ours is the controller's own pass (`control.reconcile.tick`) on a real
Postgres. A change of a node's state changes every assignment; the figure is the time from the first request
sent to the last confirmation, one request each, worst of a hundred (p99). Steady: processor time of a pass
in which nothing changed (settled gateways take turns), the controller's and Postgres's; passes come once a
second. Exit code 1 when a figure is over its goal by more than a third.

`--gateways N --steady N --pushes N` for other sizes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import uvloop  # noqa: E402 # the packages next to this folder
from sqlalchemy import Engine, text  # noqa: E402

from benchmarks.parse import machine  # noqa: E402
from benchmarks.scrape import cpu_s  # noqa: E402
from control import gateways, lease, reconcile  # noqa: E402
from control.commands_policy import ensure_first_revision  # noqa: E402
from control.database import make_engine, session_scope, upgrade  # noqa: E402
from control.deps import Deps, Leadership  # noqa: E402
from control.embedded import EmbeddedPostgres, socket_dsn  # noqa: E402
from control.gateway_registry import add_gateway  # noqa: E402
from control.roles import Actor, Role  # noqa: E402
from fleet.clock import SystemClock  # noqa: E402
from fleet.policy import digest_of  # noqa: E402
from tests.postgres_server import open_folder  # noqa: E402
from tests.small_gateway import TOKEN, SmallGateway  # noqa: E402

PUSH_GOAL_MS, STEADY_GOAL = 50.0, 0.05
TOLERANCE = 1.3
NODES = 50
OPERATOR = Actor("ada", Role.OPERATOR, "cli")


class Gateway(asyncio.Protocol):
    """One connection to the gateway it is made for. Requests are those of `control.gateways`."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        if not found or len(body) < length:
            return
        self._data = b""
        if head.startswith(b"PUT "):
            sent = json.loads(body)
            held = {name: sent.pop(name) for name in ("epoch", "generation")}
            self._state |= held | {
                "revision": sent["revision"], "digest": digest_of(sent), "shares": sent["shares"],
                "ready": True,
            }  # fmt: skip
        answer = json.dumps(self._state).encode()
        self._transport.write(  # type: ignore[attr-defined]
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
            + str(len(answer)).encode() + b"\r\n\r\n" + answer
        )  # fmt: skip


async def serve(count: int) -> None:
    """Serve that many gateways until killed; print their ports first."""
    loop, ports = asyncio.get_running_loop(), list[int]()
    servers: list[asyncio.Server] = []
    for number in range(count):
        state = json.loads(SmallGateway(f"gw-{number:03}").status().model_dump_json(by_alias=True))
        server = await loop.create_server(lambda state=state: Gateway(state), "127.0.0.1", 0)
        servers.append(server)
        ports.append(server.sockets[0].getsockname()[1])
    print(json.dumps(ports), flush=True)
    await asyncio.Event().wait()


@contextmanager
def gateway_fleet(count: int) -> Iterator[list[int]]:
    process = subprocess.Popen([sys.executable, __file__, "--serve", str(count)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def register(engine: Engine, ports: list[int]) -> None:
    now = datetime.now(UTC)
    with session_scope(engine) as session:
        session.execute(text("DELETE FROM gateway_observed"))
        session.execute(text("DELETE FROM assignment"))
        session.execute(text("DELETE FROM gateway"))
        ensure_first_revision(session, author=OPERATOR, now=now)
        for number, port in enumerate(ports):
            url = f"http://127.0.0.1:{port}"
            add_gateway(session, name=f"gw-{number:03}", url=url, actor=OPERATOR, now=now)


def add_nodes(engine: Engine) -> None:
    with session_scope(engine) as session:
        session.execute(text("INSERT INTO pool (name, models, created_at) VALUES ('p', '{m}', now())"))
        session.execute(
            text(
                "INSERT INTO node (name, pool, base_url, price_class, state, created_at) SELECT 'n' || n, "
                "'p', 'http://10.0.0.' || n, 'spot', 'active', now() "
                f"FROM generate_series(1, {NODES}) AS n"
            )
        )


def controller(engine: Engine, http: Any) -> Deps:
    return Deps(
        engine=engine, clock=SystemClock(), leadership=Leadership("benchmark"), http=lambda: http,
        admin_token=TOKEN, rng=random.Random(1),
    )  # fmt: skip


def all_converged(line: str, count: int) -> bool:
    return f"{count}/{count} gateways converged" in line and "," not in line


async def settle(deps: Deps, count: int) -> None:
    for _ in range(20):
        await lease.tick(deps)
        line = await reconcile.tick(deps)
        if all_converged(line, count):
            return
    raise SystemExit(f"the gateways do not converge: {line}")


async def pushes(deps: Deps, engine: Engine, count: int, times: int) -> tuple[list[float], list[float]]:
    """Return milliseconds from the first request to the last confirmation, and of the whole pass."""
    spans, whole = list[float](), list[float]()
    inner = reconcile._push

    async def timed(*given: Any) -> Mapping[str, Any]:
        started = time.perf_counter()
        try:
            return await inner(*given)
        finally:
            spans.append(1000 * (time.perf_counter() - started))

    reconcile._push = timed  # type: ignore[assignment]
    try:
        for number in range(times + 1):
            with session_scope(engine) as session:
                state = "draining" if number % 2 else "active"
                session.execute(text("UPDATE node SET state = :state WHERE name = 'n1'"), {"state": state})
            await lease.tick(deps)
            spans.clear() if number <= 1 else None
            started = time.perf_counter()
            line = await reconcile.tick(deps)
            if number:
                whole.append(1000 * (time.perf_counter() - started))
                if not all_converged(line, count):
                    raise SystemExit(f"not all confirmed: {line}")
    finally:
        reconcile._push = inner
    return spans, whole


async def steady(deps: Deps, postgres: int, passes: int = 20) -> tuple[float, float]:
    """Return processor seconds a pass of the controller and of Postgres; passes are a second apart."""
    before, before_db = time.process_time(), cpu_s(postgres)
    for _ in range(passes):
        due = time.monotonic() + 1.0
        await lease.tick(deps)
        await reconcile.tick(deps)
        await asyncio.sleep(max(0.0, due - time.monotonic()))
    own, database = time.process_time() - before, cpu_s(postgres) - before_db
    return own / passes, database / passes


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--gateways", type=int, default=100)
    arguments.add_argument("--steady", type=int, default=200)
    arguments.add_argument("--pushes", type=int, default=100)
    arguments.add_argument("--serve", type=int)
    chosen = arguments.parse_args()
    if chosen.serve:
        with contextlib.suppress(KeyboardInterrupt):
            uvloop.run(serve(chosen.serve))
        return 0
    with open_folder() as place, EmbeddedPostgres(place / "pg") as server:
        upgrade(socket_dsn(server.folder))
        engine = make_engine(socket_dsn(server.folder))
        postgres = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
        add_nodes(engine)

        async def run(count: int, *, is_steady: bool) -> Any:
            with gateway_fleet(count) as ports:
                register(engine, ports)
                async with gateways.new_session() as http:
                    deps = controller(engine, http)
                    await settle(deps, count)
                    gc.collect()
                    gc.freeze()  # as the controller does at its start
                    found = (
                        await steady(deps, postgres)
                        if is_steady
                        else await pushes(deps, engine, count, chosen.pushes)
                    )
                    await lease.release(deps)
                    return found

        try:
            spans, whole = uvloop.run(run(chosen.gateways, is_steady=False))
            own, database = uvloop.run(run(chosen.steady, is_steady=True))
        finally:
            engine.dispose()
    return report(chosen, spans, whole, own, database)


def report(
    chosen: argparse.Namespace, spans: list[float], whole: list[float], own: float, database: float
) -> int:
    p99 = sorted(spans)[min(len(spans) - 1, int(0.99 * len(spans)))]
    print(f"last of {chosen.gateways} confirmations: {min(spans):.1f} {statistics.median(spans):.1f} "
          f"{p99:.1f} ms (min, median, p99); the whole pass {statistics.median(whole):.0f} ms")  # fmt: skip
    parts = f"{1000 * own:.1f} ms of the controller, {1000 * database:.1f} ms of Postgres"
    print(f"steady pass of {chosen.steady}: {parts}")
    goals = {
        "last confirmation, p99 ms": (p99, PUSH_GOAL_MS),
        "steady, share of a core": (own + database, STEADY_GOAL),
    }
    for name, (value, goal) in goals.items():
        print(f"{name:40} {value:8.3f}  goal {goal:g}: {'met' if value <= goal else 'NOT met'}")
    result = {
        "claim": "push",
        "gateways": chosen.gateways,
        "steady_gateways": chosen.steady,
        "last_confirmation_ms": [min(spans), statistics.median(spans), p99, max(spans)],
        "pass_ms": [min(whole), statistics.median(whole), max(whole)],
        "steady_s": {"controller": own, "postgres": database},
        "goals": {name: {"value": value, "goal": goal} for name, (value, goal) in goals.items()},
        "machine": machine(),
    }
    (ROOT / "benchmarks" / "results" / "push.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(value <= TOLERANCE * goal for value, goal in goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
