"""What the benchmark of pages found, as a table, and what of it is beyond a goal (`benchmarks/pages.py`).

Times are milliseconds of processor or wall, first paint seconds, sizes bytes. Prevents: a goal that is
judged in one way by the table and in another by the exit code.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

RERUN_MS, PAINT_S, TICK_KB, TICK_MS = 300.0, 3.0, 50.0, 30.0
MANY_P95_MS, MANY_CORE = 300.0, 0.6


@dataclass(slots=True)
class Figures:
    """What one page costs. Milliseconds, bytes; lists are one value a run."""

    first_wall_ms: float = 0.0
    first_cpu_ms: float = 0.0
    fresh_wall_ms: list[float] = field(default_factory=list[float])
    fresh_cpu_ms: list[float] = field(default_factory=list[float])
    fresh_database_ms: list[float] = field(default_factory=list[float])
    kept_wall_ms: list[float] = field(default_factory=list[float])
    kept_cpu_ms: list[float] = field(default_factory=list[float])
    tick_wall_ms: list[float] = field(default_factory=list[float])
    tick_cpu_ms: list[float] = field(default_factory=list[float])
    kept_tick_cpu_ms: list[float] = field(default_factory=list[float])
    tick_bytes: list[int] = field(default_factory=list[int])
    run_bytes: int = 0
    elements: int = 0
    questions: int = 0
    tick_questions: int = 0
    paint_s: float | None = None
    said: list[str] = field(default_factory=list[str])


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else 0.0


def table(found: dict[str, Figures]) -> str:
    """Return the table: a line a page, milliseconds."""
    lines = [
        f"{'':13} {'first':>6} {'run, answers fresh':>27} {'kept':>6} {'x bare':>7} {'asks':>5} {'KB':>6}"
        f" {'tick ms':>8} {'kept':>6} {'KB':>6} {'asks':>5} {'paint s':>8}",
        f"{'':13} {'cpu':>6} {'cpu':>6} {'+ db':>6} {'wall':>6} {'p95':>6} {'cpu':>6}",
    ]
    bare = statistics.median(found["bare"].kept_cpu_ms)
    for name, f in found.items():
        m = statistics.median
        tick = (
            f"{m(f.tick_cpu_ms):8.0f} {m(f.kept_tick_cpu_ms):6.0f} {max(f.tick_bytes) / 1024:6.0f} "
            f"{f.tick_questions:5}"
            if f.tick_cpu_ms
            else f"{'-':>8} {'-':>6} {'-':>6} {'-':>5}"
        )
        paint = "-" if f.paint_s is None else f"{f.paint_s:.1f}"
        lines.append(
            f"{name:13} {f.first_cpu_ms:6.0f} {m(f.fresh_cpu_ms):6.0f} {m(f.fresh_database_ms):6.0f} "
            f"{m(f.fresh_wall_ms):6.0f} {quantile(f.fresh_wall_ms, 0.95):6.0f} {m(f.kept_cpu_ms):6.0f} "
            f"{m(f.kept_cpu_ms) / bare:7.1f} {f.questions:5} {f.run_bytes / 1024:6.0f} {tick} {paint:>8}"
        )
    return "\n".join(lines)


def misses(found: dict[str, Figures], crowds: list[dict[str, float]], floor: float) -> list[str]:
    """Return what is beyond a goal, in words. `floor`: p95 of as many sessions of the bare page, ms."""
    said: list[str] = []
    bare = found["bare"]
    for name, f in found.items():
        if name == "bare":
            continue
        cost = statistics.median(f.fresh_cpu_ms) + statistics.median(f.fresh_database_ms)
        if cost > RERUN_MS:
            said.append(f"{name}: a run costs {cost:.0f} ms of processor, over {RERUN_MS:.0f}")
        ticked = statistics.median(f.kept_tick_cpu_ms) if f.kept_tick_cpu_ms else 0.0
        if ticked > TICK_MS:
            said.append(f"{name}: a tick costs {ticked:.0f} ms, over {TICK_MS:.0f}")
        if f.tick_bytes and max(f.tick_bytes) > 1024 * TICK_KB:
            said.append(f"{name}: a tick is {max(f.tick_bytes) / 1024:.0f} KB, over {TICK_KB:.0f}")
        if (
            f.paint_s is not None
            and bare.paint_s is not None
            and f.paint_s > max(PAINT_S, 2 * bare.paint_s)
        ):
            said.append(
                f"{name}: first paint after {f.paint_s:.1f} s, over {PAINT_S:.0f}; bare {bare.paint_s:.1f}"
            )
        said += [f"{name} says: {line}" for line in f.said]
    if crowds:
        few, lot = crowds[0], crowds[-1]
        if lot["served"] < lot["sessions"]:
            said.append(
                f"{lot['sessions'] - lot['served']:.0f} of {lot['sessions']:.0f} sessions were not served"
            )
        if lot["p95_ms"] > max(MANY_P95_MS, 3 * floor):
            said.append(
                f"{lot['sessions']:.0f} sessions: p95 {lot['p95_ms']:.0f} ms, over {MANY_P95_MS:.0f}"
            )
        if lot["core"] > MANY_CORE:
            said.append(
                f"{lot['sessions']:.0f} sessions take {lot['core']:.2f} of a core, over {MANY_CORE}"
            )
        if lot["questions_per_s"] > 1.5 * few["questions_per_s"] + 1:
            said.append("questions to the database grow with sessions")
    return said
