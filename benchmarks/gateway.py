"""Claim: a whole admission costs no more processor time a request than a router that admits nothing.

Ours does all it does for users: authenticates, estimates, reserves, queues, routes, books usage on disk.
Beside it in the same run, in turns: nginx and HAProxy (which only pass on), vllm-router and sglang-router
(which route). One core has the proxy, the other the load and a mock engine (`benchmarks/http_load.py`).
Processor time is of the proxy's processes, read from the kernel, in microseconds a request and an event
of a stream; latency is what an even load of 200 requests/s adds to asking the engine itself. Exit code 1
when a ratio misses its floor: 0.3 x vllm-router's requests a core, 50 x LiteLLM's, 2.5 x nginx's time an
event; when memory grows with requests, or is more at 1,000 streams than Envoy's at its highest. A peer that
cannot be had on this machine, or that fails requests, is named and left out. LiteLLM, which cannot take 200
requests/s on a core, is asked for 20.

    python -m benchmarks.gateway [--rounds 3] [--seconds 4] [--peers all | nginx,vllm-router]
    python -m benchmarks.gateway --growth 200000   # memory over so many requests, and at 1,000 streams
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.gateway_peers import NotHere, Running, peer
from benchmarks.parse import machine
from tests.gateway_process import KEYS, FakeEngine, GatewayProcess

ROOT = Path(__file__).resolve().parents[1]
PEERS = ("nginx", "haproxy", "envoy", "vllm-router", "sglang-router", "litellm")
PROXY_CORE, LOAD_CORE = ["taskset", "-c", "0"], ["taskset", "-c", "1"]
LOAD = [sys.executable, "-m", "benchmarks.http_load"]
CONNECTIONS, STREAMS, RATE = 64, 100, 200.0
LOW_RATES = {"litellm": 20.0}
FLOOR_ROUTER, FLOOR_LITELLM, FLOOR_EVENT = 0.3, 50.0, 2.5
MANY_STREAMS = 1_000
MOST_GROWTH = 1.1  # of memory from the first fifth of the requests to the last


class LoadFailed(Exception):
    """Requests failed: the row is void, not slow."""


@contextlib.contextmanager
def mock_engine() -> Generator[str]:
    process = subprocess.Popen([*LOAD_CORE, *LOAD, "engine"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}"
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def ours(engine_url: str, folder: Path) -> Generator[Running]:
    """Run our gateway on the proxy's core, with room for everything the load asks."""
    engine = FakeEngine("n1", port=int(engine_url.rpartition(":")[2]))  # only its name and address are used
    gateway = GatewayProcess(folder / "gw")
    with gateway.running():
        psutil.Process(gateway.process.pid).cpu_affinity([0])
        gateway.push_and_open([engine])
        yield Running("rhodeck", gateway.base_url, gateway.process.pid, KEYS["acme"])


