"""Claim: N gateway processes on one port serve N times what one does, but for what the machine lacks.

Cost: processor time a request of one process and of N that serve at once, from the kernel. Shared state
would show there: time of locks, retries, cold caches. `scaling` is N times the one by the other; at least
0.8 x N. Total: requests a second of one process and of N over all cores of this machine, with load and mock
engine beside them; `of_what_is_left` is that gain against the most two cores could give after the load took
its part. Dealing: to how many of C connections the busiest of N processes is dealt by the kernel.
Room: requests that 2 processes keep running at a small engine, against one, when the kernel deals their
connections evenly, 85 % to one, all to one; with the even parts, and with room that the controller lends.

    python -m benchmarks.processes [--processes 2] [--rounds 3] [--seconds 4] [--skip-room] [--store]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import aiohttp
import httpx
import psutil

from benchmarks.parse import machine
from control.assignments import build, encode
from control.conditions import Known
from control.deps import Deps, Leadership
from control.gateways import new_session, push
from control.quota_leases import QuotaLeases
from control.reconcile_store import Place
from fleet.clock import SystemClock
from fleet.messages import Credential, NodeTarget
from fleet.policy import parse
from fleet.quota_leases import AGAIN_S
from tests.gateway_group import GatewayGroup
from tests.gateway_process import ADMIN_TOKEN, KEYS, MODEL, FakeEngine, assignment

ROOT = Path(__file__).resolve().parents[1]
LOAD = [sys.executable, "-m", "benchmarks.http_load"]
CONNECTIONS = 64
FLOOR = 0.8


@contextlib.contextmanager
def mock_engine() -> Generator[tuple[FakeEngine, int]]:
    process = subprocess.Popen([*LOAD, "engine"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["port"]
        yield FakeEngine("n1", port=port), process.pid
    finally:
        process.kill()
        process.communicate()


def workers_cpu_s(group: GatewayGroup) -> list[float]:
    """Return processor seconds of each process so far."""
    times = [psutil.Process(group.pid(member)).cpu_times() for member in group.members]
    return [one.user + one.system for one in times]


def all_cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def serve(group: GatewayGroup, engine_pid: int, seconds: float) -> dict[str, float]:
    """Load a group for a while; return its figures."""
    line = [*LOAD, "load", group.base_url, "--key", KEYS["acme"], "--connections", str(CONNECTIONS)]

    def run(how_long: float) -> dict[str, Any]:
        made = subprocess.run(
            [*line, "--seconds", str(how_long)], cwd=ROOT, check=True, capture_output=True
        ).stdout
        seen: dict[str, Any] = json.loads(made)
        if seen["failed"] or not seen["finished"]:
            raise SystemExit(f"{seen['failed']} requests failed, {seen['finished']} finished")
        return seen

    run(0.5)
    before, engine_before, load_before = workers_cpu_s(group), all_cpu_s(engine_pid), os.times()
    seen = run(seconds)
    used = [now - was for now, was in zip(workers_cpu_s(group), before, strict=True)]
    load_after = os.times()
    load_s = (load_after.children_user + load_after.children_system) - (
        load_before.children_user + load_before.children_system
    )
    return {
        "us_a_request": 1e6 * sum(used) / seen["finished"],
        "requests_a_second": seen["finished"] / seen["seconds"],
        "busiest_share": max(used) / sum(used),
        "us_beside": 1e6 * (all_cpu_s(engine_pid) - engine_before + load_s) / seen["finished"],
    }


def scaling(count: int, rounds: int, seconds: float, folder: Path) -> dict[str, Any]:
    found: dict[int, list[dict[str, float]]] = {1: [], count: []}
    with mock_engine() as (engine, engine_pid), contextlib.ExitStack() as stack:
        groups = {
            size: stack.enter_context(GatewayGroup(folder / f"of-{size}", size).running())
            for size in (1, count)
        }
        for group in groups.values():
            group.push_and_open([engine])
        for _ in range(rounds):
            for size, group in groups.items():
                found[size].append(serve(group, engine_pid, seconds))
    medians = {
        size: {name: statistics.median(one[name] for one in made) for name in made[0]}
        for size, made in found.items()
    }
    one, many = medians[1], medians[count]
    cores = os.cpu_count() or 1
    # With the load beside, one process has a core; N have what the load leaves of all.
    most = min(count / one["us_a_request"], cores / (one["us_a_request"] + one["us_beside"]))
    gain = many["requests_a_second"] / one["requests_a_second"]
    return {
        "medians": {str(size): made for size, made in medians.items()},
        "scaling": count * one["us_a_request"] / many["us_a_request"],
        "gain_here": gain,
        "of_what_is_left": many["requests_a_second"] / (1e6 * most),
    }


def dealing(count: int, folder: Path) -> dict[str, Any]:
    """Return the busiest process's part of connections, the even part being 1, median and worst of 20."""
    made: dict[str, Any] = {}
    with mock_engine() as (engine, _), GatewayGroup(folder / "dealt", count).running() as group:
        group.push_and_open([engine])
        pids = [group.pid(member) for member in group.members]
        for connections in (8, 32, 128, 512):
            seen: list[float] = []
            for _ in range(20):
                before = [_sockets(pid) for pid in pids]
                opened = asyncio.run(_open(group.port, connections, pids, before))
                seen.append(max(opened) * count / connections)
            made[str(connections)] = {"median": statistics.median(seen), "worst": max(seen)}
    return made


