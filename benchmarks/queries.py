"""Claim: six hours of 100 nodes read as fast as from Prometheus, thirty days from rollups within 100 ms.

One fleet's six hours are put into Postgres (as rounds, rolled up by our own roller) and into a Prometheus
(its own blocks, by promtool): the same values. Then both are asked in turn, A B A B: every sample of six
scalars, and four scalars per node and minute; the answer is had whole, Prometheus's JSON unparsed. The
thirty days of rollups are made in the database and asked of the functions the pages call. Wall
milliseconds: min, median, max; processor time of server and client together beside them, which other work
on the machine does not move. Exit code 1 when a ratio of medians is over its goal by more than a third.

`--nodes N --rounds N` for other sizes, `--month-nodes N` for the month.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sqlalchemy import Engine, text  # noqa: E402 # the packages next to this folder
from sqlalchemy.orm import Session  # noqa: E402

from benchmarks.parse import machine  # noqa: E402
from benchmarks.scrape import cpu_s  # noqa: E402
from control.database import make_engine, session_scope, upgrade  # noqa: E402
from control.embedded import EmbeddedPostgres, socket_dsn  # noqa: E402
from control.panels import node_panel  # noqa: E402
from control.partitions import make_partition  # noqa: E402
from control.queries_history import health_history, latency_history, latency_timeline  # noqa: E402
from control.queries_traffic_history import traffic_history  # noqa: E402
from control.rollup import Roller  # noqa: E402
from control.rollup_due import mark, mark_rounds  # noqa: E402
from control.tables_rollup import Level  # noqa: E402
from fleet.clock import SystemClock  # noqa: E402
from tests.peers import environment, program  # noqa: E402
from tests.postgres_server import open_folder  # noqa: E402

START = datetime(2026, 3, 2, 0, 0, tzinfo=UTC)
SPAN = timedelta(hours=6)
PERIOD_S = 10
MONTH = timedelta(days=30)
TOLERANCE = 1.3
MONTH_GOAL_MS = 100.0
SCALARS = (
    "running",
    "waiting",
    "kv_used_ratio",
    "completed_rate",
    "prompt_tokens_rate",
    "output_tokens_rate",
)
#: A round of node n at second t, in SQL over `n` and `t`; the counters are increments of the round.
VALUES = {
    "running": "(50 + 40 * sin(t / 600.0 + n))::int",
    "waiting": "(10 + 9 * cos(t / 300.0 + n))::int",
    "kv_used_ratio": "round((0.5 + 0.4 * sin(t / 900.0 + n))::numeric, 4)::float8",
    "completed": "(20 + 10 * sin(t / 450.0 + n))::int",
    "prompt_tokens": "(10000 + 5000 * sin(t / 500.0 + n))::int",
    "generation_tokens": "(6000 + 3000 * cos(t / 700.0 + n))::int",
}
HISTOGRAMS = 7
COUNTS = "ARRAY(SELECT (b * random() * 9)::bigint FROM generate_series(1, 22) AS b WHERE n IS NOT NULL)"
EDGES = [0.001 * 1.6**i for i in range(21)]


def fill_rounds(engine: Engine, nodes: int) -> None:
    """Put the rounds in as a scraper would have: wide rows with seven histograms."""
    histograms = ("ttft", "itl", "queue_wait", "e2e", "prompt_len", "output_len", "step")
    with session_scope(engine) as session:
        session.execute(text("SET LOCAL statement_timeout = 0"))
        session.execute(text("INSERT INTO pool (name, models, created_at) VALUES ('p', '{m}', now())"))
        session.execute(
            text(
                "INSERT INTO node (name, pool, base_url, price_class, state, created_at) "
                "SELECT 'node-' || lpad(n::text, 4, '0'), 'p', 'http://n' || n, 'spot', 'active', now() "
                "FROM generate_series(0, :last) AS n"
            ),
            {"last": nodes - 1},
        )
        session.execute(text("INSERT INTO histogram_edges (edges) VALUES (:edges)"), {"edges": EDGES})
        for table in ("sample", "gateway_sample", "health"):
            make_partition(session, table, START, START + SPAN)
        columns = ["at", "node", "engine", "model", "covered_s", *VALUES]
        values = [
            ":start + make_interval(secs => t)", "'node-' || lpad(n::text, 4, '0')", "'0'", "'m'",
            f"{PERIOD_S}::float8", *VALUES.values(),
        ]  # fmt: skip
        for prefix in histograms:
            columns += [f"{prefix}_edges", f"{prefix}_counts"]
            values += ["1", COUNTS]
        session.execute(
            text(
                f"INSERT INTO sample ({', '.join(columns)}) SELECT {', '.join(values)} "
                "FROM generate_series(0, :seconds, :period) AS t, generate_series(0, :last) AS n"
            ),
            {
                "start": START, "seconds": int(SPAN.total_seconds()) - 1, "period": PERIOD_S,
                "last": nodes - 1,
            },
        )  # fmt: skip
        stamps = [START + timedelta(seconds=s) for s in range(0, int(SPAN.total_seconds()), PERIOD_S)]
        session.execute(
            text("INSERT INTO round VALUES (:at, :period, 1, 0, :nodes, :nodes)"),
            [{"at": at, "period": PERIOD_S, "nodes": nodes} for at in stamps],
        )
        mark_rounds(session, stamps, PERIOD_S)


def fill_month(engine: Engine, nodes: int) -> None:
    """Make thirty days of hours: verdicts, engines and tenants of a fleet of `nodes`."""
    since = START - MONTH
    series = "generate_series(:since, :until - interval '1 hour', interval '1 hour') AS at"
    span = {"since": since, "until": START}
    gauges = "rho_sum, rho_n, rho_low, rho_high, service_rate_sum, service_rate_n, arrival_rate_sum"
    numbers = "random() * 360, 360, random(), 1 + random(), 3600 * random(), 360, 3000 * random()"
    with session_scope(engine) as session:
        session.execute(text("SET LOCAL statement_timeout = 0"))
        for table in ("health_hour", "engine_hour", "gateway_hour"):
            make_partition(session, table, since, START)
        histograms = ("ttft", "itl", "queue_wait", "e2e")
        columns = ", ".join(f"{prefix}_edges, {prefix}_counts" for prefix in histograms)
        counts = ", ".join(f"1, {COUNTS}" for _ in histograms)
        node = "'node-' || lpad(n::text, 4, '0')"
        for scope, engine_scope, name, last in (
            ("node", "engine", node, nodes - 1),
            ("fleet", "fleet", "''", 0),
        ):
            every = f"FROM {series}, generate_series(0, {last}) AS n"
            session.execute(
                text(
                    "INSERT INTO health_hour (scope, name, at, last_at, rounds, partial, saturated, "
                    f"waiting_max, kv_used_ratio_max, {gauges}) "
                    f"SELECT '{scope}', {name}, at, at, 360, 0, 0, 9 * random(), random(), {numbers} "
                    f"{every}"
                ),
                span,
            )
            session.execute(
                text(
                    "INSERT INTO engine_hour (scope, name, engine, at, last_at, rounds, covered_s, "
                    f"completed, generation_tokens, {columns}) "
                    f"SELECT '{engine_scope}', {name}, '', at, at, 360, 3600, 7200, 99999, {counts} {every}"
                ),
                span,
            )
        session.execute(
            text(
                "INSERT INTO gateway_hour (gateway, tenant, tier, at, last_at, rounds, covered_s, "
                "counted_s, offered, dispatched, output_tokens, outcomes, ttft_edges, ttft_counts) "
                "SELECT '', 'tenant-' || n, 'interactive', at, at, 720, 7200, 3600, 100, 90, 9999, "
                f'\'{{"completed": 90, "rejected_queue_full": 10}}\', 1, {COUNTS} '
                f"FROM {series}, generate_series(1, 100) AS n"
            ),
            span,
        )
        days = [since + timedelta(days=day) for day in range(MONTH.days)]
        mark(session, Level.DAY, [(day, day) for day in days])
    Roller(engine, SystemClock()).run(START, budget_s=600)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("SET statement_timeout = 0"))
        connection.execute(text("VACUUM (ANALYZE)"))  # as autovacuum has done by then


def open_metrics(path: Path, engine: Engine, nodes: int) -> None:
    """Write the same values for promtool: a line a sample, in the order of metric, node, time."""
    with Session(engine) as session, path.open("w") as out:
        panel = node_panel(session, SCALARS, START, START + SPAN, level=Level.RAW)
        stamps = [START.timestamp() + PERIOD_S * i for i in range(panel.values["running"].shape[1])]
        for name in SCALARS:
            out.write(f"# TYPE {name} gauge\n")
            for node, values in zip(panel.nodes, panel.values[name], strict=True):
                head = f'{name}{{instance="{node}"}} '
                out.writelines(f"{head}{v:.6g} {t:.0f}\n" for v, t in zip(values, stamps, strict=True))
        out.write("# EOF\n")
    assert panel.values["running"].shape[0] == nodes


@contextmanager
def prometheus(folder: Path, engine: Engine, nodes: int) -> Iterator[tuple[str, int]]:
    """A Prometheus whose blocks hold the fleet's six hours. Yields its address and process."""
    source, data = folder / "samples.txt", folder / "data"
    open_metrics(source, engine, nodes)
    tool = [str(program("promtool")), "tsdb", "create-blocks-from", "openmetrics", str(source), str(data)]
    subprocess.run(tool, check=True, capture_output=True, env=environment())
    config = folder / "prometheus.yml"
    config.write_text("scrape_configs: []\n")
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        [
            str(program("prometheus")), f"--config.file={config}", f"--storage.tsdb.path={data}",
            "--storage.tsdb.retention.time=100y", "--web.listen-address=127.0.0.1:0", "--log.level=info",
        ],
        stdout=log, stderr=log, env=environment(),
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{_port(process)}", process.pid
    finally:
        process.terminate()
        process.wait(30)
        log.close()


