"""Faults a simulated node can be given, and how one is read from the wire.

Durations are seconds, ratios 0..1. Prevents: a test that believes it froze a node and did not.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fleet.errors import InvalidInput

MAX_SECONDS = 3600.0


class FaultKind(StrEnum):
    """What can be done to a node."""

    FREEZE = "freeze"  # the worker stands still: /health 200, counters constant, requests hang
    UNFREEZE = "unfreeze"
    KILL = "kill"  # the port closes and connections are cut; nothing survives
    RESTART = "restart"  # a new process on the same port: counters at 0, new start time
    SLOW_METRICS = "slow_metrics"  # /metrics answers after delay_s
    KV_SHORTAGE = "kv_shortage"  # `ratio` of the KV blocks is taken away
    CLEAR = "clear"  # healthy again, whatever it was


@dataclass(frozen=True, slots=True)
class Fault:
    """One order to one node."""

    kind: FaultKind
    delay_s: float = 0.0  # SLOW_METRICS: how slow; RESTART: how long the port stays closed
    ratio: float = 0.9  # KV_SHORTAGE
    for_s: float | None = None  # then clears itself


def parse_fault(data: Any) -> Fault:
    """Read `{"kind": ..., "delay_s"?, "ratio"?, "for_s"?}`. Raises InvalidInput naming the field."""
    if not isinstance(data, dict):
        raise InvalidInput("a fault is a JSON object", hint='Send {"kind": "freeze"}')
    unknown = set(data) - {"kind", "node", "delay_s", "ratio", "for_s"}
    if unknown:
        raise InvalidInput(f"unknown field {sorted(unknown)[0]!r}", field=sorted(unknown)[0])
    kinds = [kind.value for kind in FaultKind]
    if data.get("kind") not in kinds:
        raise InvalidInput(
            f"unknown fault {data.get('kind')!r}", field="kind", hint=f"Use one of: {', '.join(kinds)}"
        )
    kind = FaultKind(data["kind"])
    delay_s = _number(data, "delay_s", MAX_SECONDS)
    ratio = _number(data, "ratio", 1.0)
    return Fault(
        kind,
        delay_s=delay_s if delay_s is not None else (30.0 if kind is FaultKind.SLOW_METRICS else 0.0),
        ratio=0.9 if ratio is None else ratio,
        for_s=_number(data, "for_s", MAX_SECONDS),
    )


def _number(data: dict[str, Any], name: str, high: float) -> float | None:
    value = data.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= high:
        raise InvalidInput(f"{name} is {value!r}", field=name, hint=f"Give a number from 0 to {high:g}")
    return float(value)
