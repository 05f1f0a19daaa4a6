"""Claim: 5 million usage records a month leave in bounded memory, at a small multiple of Postgres's COPY.

An embedded Postgres holds the records (written by COPY). Each in a process of its own: `COPY ... TO STDOUT`
of the same rows in the order of their index, read and thrown away (the floor), and our CSV and Parquet to a
file, checked against SQL's sums as always. Figures: seconds, processor seconds of client and server and
their ratio to the floor (other work on the machine moves it little), peak resident memory of the process,
and how much more of it ten times the rows take. Exit code 1 when a ratio or the growth of memory is over
its bound.

`--records N` for other sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import psycopg  # noqa: E402 # the packages next to this folder

from benchmarks.parse import machine  # noqa: E402
from control.database import make_engine, upgrade  # noqa: E402
from control.embedded import EmbeddedPostgres, socket_dsn  # noqa: E402
from control.export_usage import usage_format, write_usage  # noqa: E402
from tests.postgres_server import open_folder  # noqa: E402

MONTHS = {"2026-10": 0.1, "2026-11": 1.0}  # the part of the records each month has
RATIO_BOUND, GROWTH_BOUND_MB = 6.0, 64.0
MODELS = ("llama-3.3-70b-instruct", "qwen3-32b", "mixtral-8x22b")
COLUMNS = (
    "gateway, spool, seq, request_id, tenant, key_id, tier, model, endpoint, node, pool, outcome, "
    "prompt_tokens, cached_tokens, output_tokens, exact, reserved_tokens, queued_s, ttft_s, engine_s, "
    "finished_at, received_at"
)


def lines(month: str, records: int) -> Iterator[str]:
    """Records of a month as COPY's text, evenly over its days, by eight gateways."""
    rng = random.Random(7)
    start = datetime.fromisoformat(f"{month}-01T00:00:00+00:00")
    step = timedelta(days=30) / records
    for number in range(records):
        at = (start + number * step).isoformat()
        prompt, output = rng.randrange(1, 8000), rng.randrange(1, 2000)
        wait, engine = rng.random(), output * 0.02
        yield (
            f"gw-{number % 8}\tspool-{month}\t{number // 8}\treq-{rng.getrandbits(96):024x}\t"
            f"tenant-{number % 211}\tkey-{number % 499}\tbatch\t{MODELS[number % 3]}\tchat\t"
            f"node-{number % 64}\th100\tcompleted\t{prompt}\t\\N\t{output}\tt\t{prompt + 2000}\t"
            f"{wait}\t{wait + 0.2}\t{engine}\t{at}\t{at}\n"
        )


def fill(dsn: str, records: int) -> None:
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
        for month, part in MONTHS.items():
            with cursor.copy(f"COPY usage_record ({COLUMNS}) FROM STDIN") as copy:
                block: list[str] = []
                for line in lines(month, int(records * part)):
                    block.append(line)
                    if len(block) == 10_000:
                        copy.write("".join(block))
                        block.clear()
                copy.write("".join(block))
        cursor.execute("ANALYZE usage_record")


def floor(dsn: str, month: str) -> None:
    """Read what COPY gives and throw it away."""
    following = {"2026-10": "2026-11-01", "2026-11": "2026-12-01"}[month]
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
        query = (
            f"COPY (SELECT {COLUMNS} FROM usage_record WHERE finished_at >= '{month}-01Z' "
            f"AND finished_at < '{following}Z' ORDER BY finished_at) TO STDOUT (FORMAT csv)"
        )
        with cursor.copy(query.encode()) as copy:
            for _ in copy:
                pass


def once(dsn: str, what: str, month: str) -> dict[str, Any]:
    """Run one export in this process; return its seconds, memory and size."""
    started = time.monotonic()
    size = 0
    if what == "floor":
        floor(dsn, month)
    else:
        engine = make_engine(dsn, pool_size=1)
        with tempfile.TemporaryFile() as out:
            made = write_usage(
                engine, month, usage_format(what), out, zone=ZoneInfo("UTC"), now=datetime.now(UTC)
            )
            size = made.size
        engine.dispose()
    seconds = time.monotonic() - started
    return {"s": seconds, "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "size": size}


def server_cpu_s(folder: Path) -> float:
    """Processor seconds of the server, of its processes that ended and of those that still run."""
    server = int(next(folder.rglob("postmaster.pid")).read_text().split()[0])
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended in between
            continue
        if int(stat.parent.name) == server:
            ticks += sum(map(int, fields[11:15]))  # utime, stime, and those of children that ended
        elif int(fields[1]) == server:
            ticks += sum(map(int, fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def measured(folder: Path, dsn: str, what: str, month: str) -> dict[str, Any]:
    server_s, before = server_cpu_s(folder), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, __file__, "--once", what, "--month", month, "--dsn", dsn],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    client_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(done.stdout) | {"cpu_s": client_s + server_cpu_s(folder) - server_s}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--once", help=argparse.SUPPRESS)
    parser.add_argument("--month", help=argparse.SUPPRESS)
    parser.add_argument("--dsn", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.once:
        print(json.dumps(once(asked.dsn, asked.once, asked.month)))
        return 0
    figures: dict[str, Any] = {}
    goals: dict[str, dict[str, float]] = {}
    with open_folder() as folder, EmbeddedPostgres(folder):
        dsn = socket_dsn(folder)
        upgrade(dsn)
        plain = dsn.replace("postgresql+psycopg://", "postgresql://")
        fill(plain, asked.records)
        base = measured(folder, plain, "floor", "2026-11")
        figures["floor"] = base
        print(
            f"COPY to nowhere   {base['s']:7.1f} s  {base['cpu_s']:7.1f} s of processor         "
            f"{base['rss_mb']:6.0f} MB"
        )
        for what in ("csv", "parquet"):
            small = measured(folder, dsn, what, "2026-10")
            full = measured(folder, dsn, what, "2026-11")
            ratio, growth = full["cpu_s"] / base["cpu_s"], full["rss_mb"] - small["rss_mb"]
            figures[what] = full
            goals[f"{what}, times COPY"] = {"value": ratio, "goal": RATIO_BOUND}
            goals[f"{what}, MB that ten times the rows take"] = {"value": growth, "goal": GROWTH_BOUND_MB}
            print(
                f"{what:<17} {full['s']:7.1f} s  {full['cpu_s']:7.1f} s of processor  x{ratio:5.2f}   "
                f"{full['rss_mb']:6.0f} MB "
                f"(+{growth:.0f} MB over a tenth of the rows)  {full['size'] / 1e6:8.1f} MB file"
            )
    for name, each in goals.items():
        is_met = each["value"] <= each["goal"]
        print(f"{name:45} {each['value']:8.2f}  goal {each['goal']:g}: {'met' if is_met else 'NOT met'}")
    result = {"claim": "export", "records": asked.records, **figures, "goals": goals, "machine": machine()}
    (ROOT / "benchmarks" / "results" / "export.json").write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(each["value"] <= each["goal"] for each in goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
