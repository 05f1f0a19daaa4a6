"""Claim: a round of 1,000 nodes is over within 5 s, and a slow tenth of them delays nobody.

Small processes play the nodes (consecutive pages of vLLM 0.32.0, closing after each answer); the slow ones
answer never. Ours is the controller's scraper at its usual period and deadline. Rounds with and
without slow nodes in turn. The round is over for a node when its page was read; figures are over the nodes
that answer: the last of them, and how long their pages took (median, p99). Exit code 1 when one is over its
goal by more than a third.

`--nodes N --rounds N` for other sizes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import uvloop  # noqa: E402 # the packages next to this folder

from benchmarks.parse import machine, pages  # noqa: E402
from control.fetch import open_session  # noqa: E402
from control.own_metrics import ControlMetrics  # noqa: E402
from control.rounds import NodeResult, Target  # noqa: E402
from control.scrape import Scraper  # noqa: E402
from fleet.clock import SystemClock  # noqa: E402

PERIOD_S, DEADLINE_S = 10.0, 5.0
ROUND_GOAL_S, DELAY_GOAL_S = 5.0, 0.05
TOLERANCE = 1.3
SERVERS = 2


class Node(asyncio.Protocol):
    """A connection to a node: one answer and it closes; those under /slow/ say nothing."""

    bodies: list[bytes] = []  # noqa: RUF012
    count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET /slow/"):
            return
        body = Node.bodies[Node.count % len(Node.bodies)]
        Node.count += 1
        self._transport.write(  # type: ignore[attr-defined]
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close\r\n"
            b"Content-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
        )
        self._transport.close()


async def serve() -> None:
    """Serve until killed; print the port first."""
    Node.bodies = pages()[:4]
    server = await asyncio.get_running_loop().create_server(Node, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def server() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


class Timed(Scraper):
    """The scraper, noting when each node was done."""

    done_s: dict[str, float]

    async def _node(self, target: Target, delay_s: float) -> NodeResult:
        result = await super()._node(target, delay_s)
        self.done_s[target.name] = time.perf_counter()
        return result


def targets(ports: Sequence[int], nodes: int, *, slow: bool) -> list[Target]:
    kinds = ["slow" if slow and number % 10 == 3 else "m" for number in range(nodes)]
    return [
        Target(f"n{i}", f"http://127.0.0.1:{ports[i % len(ports)]}/{kind}/{i}", "p")
        for i, kind in enumerate(kinds)
    ]


async def rounds(ports: Sequence[int], nodes: int, count: int) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {"healthy": [], "slow tenth": []}
    clock = SystemClock()
    async with open_session() as http:
        metrics = ControlMetrics()
        scraper = Timed(http, clock, metrics, period_s=PERIOD_S, deadline_s=DEADLINE_S, connections=512)
        for number in range(count + 1):
            for kind in found:
                fleet = targets(ports, nodes, slow=kind == "slow tenth")
                scraper.done_s, started = {}, time.perf_counter()
                cpu = time.process_time()
                round_ = await scraper.run(fleet, [], clock.now())
                answered = [node for node in round_.nodes if node.reason is None]
                expected = sum("/m/" in target.url for target in fleet)
                if number:
                    fetch = sorted(node.fetch_s or 0.0 for node in answered)
                    found[kind].append(
                        {
                            "last_s": max(scraper.done_s[node.node] for node in answered) - started,
                            "fetch_median_s": statistics.median(fetch),
                            "fetch_p99_s": fetch[math.ceil(0.99 * len(fetch)) - 1],
                            "missing": expected - len(answered),
                            "cpu_s": time.process_time() - cpu,
                        }
                    )
    return found


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--nodes", type=int, default=1000)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--serve", action="store_true")
    chosen = arguments.parse_args()
    if chosen.serve:
        uvloop.run(serve())
        return 0
    with ExitStack() as stack:
        ports = [stack.enter_context(server()) for _ in range(SERVERS)]
        found = uvloop.run(rounds(ports, chosen.nodes, chosen.rounds))
    return report(found, chosen.nodes)


def report(found: dict[str, list[dict[str, float]]], nodes: int) -> int:
    medians: dict[str, dict[str, float]] = {}
    for kind, each in found.items():
        medians[kind] = {name: statistics.median(one[name] for one in each) for name in each[0]}
        print(f"{kind:12} " + ", ".join(f"{name} {value:.3f}" for name, value in medians[kind].items()))
    healthy, slow = medians["healthy"], medians["slow tenth"]
    goals: dict[str, tuple[float, float]] = {
        f"last of {nodes} nodes, s": (healthy["last_s"], ROUND_GOAL_S),
        "last of those beside a slow tenth, s": (slow["last_s"], ROUND_GOAL_S),
        "their median page later than without, s": (
            slow["fetch_median_s"] - healthy["fetch_median_s"],
            DELAY_GOAL_S,
        ),
        "nodes that answered and were missed": (healthy["missing"] + slow["missing"], 0.0),
    }
    for name, (value, goal) in goals.items():
        print(f"{name:42} {value:8.3f}  goal {goal:g}: {'met' if value <= goal else 'NOT met'}")
    result: dict[str, Any] = {
        "claim": "round",
        "nodes": nodes,
        "medians": medians,
        "goals": {name: {"value": value, "goal": goal} for name, (value, goal) in goals.items()},
        "machine": machine(),
    }
    (ROOT / "benchmarks" / "results" / "round.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(value <= TOLERANCE * goal for value, goal in goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