def _port(process: subprocess.Popen[bytes]) -> int:
    import psutil

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        for connection in psutil.Process(process.pid).net_connections("tcp"):
            if connection.status == "LISTEN":
                port = connection.laddr.port
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5)
                except OSError:
                    break
                return port
        time.sleep(0.1)
    raise SystemExit("prometheus did not start")


def query_range(base: str, query: str, step_s: int) -> bytes:
    given = {
        "query": query, "step": step_s, "start": START.timestamp(),
        "end": (START + SPAN).timestamp() - step_s,
    }  # fmt: skip
    url = f"{base}/api/v1/query_range?{urllib.parse.urlencode(given)}"
    with urllib.request.urlopen(url, timeout=120) as answer:
        return answer.read()


def check_equal(base: str, engine: Engine) -> None:
    """Stop unless both sides tell the same: a node's minutes of one scalar."""
    body = json.loads(query_range(base, 'avg_over_time(running{instance="node-0000"}[50s])', 60))
    theirs = {float(at): float(v) for at, v in body["data"]["result"][0]["values"]}
    with Session(engine) as session:
        ours = node_panel(session, ["running"], START, START + SPAN, level=Level.MINUTE).values["running"][
            0
        ]
    # at a minute's end its last 50 s hold the samples of its seconds 10 to 60, the newest being the next's
    minutes = [float(v) for at, v in sorted(theirs.items())][1:]
    if not np.allclose(minutes, ours[: len(minutes)], rtol=0.05):
        raise SystemExit("the two do not hold the same values; no figure means anything")


