"""A node's GPUs in words and charts: use, power, memory, the last error code with its meaning. Pure.

Prevents: a value of an exporter that died an hour ago shown as now, and an old error code shown as new.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from control.queries_discovery import GpuHistory, GpuView
from dashboard import charts, theme, words
from dashboard.charts import Figure, Line
from dashboard.times import UNKNOWN, Zone, age
from dashboard.viewmodels import SIGNS

#: A GPU is written once a minute: without a value for longer than this it is old.
OLD_S = 150.0
_GIB = 1024.0**3
_LINES_MAX = 16


def summary(gpus: Sequence[GpuView], now: datetime) -> str:
    """Return one sentence about all GPUs: how many, and how old their values are."""
    if not gpus:
        return (
            "No GPU values. Point Rhodeck at the host's dcgm-exporter: "
            "`rhodeck nodes add-page NODE http://HOST:9400/metrics --kind gpu`."
        )
    ages = [(now - gpu.seen_at).total_seconds() for gpu in gpus]
    old = sum(a > OLD_S for a in ages)
    said = f"{words.plural(len(gpus), 'GPU')}, values {age(min(ages))} old."
    return f"{said} {old} of them gave no value for {age(max(ages))}: shown is the last." if old else said


def rows(gpus: Sequence[GpuView], now: datetime, zone: Zone) -> dict[str, list[Any]]:
    """Return GPUs by column. Values that are old say so."""
    return {
        "gpu": [gpu.label or UNKNOWN for gpu in gpus],
        "model": [gpu.model or UNKNOWN for gpu in gpus],
        "use": [None if g.used_ratio is None else 100 * g.used_ratio for g in gpus],
        "tensor": [None if g.tensor_ratio is None else 100 * g.tensor_ratio for g in gpus],
        "power": [gpu.power_w for gpu in gpus],
        "memory": [_memory(gpu) for gpu in gpus],
        "temperature": [gpu.temperature_c for gpu in gpus],
        "error": [_error(gpu, now) for gpu in gpus],
        "age": [_age(gpu, now) for gpu in gpus],
        "uuid": [gpu.uuid for gpu in gpus],
    }


def _age(gpu: GpuView, now: datetime) -> str:
    age_s = (now - gpu.seen_at).total_seconds()
    return f"{SIGNS['watch']} {age(age_s)}" if age_s > OLD_S else age(age_s)


def _memory(gpu: GpuView) -> str:
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    if used is None:
        return UNKNOWN
    said = f"{used / _GIB:.1f}"
    return f"{said} GiB" if total is None else f"{said} of {total / _GIB:.1f} GiB"


def _error(gpu: GpuView, now: datetime) -> str:
    if gpu.xid is None:
        return UNKNOWN
    if gpu.xid == 0:
        return f"{SIGNS['good']} none"
    since = "before we looked" if gpu.xid_at is None else f"{age((now - gpu.xid_at).total_seconds())} ago"
    return f"{SIGNS['act']} Xid {gpu.xid}, {since}"


def errors(gpus: Sequence[GpuView], zone: Zone) -> list[str]:
    """Return what each GPU's last error code means and what to do, and rows that could not be remapped."""
    said: list[str] = []
    for gpu in gpus:
        name = f"GPU {gpu.label or gpu.uuid}"
        meaning = gpu.xid_words
        if meaning is not None:
            since = "it was so when first seen" if gpu.xid_at is None else f"since {zone.stamp(gpu.xid_at)}"
            said.append(f"{name}: Xid {gpu.xid}, {meaning[0]} ({since}). To do: {meaning[1]}.")
        if gpu.row_remap_failed:
            said.append(
                f"{name}: a memory row could not be remapped. To do: drain the node, replace the GPU."
            )
    return said


def figures(gpus: Sequence[GpuView], history: GpuHistory, zone: Zone) -> list[Figure]:
    """Return use, power and memory over time, one line a GPU; [] without history."""
    if len(history.at) < 2:
        return []
    shown = [gpu for gpu in gpus if any(gpu.slot < len(row) for row in history.used_ratio)][:_LINES_MAX]
    return [
        _figure(shown, history, history.used_ratio, 100.0, zone, "GPU use (a kernel ran)", "%"),
        _figure(shown, history, history.power_w, 1.0, zone, "GPU power", "W"),
        _figure(shown, history, history.memory_used_ratio, 100.0, zone, "GPU memory used", "%"),
    ]


def _figure(
    gpus: Sequence[GpuView],
    history: GpuHistory,
    values: Sequence[Sequence[float | None]],
    factor: float,
    zone: Zone,
    title: str,
    unit: str,
) -> Figure:
    starts, places = _grid(history.at)
    lines: list[Line] = []
    for number, gpu in enumerate(gpus):
        line: list[float | None] = [None] * len(starts)
        for place, row in zip(places, values, strict=True):
            value = row[gpu.slot] if gpu.slot < len(row) else None
            line[place] = None if value is None else value * factor
        again, colour = divmod(number, len(theme.SERIES))
        dash = ("solid", "dot", "dash")[again % 3]
        lines.append(Line(f"GPU {gpu.label or gpu.uuid[:8]}", line, theme.SERIES[colour], dash))
    last = [line.values[-1] for line in lines if line.values[-1] is not None]
    newest = f", newest {min(last):.0f} to {max(last):.0f} {unit}" if last else ""
    said = f"{title}: {len(lines)} GPUs{newest}"
    return charts.timeline(starts, lines, zone, title=title, unit=unit, summary=said)


def _grid(at: Sequence[datetime]) -> tuple[list[datetime], list[int]]:
    """Return equal steps of a minute over the times, and the step each time falls into."""
    step = timedelta(minutes=1)
    count = int((at[-1] - at[0]) / step) + 1
    return [at[0] + step * n for n in range(count)], [int((t - at[0]) / step) for t in at]
