"""What TensorRT-LLM's `/metrics` says: a JSON list of iteration records instead of a metrics page.

Counts of requests, ratios 0..1. The list is read-once: what one reader takes no other sees, and records
of a time nobody read are lost, so only the last record of each rank is used, as gauges. Completions and
tokens stay None. Prevents: increments counted from a list that somebody else also empties.
Source: NVIDIA/TensorRT-LLM, tensorrt_llm/serve/openai_server.py and metrics/collector.py.
"""

from __future__ import annotations

from typing import Any, cast

import orjson

from fleet.readings import EngineReading

#: Longer answers are not parsed: the metrics page has the same figures in 10 KB.
BYTES_MAX = 4 * 1024 * 1024
RANKS_MAX = 512
GAUGES_ONLY = "gauges_only"
_MARKS = {"numActiveRequests", "kvCacheStats", "inflightBatchingStats"}


def read_records(body: bytes) -> tuple[EngineReading, ...]:
    """Return one engine for each attention rank in the list; () where it is no list of such records."""
    if len(body) > BYTES_MAX or body.lstrip()[:1] != b"[":
        return ()
    try:
        records = cast("list[Any]", orjson.loads(body))
    except orjson.JSONDecodeError:
        return ()
    last: dict[int, dict[str, Any]] = {}
    for item in records:
        if not isinstance(item, dict) or not _MARKS & item.keys():
            continue
        record = cast("dict[str, Any]", item)
        rank = _count(record.get("attentionDpRank")) or 0
        if rank < RANKS_MAX:
            last[rank] = record
    alone = len(last) == 1
    return tuple(_engine("" if alone else str(rank), last[rank]) for rank in sorted(last))


def _engine(rank: str, record: dict[str, Any]) -> EngineReading:
    cache = record.get("kvCacheStats")
    stats = cast("dict[str, Any]", cache) if isinstance(cache, dict) else {}
    blocks, used = _count(stats.get("maxNumBlocks")), _count(stats.get("usedNumBlocks"))
    size = _count(stats.get("tokensPerBlock"))
    return EngineReading(
        engine=rank,
        model=None,
        running=_count(record.get("numActiveRequests")),
        waiting=_count(record.get("numQueuedRequests")),
        kv_used_ratio=None if not blocks or used is None else min(1.0, used / blocks),
        kv_capacity_tokens=blocks * size if blocks and size else None,
        flags=(GAUGES_ONLY,),
    )


def _count(value: object) -> int | None:
    """Return a whole number from 0 to 10^12, None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**12 else None
