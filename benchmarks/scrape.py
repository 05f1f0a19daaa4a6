"""Claim: reading and storing a sample costs at most 1.2 times what it costs Prometheus, nodes closing.

One small server plays N vLLM nodes (consecutive pages of vLLM 0.32.0), once keeping connections and once
closing them after each answer, as vLLM's five seconds of keep-alive do to a scraper of ten. Ours (scraper,
reader, one COPY a round, the Postgres backends' time counted in), Prometheus and VictoriaMetrics read it in
turn, A B C A B C. The figure is processor time of all processes of the thing under test for each sample on
the pages that were served. Ingest is compared with SQLAlchemy's insertmanyvalues. Exit code 1 when a ratio
of medians is over its goal by more than a third.

`--nodes N --seconds S --windows W` for other sizes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sqlalchemy import Engine, insert, text  # noqa: E402 # the packages next to this folder

from benchmarks.parse import machine, pages  # noqa: E402
from control.database import make_engine, session_scope, upgrade  # noqa: E402
from control.embedded import EmbeddedPostgres, socket_dsn  # noqa: E402
from control.fetch import open_session  # noqa: E402
from control.own_metrics import ControlMetrics  # noqa: E402
from control.partitions import make_partitions  # noqa: E402
from control.rounds import Round, Target  # noqa: E402
from control.sample_store import EdgeIds, edges_of, write_round  # noqa: E402
from control.scrape import Scraper  # noqa: E402
from control.tables import SampleRow  # noqa: E402
from fleet.clock import SystemClock  # noqa: E402
from tests.peers import environment, program  # noqa: E402
from tests.postgres_server import open_folder  # noqa: E402

PERIOD_S = 2
TOLERANCE = 1.3
GOALS = {"closing": 1.2, "kept": 1.2}
INGEST_GOAL = 0.5
SAMPLES = statistics.mean(
    sum(line[:1] not in {b"#", b""} for line in body.split(b"\n")) for body in pages()
)


class Pages(asyncio.Protocol):
    """The server's side of one connection: each request for /m/<node> gets the node's next page."""

    bodies: list[bytes] = []  # noqa: RUF012
    asked: dict[bytes, int] = {}  # noqa: RUF012
    served = 0
    is_closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._data = b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        while b"\r\n\r\n" in self._data:
            head, self._data = self._data.split(b"\r\n\r\n", 1)
            path = head.split(b" ", 2)[1]
            if path == b"/served":
                body = str(Pages.served).encode()
            else:
                count = Pages.asked[path] = Pages.asked.get(path, -1) + 1
                body = Pages.bodies[min(count, len(Pages.bodies) - 1)]
                Pages.served += 1
            ending = b"Connection: close\r\n" if Pages.is_closing else b""
            self._transport.write(  # type: ignore[attr-defined]
                b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: "
                + str(len(body)).encode() + b"\r\n" + ending + b"\r\n" + body
            )  # fmt: skip
            if Pages.is_closing:
                self._transport.close()


async def serve(is_closing: bool) -> None:
    """Serve until killed; print the port first."""
    Pages.bodies, Pages.is_closing = pages(), is_closing
    server = await asyncio.get_running_loop().create_server(Pages, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def page_server(kind: str) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, __file__, "--serve", kind], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def served(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/served", timeout=10) as answer:
        return int(answer.read())


def cpu_s(pid: int) -> float:
    """Processor seconds of a process and its children, ended ones included."""
    total = 0.0
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def scrape_with_ours(port: int, nodes: int, dsn: str, seconds: float) -> None:
    """Run rounds for `seconds`, store each, print the processor seconds spent after a warm-up round."""
    import uvloop

    async def run() -> None:
        clock, metrics, ids = SystemClock(), ControlMetrics(), EdgeIds()
        engine = make_engine(dsn)
        targets = [Target(f"n{i}", f"http://127.0.0.1:{port}/m/{i}", "p") for i in range(nodes)]
        async with open_session() as http:
            scraper = Scraper(http, clock, metrics, period_s=PERIOD_S, deadline_s=1.5, connections=512)
            began = started = ended = 0.0
            count = 0
            while not count or clock.monotonic_s() < began + seconds:
                due = clock.monotonic_s() + PERIOD_S
                round_ = await scraper.run(targets, [], clock.now())
                await asyncio.to_thread(store, engine, ids, round_)
                if not count:  # layouts learnt, connections and tables warm
                    began, started = clock.monotonic_s(), time.process_time()
                    print("warm", flush=True)
                count += 1
                ended = clock.monotonic_s()
                await asyncio.sleep(max(0.0, due - clock.monotonic_s()))
        own = {"cpu_s": time.process_time() - started, "rounds": count - 1, "wall_s": ended - began}
        print(json.dumps(own), flush=True)
        engine.dispose()

    uvloop.run(run())


def store(engine: Engine, ids: EdgeIds, round_: Round) -> None:
    ids.learn(engine, edges_of(round_))
    with session_scope(engine) as session:
        write_round(session, round_, ids)


def by_ours(port: int, nodes: int, seconds: float, server: EmbeddedPostgres) -> tuple[float, float]:
    """Return (processor ns a sample, scrapes a second) of our scraper with its Postgres."""
    dsn = socket_dsn(server.folder)
    argv = [sys.executable, __file__, "--ours", str(port), str(nodes), dsn, str(seconds)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "warm\n"
    postgres = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
    before, count = cpu_s(postgres), served(port)
    own = json.loads(process.stdout.readline())
    spent = own["cpu_s"] + cpu_s(postgres) - before
    scrapes = served(port) - count
    process.communicate(timeout=60)
    return 1e9 * spent / (scrapes * SAMPLES), scrapes / own["wall_s"]


def by_peer(name: str, port: int, nodes: int, seconds: float) -> tuple[float, float]:
    """Return the same of Prometheus or VictoriaMetrics, each with its store."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "scrape.yml"
        jobs = [
            {
                "job_name": f"n{i}", "metrics_path": f"/m/{i}",
                "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
            }
            for i in range(nodes)
        ]  # fmt: skip
        interval = {"scrape_interval": f"{PERIOD_S}s"}
        config.write_text(json.dumps({"global": interval, "scrape_configs": jobs}))
        arguments = {
            "prometheus": [
                f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
                "--web.listen-address=127.0.0.1:0", "--log.level=error",
            ],
            "victoria-metrics": [
                f"-promscrape.config={config}", f"-storageDataPath={folder}/data",
                "-httpListenAddr=127.0.0.1:0", "-loggerLevel=ERROR",
            ],
        }  # fmt: skip
        process = subprocess.Popen(
            [str(program(name)), *arguments[name]],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(),
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 60
            first = served(port)
            while served(port) < first + 2 * nodes:  # every target seen twice: warm
                if time.monotonic() > deadline or process.poll() is not None:
                    raise SystemExit(f"{name} does not scrape")
                time.sleep(0.2)
            before, count, began = cpu_s(process.pid), served(port), time.monotonic()
            time.sleep(seconds)
            spent, scrapes = cpu_s(process.pid) - before, served(port) - count
            return 1e9 * spent / (scrapes * SAMPLES), scrapes / (time.monotonic() - began)
        finally:
            process.terminate()
            process.wait(30)


def ingest(server: EmbeddedPostgres, nodes: int, rounds: int = 20) -> dict[str, list[float]]:
    """Return microseconds of processor time a node and round, client and server, by COPY and by INSERT."""
    from tests.integration.test_rollups import some_rounds

    engine = make_engine(socket_dsn(server.folder))
    postgres = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
    (sample,) = [r for r in some_rounds(1, range(40)) if all(n.samples for n in r.nodes)][:1]
    wide = tuple(
        sample.nodes[i % 3].__class__(f"n{i}", "p", 0.1, sample.nodes[i % 3].samples) for i in range(nodes)
    )
    ids = EdgeIds()
    ids.learn(engine, edges_of(sample))
    found: dict[str, list[float]] = {"copy": [], "insertmanyvalues": []}
    start = datetime.now(UTC).replace(microsecond=0)
    stamps = iter([start + timedelta(seconds=s) for s in range(100_000)])

    def by_copy() -> None:
        with session_scope(engine) as session:
            write_round(session, Round(next(stamps), 1.0, 0.1, 0.0, wide), ids)

    with session_scope(engine) as session:
        write_round(session, Round(next(stamps), 1.0, 0.1, 0.0, wide), ids)
        rows = [dict(row) for row in session.execute(text("SELECT * FROM sample ORDER BY at DESC LIMIT :n"),
                {"n": nodes}).mappings()]  # fmt: skip

    def by_insert() -> None:
        at = next(stamps)
        with session_scope(engine) as session:
            session.execute(insert(SampleRow), [row | {"at": at} for row in rows])

    ways: dict[str, Callable[[], None]] = {"copy": by_copy, "insertmanyvalues": by_insert}
    for number in range(6):
        for name, way in ways.items():
            before = time.process_time() + cpu_s(postgres)
            for _ in range(rounds):
                way()
            if number:
                spent = time.process_time() + cpu_s(postgres) - before
                found[name].append(1e6 * spent / (rounds * nodes))
    engine.dispose()
    return found


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--nodes", type=int, default=200)
    arguments.add_argument("--seconds", type=float, default=20)
    arguments.add_argument("--windows", type=int, default=3)
    arguments.add_argument("--serve", choices=["kept", "closing"])
    arguments.add_argument("--ours", nargs=4)
    chosen = arguments.parse_args()
    if chosen.serve:
        asyncio.run(serve(chosen.serve == "closing"))
        return 0
    if chosen.ours:
        port, nodes, dsn, seconds = chosen.ours
        scrape_with_ours(int(port), int(nodes), dsn, float(seconds))
        return 0
    figures: dict[str, list[float]] = {}
    with open_folder() as place, EmbeddedPostgres(place / "pg") as server:
        upgrade(socket_dsn(server.folder))
        engine = make_engine(socket_dsn(server.folder))
        with session_scope(engine) as session:
            make_partitions(session, datetime.now(UTC))
        engine.dispose()
        for _ in range(chosen.windows):
            for kind in GOALS:
                for name in ("rhodeck", "prometheus", "victoria-metrics"):
                    with page_server(kind) as port:
                        if name == "rhodeck":
                            ns, rate = by_ours(port, chosen.nodes, chosen.seconds, server)
                        else:
                            ns, rate = by_peer(name, port, chosen.nodes, chosen.seconds)
                    wanted = chosen.nodes / PERIOD_S
                    print(
                        f"{kind:8} {name:18} {ns:8.0f} ns/sample {rate:7.1f}/{wanted:g} scrapes/s",
                        flush=True,
                    )
                    if rate < 0.9 * wanted:
                        print(f"{kind:8} {name:18} did not keep up: void")
                        continue
                    figures.setdefault(f"{kind} {name}", []).append(ns)
        written = ingest(server, chosen.nodes)
    return report(figures, written, chosen.nodes)


def report(figures: dict[str, list[float]], written: dict[str, list[float]], nodes: int) -> int:
    medians = {name: statistics.median(values) for name, values in figures.items()}
    copy, many = (statistics.median(written[name]) for name in ("copy", "insertmanyvalues"))
    goals: dict[str, tuple[float, float]] = {}
    for kind, goal in GOALS.items():
        if f"{kind} rhodeck" in medians and f"{kind} prometheus" in medians:
            ratio = medians[f"{kind} rhodeck"] / medians[f"{kind} prometheus"]
            goals[f"{kind}: ratio to Prometheus"] = (ratio, goal)
            at_10_s = 10 / (medians[f"{kind} rhodeck"] * SAMPLES / 1e9)
            print(f"{kind}: {at_10_s:,.0f} nodes a core at 10 s")
    goals["ingest: ratio to insertmanyvalues"] = (copy / many, INGEST_GOAL)
    print(f"ingest {copy:.0f} us a node and round by COPY, {many:.0f} by insertmanyvalues")
    for name, (value, goal) in goals.items():
        print(f"{name:40} {value:6.2f}  goal {goal:g}: {'met' if value <= goal else 'NOT met'}")
    result = {
        "claim": "scrape",
        "nodes": nodes,
        "samples_a_page": SAMPLES,
        "ns_a_sample": {name: [min(v), statistics.median(v), max(v)] for name, v in figures.items()},
        "ingest_us": {name: [min(v), statistics.median(v), max(v)] for name, v in written.items()},
        "goals": {name: {"value": value, "goal": goal} for name, (value, goal) in goals.items()},
        "machine": machine(),
    }
    (ROOT / "benchmarks" / "results" / "scrape.json").write_text(json.dumps(result, indent=1) + "\n")
    missing = {f"{kind}: ratio to Prometheus" for kind in GOALS} - goals.keys()
    return 0 if not missing and all(value <= TOLERANCE * goal for value, goal in goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
