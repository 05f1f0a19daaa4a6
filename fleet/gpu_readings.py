"""What an exporter's page says about GPUs: use, power, memory, temperature, the last error code.

Ratios 0..1, watts, bytes, degrees Celsius. None: not said, or DCGM's blank. A GPU is known by its UUID,
never by its index, which differs between processes. Prevents: a GPU shared by several pods counted
several times, one host's GPUs shown on another's node, and a MIG slice taken for the whole card.
"""

from __future__ import annotations

from collections.abc import Iterable

from fleet.exposition import Families
from fleet.gpu_names import BLANK, GPU_DIALECTS, GpuDialect
from fleet.readings import GpuReading

#: GPUs of one page that are kept. A machine has 8 to 72; MIG makes up to 7 of one.
GPUS_MAX = 512
_TEXT_MAX = 120


def read_gpus(families: Families) -> tuple[GpuReading, ...]:
    """Return the GPUs of a page by UUID; () where it has none.

    Series of one GPU that differ in other labels (pods that share it) repeat one value: the largest is
    taken. Source: NVIDIA/dcgm-exporter, etc/default-counters.csv.
    """
    for dialect in GPU_DIALECTS:
        found = _gpus(families, dialect)
        if found:
            return found
    return ()


def of_host(
    gpus: Iterable[GpuReading], *, host: str | None = None, uuids: Iterable[str] = ()
) -> tuple[GpuReading, ...]:
    """Return those of a machine: named by `uuids` (whole cards), else by `host`, else all.

    A short host name matches a full one (`gpu-1` and `gpu-1.example.org`), in any case of letters.
    """
    wanted = frozenset(uuids)
    if wanted:
        return tuple(g for g in gpus if g.uuid in wanted or g.uuid.partition("/")[0] in wanted)
    if host is None:
        return tuple(gpus)
    return tuple(g for g in gpus if _same_host(g.host, host))


def _same_host(one: str, other: str) -> bool:
    a, b = one.lower(), other.lower()
    if a == b:
        return True
    return ("." not in a or "." not in b) and a.partition(".")[0] == b.partition(".")[0]


def _gpus(families: Families, dialect: GpuDialect) -> tuple[GpuReading, ...]:
    values: dict[str, dict[str, float]] = {}
    about: dict[str, tuple[str, str, str]] = {}
    for field, (names, unit) in dialect.fields.items():
        for name in reversed(names):
            for key, value in families.series.get(name, ()):
                labels = key.labels
                uuid = _first(labels.get(label, "") for label in dialect.gpu)
                if not uuid or value >= BLANK or (uuid not in about and len(about) >= GPUS_MAX):
                    continue
                if instance := labels.get("GPU_I_ID", ""):
                    uuid = f"{uuid}/{instance}"[:_TEXT_MAX]
                host = _first(labels.get(label, "") for label in dialect.host)
                about.setdefault(uuid, (labels.get("gpu", "")[:20], host, labels.get("modelName", "")))
                known = values.setdefault(uuid, {})
                known[field] = max(value * unit, known.get(field, value * unit))
    return tuple(_reading(uuid, about[uuid], values.get(uuid, {})) for uuid in sorted(about))


def _first(texts: Iterable[str]) -> str:
    return next((text[:_TEXT_MAX] for text in texts if text), "")


def _reading(uuid: str, about: tuple[str, str, str], values: dict[str, float]) -> GpuReading:
    index, host, model = about
    xid, remap = values.get("xid"), values.get("row_remap_failed")
    return GpuReading(
        uuid=uuid,
        index=index,
        host=host,
        model=model[:_TEXT_MAX],
        used_ratio=_within(values.get("used_ratio"), 1.0),
        tensor_ratio=_within(values.get("tensor_ratio"), 1.0),
        memory_busy_ratio=_within(values.get("memory_busy_ratio"), 1.0),
        power_w=_within(values.get("power_w"), 1e5),
        memory_used_bytes=_within(values.get("memory_used_bytes"), 1e15),
        memory_total_bytes=_total(values),
        temperature_c=_within(values.get("temperature_c"), 1e3),
        xid=None if xid is None or not 0 <= xid < 1e6 else int(xid),
        row_remap_failed=None if remap is None else remap > 0,
    )


def _within(value: float | None, most: float) -> float | None:
    """Return `value` where it can be: not negative and not above `most`; None otherwise."""
    return value if value is not None and 0 <= value <= most else None


def _total(values: dict[str, float]) -> float | None:
    """Return the memory: as said, or used + free (+ reserved, which newer exporters keep apart)."""
    total = values.get("memory_total_bytes")
    used, free = values.get("memory_used_bytes"), values.get("memory_free_bytes")
    if total is None and used is not None and free is not None:
        total = used + free + values.get("memory_reserved_bytes", 0.0)
    return _within(total, 1e15)
