"""Traces of requests as they are published: what their columns are called, and how they write time.

Seconds from the first request where time is written as instants; else seconds (or milliseconds, where that
publisher counts in them) as the file has them. Prevents: a public trace that somebody must rewrite by hand
first, and two offsets in one file read as one clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from fleet.errors import InvalidInput
from fleet.instants import instant_of

#: Time, prompt tokens and output tokens by publisher, in lower case. Sources: the headers of
#: Azure/AzurePublicDataset (LLM inference traces), HPMLL/BurstGPT and kvcache-ai/Mooncake.
PUBLISHED = (
    ("t_s", "input_tokens", "output_tokens"),
    ("timestamp", "contexttokens", "generatedtokens"),
    ("timestamp", "request tokens", "response tokens"),
    ("timestamp", "input_length", "output_length"),
    ("timestamp", "input_tokens", "output_tokens"),
)
_IN_MS = "input_length"  # Mooncake counts milliseconds
#: Every name that means something, in lower case; the first two stand for rates instead of requests.
KNOWN = frozenset({"bin", "rate_rps", *(name for names in PUBLISHED for name in names)})
TIMES = frozenset({"timestamp"})


@dataclass(frozen=True, slots=True)
class TraceColumns:
    """The file's own names of time and tokens; "" for tokens it does not have."""

    time: str
    prompt: str
    output: str
    seconds: float  # of one unit of time written as a number


def trace_columns(columns: Iterable[str]) -> TraceColumns | None:
    """Return which columns hold time and tokens, whatever their case; None if this is no trace."""
    named = {column.strip().lower(): column for column in columns}
    for time, prompt, output in PUBLISHED:
        if {time, prompt, output} <= named.keys():
            unit = 0.001 if prompt == _IN_MS else 1.0
            return TraceColumns(named[time], named[prompt], named[output], unit)
    for time in ("t_s", "timestamp"):
        if time in named:
            return TraceColumns(named[time], "", "", 1.0)
    return None


def clock_of(columns: TraceColumns, first: Mapping[str, str]) -> Callable[[str, int], float]:
    """Return the function that reads a time on a line as seconds, as the first row writes them.

    The function raises InvalidInput with the line for what is no time, or written in the other way.
    """
    text = first.get(columns.time) or ""
    if _number(text) is not None or columns.time.strip().lower() not in TIMES:
        return lambda said, line: _as_number(said, line, columns)
    begin = _as_instant(text, 2, columns)
    return lambda said, line: (_as_instant(said, line, columns) - begin).total_seconds()


def _as_number(text: str, line: int, columns: TraceColumns, most: float = 1e12) -> float:
    value = _number(text)
    if value is None or not 0 <= value <= most:
        raise InvalidInput(
            f"line {line}: {columns.time} is {text[:36]!r}",
            field="/profile",
            hint=f"Give a number from 0 to {most:g}; instants stand in a column called timestamp",
        )
    return value * columns.seconds


def _as_instant(text: str, line: int, columns: TraceColumns) -> datetime:
    try:
        return instant_of(text, "/profile")
    except InvalidInput as exc:
        raise InvalidInput(
            f"line {line}: {columns.time} is {text[:36]!r}",
            field="/profile",
            hint="Write every time as 2026-11-30 12:00:00.5 (UTC, or with its offset), or all as seconds",
        ) from exc


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) else value