async def _open(port: int, connections: int, pids: list[int], before: list[int]) -> list[int]:
    writers = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(connections)]
    dealt = list[int]()
    for _ in range(500):
        dealt = [_sockets(pid) - was for pid, was in zip(pids, before, strict=True)]
        if sum(dealt) >= connections:
            break
        await asyncio.sleep(0.01)
    for writer in writers:
        writer.close()
        await writer.wait_closed()
    await asyncio.sleep(0.05)
    return dealt


def _sockets(pid: int) -> int:
    return sum(1 for one in psutil.Process(pid).net_connections("tcp") if one.status == "ESTABLISHED")


# -- room at a small engine -------------------------------------------------------------------------

OUTPUT, BOOKED = 40, 50  # tokens a request produces, and about what is booked for it
ROOM = 32  # requests the engine has room for
CLIENTS = 40  # a few more, so that somebody always waits
SETTLE_S = 12.0  # room is lent within two passes, 2.5 s apart, once somebody waits


def rooms(seconds: float, folder: Path) -> dict[str, Any]:
    made: dict[str, float] = {}
    cases = [(1, (1.0,), False)]
    cases += [
        (2, parts, lent) for lent in (False, True) for parts in ((0.5, 0.5), (0.85, 0.15), (1.0, 0.0))
    ]
    for size, parts, is_lent in cases:
        lent = ", lent" if is_lent else ""
        name = "1 process" if size == 1 else f"2, {parts[0]:.0%} at one{lent}"
        made[name] = asyncio.run(
            _running(size, parts, seconds, folder / f"room-{len(made)}", is_lent=is_lent)
        )
    return {name: {"running": rate, "of_one": rate / made["1 process"]} for name, rate in made.items()}


async def _running(
    size: int, parts: tuple[float, ...], seconds: float, folder: Path, *, is_lent: bool
) -> float:
    """Return the requests that run at the engine on average, clients being dealt to processes in `parts`.

    By Little's law goodput is that by the time a request takes, which a busy machine stretches for all.
    """
    engine = FakeEngine("n1", kv_blocks=int(ROOM * BOOKED / 0.85 / 16))
    with engine.serving(), GatewayGroup(folder, size).running() as group:
        document = assignment([engine])
        for tier in document["policy"]["tiers"].values():
            tier["queue_timeout_s"] = 60
        node = NodeTarget.model_validate(document["nodes"][0])
        keys = [Credential.model_validate(one) for one in document["credentials"]]
        names = [member.name for member in group.members]
        made = encode(build(parse(document["policy"]), 1, names, [node], keys, ()))
        places = [
            Place(one.name, one.base_url, made[one.name], None, None, 1, None, Known())
            for one in group.members
        ]
        async with new_session() as http:
            for place in places:
                body = made[place.name].body(epoch=1, generation=1)
                await push(http, place.name, place.url, body, token=ADMIN_TOKEN, deadline_s=10)
            lending = asyncio.create_task(_lend(http, places)) if is_lent else None
            urls = [
                one.base_url
                for one, part in zip(group.members, parts, strict=True)
                for _ in range(round(part * CLIENTS))
            ]
            try:
                return await _ask(engine, urls, seconds)
            finally:
                if lending is not None:
                    lending.cancel()
                    await asyncio.gather(lending, return_exceptions=True)