Figures = dict[str, list[float]]


def timed(
    ways: dict[str, Callable[[], object]], rounds: int, servers: dict[str, int]
) -> tuple[Figures, Figures]:
    """Return wall and processor milliseconds of each way, the latter of server and client together."""
    wall: Figures = {name: [] for name in ways}
    cpu: Figures = {name: [] for name in ways}
    for number in range(rounds + 1):  # the first warms up
        for name, way in ways.items():
            server = servers["prometheus" if name.endswith("prometheus") else "rhodeck"]
            began_cpu_s, began_s = time.process_time() + cpu_s(server), time.perf_counter()
            way()
            ended_s = time.perf_counter()
            if number:
                wall[name].append(1000 * (ended_s - began_s))
                cpu[name].append(1000 * (time.process_time() + cpu_s(server) - began_cpu_s))
    return wall, cpu


def in_session(engine: Engine, ask: Callable[[Session], object]) -> Callable[[], object]:
    def asked() -> object:
        with Session(engine) as session:
            return ask(session)

    return asked


def month_ways(engine: Engine) -> dict[str, Callable[[], object]]:
    since, until = START - MONTH, START
    return {
        "month: rho of the fleet": in_session(
            engine, lambda s: health_history(s, "fleet", "", since, until)
        ),
        "month: rho of a node": in_session(
            engine, lambda s: health_history(s, "node", "node-0001", since, until)
        ),
        "month: latency quantiles of the fleet": in_session(
            engine, lambda s: latency_history(s, "fleet", "", since, until)
        ),
        "month: TTFT of the fleet by bucket": in_session(
            engine, lambda s: latency_timeline(s, "ttft_s", "fleet", "", since, until)
        ),
        "month: 100 tenants' traffic": in_session(engine, lambda s: traffic_history(s, since, until)),
    }


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--nodes", type=int, default=100)
    arguments.add_argument("--month-nodes", type=int, default=1000)
    arguments.add_argument("--rounds", type=int, default=5)
    chosen = arguments.parse_args()
    with open_folder() as place, EmbeddedPostgres(place / "pg") as server:
        upgrade(socket_dsn(server.folder))
        engine = make_engine(socket_dsn(server.folder))
        try:
            postgres = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
            return run(engine, postgres, chosen.nodes, chosen.month_nodes, chosen.rounds)
        finally:
            engine.dispose()


