"""Claim: our reader takes at most a fortieth of prometheus_client's time a sample on real vLLM pages.

Forty consecutive pages of one engine (vLLM 0.32.0) are read by each way in turn, A B C A B C, for seven
rounds; the figure is the process's CPU time, printed as ns for each sample on the page. Each way must find
the same request counts. Exit code 1 when the ratio of medians is below the goal by more than a third.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from compiled import load  # noqa: E402 # the packages next to this folder
from fleet.dialect_names import WANTED_PREFIXES  # noqa: E402
from fleet.dialects import read_page  # noqa: E402
from fleet.exposition import read_families  # noqa: E402

GOAL = 40.0
TOLERANCE = 1.3
ROUNDS = 7
PAGES = 40
ALL = (*WANTED_PREFIXES, "python_", "process_", "http_")
COUNTER = "vllm:e2e_request_latency_seconds_count"


def pages() -> list[bytes]:
    """Consecutive pages of one life, one second apart."""
    with tarfile.open(ROOT / "tests" / "data" / "metrics" / "series" / "scrapes.tar.xz") as archive:
        names = sorted(archive.getnames())[:PAGES]
        return [archive.extractfile(name).read() for name in names]  # type: ignore[union-attr]


def by_client(body: bytes) -> float:
    families = list(text_string_to_metric_families(body.decode()))
    return next(s.value for family in families for s in family.samples if s.name == COUNTER)


def by_reader(prefixes: tuple[str, ...]) -> Callable[[bytes], float]:
    return lambda body: read_families(body, prefixes=prefixes).series[COUNTER][0][1]


def by_page(body: bytes) -> float:
    return read_page(body, source="x").engines[0].histograms["e2e_s"].count


WAYS: dict[str, Callable[[bytes], float]] = {
    "prometheus_client": by_client,
    "reader": by_reader(WANTED_PREFIXES),
    "reader, all families": by_reader(ALL),
    "whole page reading": by_page,
}


def main() -> int:
    bodies = pages()
    sizes = [sum(line[:1] not in {b"#", b""} for line in body.split(b"\n")) for body in bodies]
    answers = {name: [way(body) for body in bodies] for name, way in WAYS.items()}  # warm-up, and the check
    if any(answer != answers["prometheus_client"] for answer in answers.values()):
        print("the ways do not agree; no figure means anything", file=sys.stderr)
        return 1
    figures: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(ROUNDS):
        for name, way in WAYS.items():
            started = time.process_time_ns()
            for body in bodies:
                way(body)
            figures[name].append((time.process_time_ns() - started) / sum(sizes))
    base = statistics.median(figures["prometheus_client"])
    print(f"{PAGES} pages, {sum(sizes) // PAGES} samples each, {ROUNDS} rounds; CPU ns a sample")
    rows: dict[str, dict[str, float]] = {}
    for name, values in figures.items():
        median = statistics.median(values)
        rows[name] = {"min": min(values), "median": median, "max": max(values), "ratio": base / median}
        print(f"{name:22} {min(values):8.0f} {median:8.0f} {max(values):8.0f}  {base / median:6.1f} x")
    ratio = rows["reader"]["ratio"]
    result = {
        "claim": "parse",
        "goal_ratio": GOAL,
        "ratio": ratio,
        "ns_a_sample": rows,
        "machine": machine(),
    }
    (ROOT / "benchmarks" / "results" / "parse.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"reader is {ratio:.1f} x prometheus_client; goal {GOAL:g} x")
    return 0 if ratio >= GOAL / TOLERANCE else 1


def machine() -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "hot_modules": load.state(),
    }


if __name__ == "__main__":
    sys.exit(main())