async def _lend(http: aiohttp.ClientSession, places: list[Place]) -> None:
    """Lend as the controller does."""

    async def load() -> list[Place]:
        return places

    leadership = Leadership("bench", epoch=1, until_s=1e12)
    lender = QuotaLeases(
        Deps(cast("Any", None), SystemClock(), leadership, lambda: http, ADMIN_TOKEN), load=load
    )
    await lender.tick()
    lender._learns_until_s = 0.0  # nobody led before
    while True:
        await lender.tick()
        await asyncio.sleep(AGAIN_S)


async def _ask(engine: FakeEngine, urls: list[str], seconds: float) -> float:
    # A member's admin port serves clients too: that is how a test deals as it likes.
    headers = {"Authorization": f"Bearer {KEYS['acme']}"}
    content = f"tokens={OUTPUT} pause=0.05"
    body = {"model": MODEL, "max_tokens": OUTPUT, "messages": [{"role": "user", "content": content}]}
    end = time.perf_counter() + SETTLE_S + seconds

    async def keep(url: str) -> None:
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=90, trust_env=False) as client:
            while time.perf_counter() < end:
                await client.post("/v1/chat/completions", json=body)

    asking = [asyncio.create_task(keep(url)) for url in urls]
    await asyncio.sleep(SETTLE_S)
    seen: list[int] = []
    while time.perf_counter() < end:
        seen.append(engine.running)
        await asyncio.sleep(0.05)
    await asyncio.gather(*asking)
    return statistics.mean(seen)


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--processes", type=int, default=2)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--seconds", type=float, default=4.0)
    asked.add_argument("--skip-room", action="store_true")
    asked.add_argument("--only-room", action="store_true")
    asked.add_argument("--store", action="store_true")
    given = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.only_room:
            for name, one in rooms(2 * given.seconds, Path(folder)).items():
                print(f"room, {name:24} {one['running']:5.1f} run, {one['of_one']:.2f} of one process")
            return 0
        found = scaling(given.processes, given.rounds, given.seconds, Path(folder))
        found["dealing"] = dealing(given.processes, Path(folder))
        if not given.skip_room:
            found["room"] = rooms(2 * given.seconds, Path(folder))
    for size, one in found["medians"].items():
        print(
            f"{size} of {size}: {one['us_a_request']:6.1f} us/request, {one['requests_a_second']:6.0f} "
            f"requests/s with the load beside ({one['us_beside']:.0f}), busiest {one['busiest_share']:.2f}"
        )
    print(f"requests a processor second, x one {found['scaling']:10.2f} of {given.processes}")
    print(f"requests a second here, x one      {found['gain_here']:10.2f}")
    print(f"of what the load leaves            {found['of_what_is_left']:10.2f}")
    for connections, one in found["dealing"].items():
        words = f"busiest has {one['median']:.2f} x its part, worst of 20 {one['worst']:.2f}"
        print(f"{connections:>4} connections: {words}")
    for name, one in found.get("room", {}).items():
        print(f"room, {name:24} {one['running']:5.1f} run, {one['of_one']:.2f} of one process")
    if given.store:
        path = ROOT / "benchmarks" / "results" / "processes.json"
        path.write_text(json.dumps({"machine": machine(), **found}, indent=1) + "\n")
    return int(found["scaling"] < FLOOR * given.processes)


if __name__ == "__main__":
    sys.exit(main())