def run(engine: Engine, postgres: int, nodes: int, month_nodes: int, rounds: int) -> int:
    fill_rounds(engine, nodes)
    started = time.perf_counter()
    Roller(engine, SystemClock()).run(START + timedelta(days=1), budget_s=3600)
    print(f"{nodes} nodes x 6 h rolled up in {time.perf_counter() - started:.1f} s")
    span = (START, START + SPAN)
    with tempfile.TemporaryDirectory() as folder, prometheus(Path(folder), engine, nodes) as (base, peer):
        disk = disk_bytes(engine, Path(folder) / "data", nodes)
        fill_month(engine, month_nodes)
        check_equal(base, engine)
        ways: dict[str, Callable[[], object]] = {
            "raw: rhodeck": in_session(engine, lambda s: node_panel(s, SCALARS, *span, level=Level.RAW)),
            "raw: prometheus": lambda: [query_range(base, name, PERIOD_S) for name in SCALARS],
            "minutes: rhodeck": in_session(
                engine, lambda s: node_panel(s, SCALARS[:4], *span, level=Level.MINUTE)
            ),
            "minutes: prometheus": lambda: [
                query_range(base, f"avg_over_time({name}[1m])", 60) for name in SCALARS[:4]
            ],
        }
        servers = {"rhodeck": postgres, "prometheus": peer}
        wall, cpu = timed(ways | month_ways(engine), rounds, servers)
    return report(wall, cpu, disk, nodes, month_nodes)


def disk_bytes(engine: Engine, folder: Path, nodes: int) -> dict[str, float]:
    """Return bytes for each number a round brought (for Prometheus: sample), blocks and tables whole.

    Before the month is put in: what the six hours take as rounds, as minutes and as hours.
    """
    count = nodes * SPAN.total_seconds() / PERIOD_S
    numbers = count * (len(VALUES) + HISTOGRAMS * (len(EDGES) + 1))
    found: dict[str, float] = {}
    with Session(engine) as session:
        for name, table in (("rounds", "sample"), ("minutes", "engine_minute"), ("hours", "engine_hour")):
            query = "SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree(:table) WHERE isleaf"
            found[name] = float(session.execute(text(query), {"table": table}).scalar_one()) / numbers
    blocks = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return found | {"prometheus": blocks / (count * len(SCALARS))}


def report(figures: Figures, cpu: Figures, disk: dict[str, float], nodes: int, month_nodes: int) -> int:
    medians = {name: statistics.median(values) for name, values in figures.items()}
    spent = {name: statistics.median(values) for name, values in cpu.items()}
    for name, values in figures.items():
        print(
            f"{name:40} {min(values):8.1f} {medians[name]:8.1f} {max(values):8.1f} ms, "
            f"{spent[name]:.0f} ms of processors"
        )
    verdicts: dict[str, tuple[float, float]] = {}
    for what, taken in (("ratio to Prometheus", medians), ("ratio to Prometheus, processor time", spent)):
        for kind in ("raw", "minutes"):
            verdicts[f"{kind}, {what}"] = taken[f"{kind}: rhodeck"] / taken[f"{kind}: prometheus"], 1.0
    verdicts |= {
        f"{name}, ms": (value, MONTH_GOAL_MS) for name, value in medians.items() if name.startswith("month")
    }
    print("bytes a number: " + ", ".join(f"{name} {value:.2f}" for name, value in disk.items()))
    beyond = disk["minutes"] + disk["hours"]
    verdicts["disk beyond two days, ratio to Prometheus"] = (beyond / disk["prometheus"], 1.0)
    for name, (value, goal) in verdicts.items():
        print(f"{name:50} {value:8.2f}  goal {goal:g}: {'met' if value <= goal else 'NOT met'}")
    result = {
        "claim": "queries",
        "nodes": nodes,
        "month_nodes": month_nodes,
        "bytes_a_number": disk,
        "ms": {name: [min(v), statistics.median(v), max(v)] for name, v in figures.items()},
        "processor_ms": spent,
        "goals": {name: {"value": value, "goal": goal} for name, (value, goal) in verdicts.items()},
        "machine": machine(),
    }
    (ROOT / "benchmarks" / "results" / "queries.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(value <= TOLERANCE * goal for value, goal in verdicts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