def cpu_s(pid: int) -> float:
    """Return processor seconds of a process and its children."""
    first = psutil.Process(pid)
    used = 0.0
    for one in [first, *first.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            used += times.user + times.system
    return used


def memory_mb(pid: int) -> float:
    first = psutil.Process(pid)
    return sum(one.memory_info().rss for one in [first, *first.children(recursive=True)]) / 2**20


def highest_mb(pid: int) -> float:
    """Return the most memory a process and its children have had, each by itself (VmHWM)."""
    first = psutil.Process(pid)
    status = [
        Path(f"/proc/{one.pid}/status").read_text() for one in [first, *first.children(recursive=True)]
    ]
    return sum(int(one.partition("VmHWM:")[2].split()[0]) for one in status) / 1024


def load(place: Running, *flags: str) -> dict[str, Any]:
    line = [*LOAD_CORE, *LOAD, "load", place.url, "--key", place.key, *flags]
    seen: dict[str, Any] = json.loads(
        subprocess.run(line, cwd=ROOT, check=True, capture_output=True).stdout
    )
    if seen["failed"] or not seen["finished"]:
        raise LoadFailed(f"{place.name}: {seen['failed']} requests failed, {seen['finished']} finished")
    return seen


def measure(place: Running, seconds: float, found: dict[str, list[float]]) -> None:
    """Add one round's figures of a proxy to `found`."""
    load(place, "--seconds", "0.5", "--connections", str(CONNECTIONS))  # connections open, code warm
    before = cpu_s(place.pid)
    seen = load(place, "--seconds", str(seconds), "--connections", str(CONNECTIONS))
    found["us_a_request"].append(1e6 * (cpu_s(place.pid) - before) / seen["finished"])
    found["requests_a_second"].append(seen["finished"] / seen["seconds"])
    before = cpu_s(place.pid)
    seen = load(place, "--seconds", str(seconds), "--connections", str(STREAMS), "--stream")
    found["us_an_event"].append(1e6 * (cpu_s(place.pid) - before) / seen["events"])
    found["memory_mb"].append(memory_mb(place.pid))


def latencies(place: Running, seconds: float) -> dict[str, Any]:
    rate = str(LOW_RATES.get(place.name, RATE))
    return load(place, "--seconds", str(seconds), "--connections", "20", "--rate", rate)


def main() -> int:
    arguments = argparse.ArgumentParser(description="The gateway beside its peers.")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--seconds", type=float, default=4.0)
    arguments.add_argument("--peers", default="all", help=f"all, or some of {','.join(PEERS)}")
    arguments.add_argument("--growth", type=int, default=0)
    chosen = arguments.parse_args()
    if chosen.growth:
        return growth(chosen.growth)
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory() as given, contextlib.ExitStack() as stack:
        folder = Path(given)
        engine = stack.enter_context(mock_engine())
        places = [stack.enter_context(ours(engine, folder))]
        for name in PEERS if chosen.peers == "all" else chosen.peers.split(","):
            try:
                places.append(stack.enter_context(peer(name, engine, folder / name, PROXY_CORE)))
            except NotHere as exc:
                print(f"{name}: left out, {exc}")
        direct = Running("direct", engine, 0)
        for _ in range(chosen.rounds):
            for place in tuple(places):
                try:
                    measure(place, chosen.seconds, found[place.name])
                except LoadFailed as exc:
                    if place is places[0]:
                        raise
                    print(f"left out from here on, {exc}")
                    places.remove(place)
                    del found[place.name]
            for place in [direct, *places]:
                seen = latencies(place, chosen.seconds)
                found[place.name]["p50_ms"].append(seen["p50_ms"])
                found[place.name]["p99_ms"].append(seen["p99_ms"])
                time.sleep(0.2)
    return report({name: dict(figures) for name, figures in found.items()})


def growth(requests: int) -> int:
    """Print memory over `requests` and with many streams at once; 1 when it grew, or Envoy has less."""
    with tempfile.TemporaryDirectory() as given, contextlib.ExitStack() as stack:
        engine = stack.enter_context(mock_engine())
        place = stack.enter_context(ours(engine, Path(given)))
        seen: list[float] = []
        for _ in range(5):
            flags = ["--requests", str(requests // 5), "--seconds", "3600"]
            load(place, *flags, "--connections", str(CONNECTIONS))
            seen.append(memory_mb(place.pid))
        print(f"memory over {requests} requests: {', '.join(f'{one:.1f}' for one in seen)} MB")
        highest = many_streams(place)
        is_more = False
        try:
            beside = stack.enter_context(peer("envoy", engine, Path(given) / "envoy", PROXY_CORE))
            is_more = highest > many_streams(beside)
        except (NotHere, LoadFailed) as exc:
            print(f"envoy: left out, {exc}")
    return int(seen[-1] > MOST_GROWTH * seen[0] or is_more)


def many_streams(place: Running) -> float:
    """Have a proxy relay many streams at once; return its memory at the highest, in MB."""
    before = cpu_s(place.pid)
    streamed = load(place, "--seconds", "5", "--connections", str(MANY_STREAMS), "--stream")
    us = 1e6 * (cpu_s(place.pid) - before) / streamed["events"]
    highest = highest_mb(place.pid)
    print(
        f"{place.name}: {MANY_STREAMS} streams at once: {us:.1f} us/event, "
        f"{streamed['finished']} finished, {highest:.1f} MB at the highest"
    )
    return highest


def report(found: dict[str, dict[str, list[float]]]) -> int:
    """Print medians and ratios, keep them, and return the exit code."""
    medians = {
        name: {figure: statistics.median(values) for figure, values in figures.items()}
        for name, figures in found.items()
    }
    base = medians["direct"]["p50_ms"]
    for name, one in medians.items():
        if name == "direct":
            continue
        print(
            f"{name:14} {one['us_a_request']:8.1f} us/request {one['us_an_event']:7.1f} us/event "
            f"{one['requests_a_second']:8.0f} requests/s  +{one['p50_ms'] - base:.2f} ms p50  "
            f"{one['memory_mb']:5.0f} MB"
        )
    ours_ = medians["rhodeck"]
    ratios = {
        **{
            f"requests a core, x {name}": one["us_a_request"] / ours_["us_a_request"]
            for name, one in medians.items()
            if name not in ("rhodeck", "direct")
        },
        **(
            {"time an event, x nginx": ours_["us_an_event"] / medians["nginx"]["us_an_event"]}
            if "nginx" in medians
            else {}
        ),
    }
    for name, ratio in ratios.items():
        print(f"{name:36} {ratio:6.2f}")
    result = {"claim": "gateway", "medians": medians, "ratios": ratios, "machine": machine()}
    (ROOT / "benchmarks" / "results" / "gateway.json").write_text(json.dumps(result, indent=1) + "\n")
    is_slow = ratios.get("requests a core, x vllm-router", 1.0) < FLOOR_ROUTER
    is_slow |= ratios.get("requests a core, x litellm", FLOOR_LITELLM) < FLOOR_LITELLM
    return int(is_slow or ratios.get("time an event, x nginx", 0.0) > FLOOR_EVENT)


if __name__ == "__main__":
    sys.exit(main())
