"""Requests to replay from a CSV file: `t_s,input_tokens,output_tokens[,tenant,tier,max_tokens]`.

One row a request, compressed or not; times in seconds from any zero. Files are somebody's: bounded and
checked. Prevents: a replay of half a trace, and a misread column that turns every request into a short one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from control.capacity_files import read_rows
from fleet.errors import InvalidInput
from fleet.gate_replay import Arrival
from fleet.offers import Request
from fleet.outcomes import Tier
from fleet.replay_traffic import MODEL

SIZE_CLASSES = ((1_000, "short"), (8_000, "medium"))
LARGEST_TOKENS = 10_000_000
MAX_NAME = 63
_NEEDED = ("t_s", "input_tokens", "output_tokens")


def size_class_of(tokens: int) -> str:
    """Return what a request of `tokens` (prompt and answer) is shown as."""
    return next((name for most, name in SIZE_CLASSES if tokens <= most), "long")


def trace_arrivals(path: Path) -> list[Arrival]:
    """Return the requests of a CSV file in order of time. Raises InvalidInput with the line of a fault."""
    found: list[Arrival] = []
    for line, row in enumerate(read_rows(path), start=2):
        if line == 2:
            _check_columns(path, row)
        found.append(_arrival(row, line))
    if not found:
        raise InvalidInput(f"{path.name} has no requests", field="--trace", hint="One row a request")
    found.sort(key=_when)
    return found


def scaled(arrivals: Sequence[Arrival], rate: float) -> list[Arrival]:
    """Return the requests on a clock that makes their mean rate `rate`; bursts stay bursts."""
    span_s = arrivals[-1].at_s - arrivals[0].at_s
    factor = (len(arrivals) - 1) / (rate * span_s) if span_s > 0 else 1.0
    return [replace(one, at_s=(one.at_s - arrivals[0].at_s) * factor) for one in arrivals]


def _when(arrival: Arrival) -> float:
    return arrival.at_s


def _check_columns(path: Path, row: Mapping[str, str]) -> None:
    missing = [column for column in _NEEDED if column not in row]
    if missing:
        raise InvalidInput(
            f"{path.name} has no column {', '.join(missing)}",
            field="--trace",
            hint=f"Give {','.join(_NEEDED)} and optionally tenant,tier,max_tokens",
        )


def _arrival(row: Mapping[str, str], line: int) -> Arrival:
    prompt = int(_number(row, "input_tokens", line, LARGEST_TOKENS))
    output = int(_number(row, "output_tokens", line, LARGEST_TOKENS))
    most = int(_number(row, "max_tokens", line, LARGEST_TOKENS)) if row.get("max_tokens") else None
    tenant = row.get("tenant") or "all"
    if len(tenant) > MAX_NAME or not tenant.isprintable():
        raise InvalidInput(f"line {line}: tenant is {tenant[:40]!r}", field="--trace")
    tier = row.get("tier") or Tier.INTERACTIVE.value
    if tier not in [one.value for one in Tier]:
        raise InvalidInput(
            f"line {line}: tier is {tier[:40]!r}", field="--trace", hint=f"One of {', '.join(Tier)}"
        )
    request = Request(
        request_id=str(line),
        tenant=tenant,
        tier=Tier(tier),
        model=MODEL,
        endpoint=size_class_of(prompt + output),
        prompt_tokens=max(1, prompt),
        max_tokens=most,
    )
    return Arrival(_number(row, "t_s", line, 1e12), request, max(1, output))


def _number(row: Mapping[str, str], column: str, line: int, most: float) -> float:
    text = row.get(column)
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 <= value <= most:
        raise InvalidInput(
            f"line {line}: {column} is {repr(text)[:40]}",
            field="--trace",
            hint=f"Give a number from 0 to {most:g}",
        )
    return value
