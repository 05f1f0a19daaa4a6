"""Claim: lending quotas between 200 gateways takes about 2 % of a core of the controller.

A process of its own plays the gateways: each address answers by the real `admission.quota_lease`, over
real sockets. Ours is the controller's pass (`control.quota_leases`), every 5 s. Quiet: nobody holds a
lease, each gateway is asked once. Lent: each of ten tenants has its traffic at one gateway, so that all
200 hold leases; nothing moves, each is renewed once. Moving: all ten move to other gateways, so that every
gateway gets two more messages. The registry is built before: reconciling reads it each second anyway, and
its read is left out. Exit code 1 when a steady figure is over its goal by more than a third.

`--gateways N` for another size, `--store` to write results/quota_leases.json.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import uvloop  # noqa: E402 # the packages next to this folder

from admission.quota_lease import QuotaLeases as HeldLeases  # noqa: E402
from admission.quota_lease import answer_lease  # noqa: E402
from benchmarks.parse import machine  # noqa: E402
from control import gateways  # noqa: E402
from control.assignments import Target, build, encode  # noqa: E402
from control.conditions import Known  # noqa: E402
from control.deps import Deps, Leadership  # noqa: E402
from control.quota_leases import QuotaLeases  # noqa: E402
from control.reconcile_store import Place  # noqa: E402
from fleet.accounts import Accounts  # noqa: E402
from fleet.clock import SystemClock  # noqa: E402
from fleet.policy import parse  # noqa: E402
from fleet.quota_leases import RENEW_S  # noqa: E402
from tests.gateway_process import assignment  # noqa: E402

GOAL, TOLERANCE = 0.02, 1.33
TENANTS = [f"tenant-{number}" for number in range(10)]
PASSES = 12


def targets(count: int) -> dict[str, Target]:
    document = assignment([])["policy"]
    quota = document["tenants"]["acme"] | {"tokens_per_minute": 10**6, "burst_tokens": 10**5}
    policy = parse(document | {"tenants": dict.fromkeys(TENANTS, quota)})
    return encode(build(policy, 1, [f"gw-{number:03}" for number in range(count)], [], [], ()))


class Gateway(asyncio.Protocol):
    """One connection to a played gateway; a request needs what its hot tenants were asked for meanwhile."""

    def __init__(self, held: HeldLeases, hot: dict[str, int], number: int) -> None:
        self._held, self._hot, self._number = held, hot, number
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        if found and len(body) >= length:
            self._data = b""
            self._task = asyncio.ensure_future(self._answer(body))

    async def _answer(self, body: bytes) -> None:
        for tenant, number in self._hot.items():
            account = self._held.accounts.find(tenant)
            if number == self._number and account is not None:
                account.count_refused(10**6)
        answer = await answer_lease(self._held, body)
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
            + b"%d\r\n\r\n" % len(answer)
            + answer
        )


async def serve(count: int) -> None:
    """Serve that many gateways until killed; print their ports, then heed lines of hot gateways."""
    loop, clock, hot = asyncio.get_running_loop(), SystemClock(), dict[str, int]()
    ports: list[int] = []
    servers: list[asyncio.Server] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, target) in enumerate(targets(count).items()):
            home = Path(folder) / name
            home.mkdir()
            accounts = Accounts()
            held = HeldLeases(name, f"boot-{number}", home, accounts, clock)
            held.rebase(target.assignment, target.digest)
            accounts.apply(target.assignment, clock.monotonic_s())
            server = await loop.create_server(
                lambda held=held, number=number: Gateway(held, hot, number), "127.0.0.1", 0
            )
            servers.append(server)
            ports.append(server.sockets[0].getsockname()[1])
        print(json.dumps(ports), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            hot.clear()
            hot.update(json.loads(line))


@contextmanager
def gateway_fleet(count: int) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    command = [sys.executable, str(Path(__file__).resolve()), "--serve", str(count)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


async def measure(count: int) -> dict[str, Any]:
    made = targets(count)
    with gateway_fleet(count) as (process, ports):
        places = [
            Place(name, f"http://127.0.0.1:{port}", target, None, None, 1, None, Known())
            for (name, target), port in zip(made.items(), ports, strict=True)
        ]

        async def load() -> Sequence[Place]:
            return places

        def make_hot(first: int) -> None:
            assert process.stdin is not None
            hot = {tenant: (first + place) % count for place, tenant in enumerate(TENANTS)}
            process.stdin.write(json.dumps(hot if first >= 0 else {}) + "\n")
            process.stdin.flush()

        async with gateways.new_session() as http:
            leadership = Leadership("bench", epoch=1, until_s=1e12)
            deps = Deps(cast(Any, None), SystemClock(), leadership, lambda: http, "token" * 8)
            lender = QuotaLeases(deps, load=load)
            await lender.tick()
            lender._learns_until_s = 0.0  # nobody led before

            async def one() -> float:
                lender._due_s = 0.0
                began = time.process_time()
                await lender.tick()
                return time.process_time() - began

            gc.collect()
            gc.freeze()
            quiet = [await one() for _ in range(PASSES)]
            make_hot(0)
            for _ in range(3):
                await asyncio.sleep(1.2)
                await one()
            lent = []
            for _ in range(PASSES):
                await asyncio.sleep(1.1)
                lent.append(await one())
            moving = []
            for turn in range(1, 5):
                make_hot(turn * len(TENANTS))
                await asyncio.sleep(1.2)
                moving.append(await one())
            holding = sum(
                known.holds_lease(place.target.assignment.shares)
                for place in places
                if place.target is not None and (known := lender._known[place.name])
            )
    return {
        "gateways": count,
        "tenants": len(TENANTS),
        "gateways_with_leases": holding,
        "quiet_ms": round(statistics.median(quiet) * 1e3, 1),
        "lent_ms": round(statistics.median(lent) * 1e3, 1),
        "moving_ms": round(statistics.median(moving) * 1e3, 1),
        "quiet_of_a_core": round(statistics.median(quiet) / RENEW_S, 4),
        "lent_of_a_core": round(statistics.median(lent) / RENEW_S, 4),
    }


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--gateways", type=int, default=200)
    asked.add_argument("--serve", type=int)
    asked.add_argument("--store", action="store_true")
    given = asked.parse_args()
    if given.serve:
        asyncio.run(serve(given.serve))
        return 0
    found = uvloop.run(measure(given.gateways))
    for name, value in found.items():
        print(f"{name:24} {value}")
    if given.store:
        path = ROOT / "benchmarks" / "results" / "quota_leases.json"
        path.write_text(json.dumps({"machine": machine(), **found}, indent=1) + "\n")
    return int(max(found["quiet_of_a_core"], found["lent_of_a_core"]) > GOAL * TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
