"""Provisioning strategies: how many nodes run when, and who is refused.

Owns: the parameters of one strategy and their checks. Nodes are counts, durations seconds, rates
requests/s. A strategy is a fixed number of nodes, optionally with an autoscaler, a spot burst pool and
admission (a longest wait after which a request is refused). Prevents: a misspelt parameter that silently
means its default, and a plan with an hour that nobody covers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, cast

from fleet.errors import InvalidInput

MAX_NODES = 10_000
MAX_BURST_NODES = 1_000
DAY_HOURS = 24.0
MAX_PLAN_PARTS = 288
#: How far back (and, if predictive, ahead) a controller may look in all the steps of a day, in seconds. A
#: month that looks at more takes seconds to simulate instead of half of one at most.
MAX_LOOKED_AT_S = 1e8


class Mode(StrEnum):
    """What an autoscaler looks at."""

    REACTIVE = "reactive"  # the demand of the last minute
    PREDICTIVE = "predictive"  # also the demand of the same time yesterday, one cold start ahead
    SCHEDULED = "scheduled"  # the clock alone


@dataclass(frozen=True, slots=True)
class Autoscaler:
    """A controller of on-demand nodes. `plan` is (from hour, to hour, nodes) over the day, if scheduled."""

    mode: Mode
    target_rho: float
    min_nodes: int
    max_nodes: int
    stabilisation_s: float  # it only drops to the largest wish of this long
    cold_start_s: float  # from launch to ready; billed
    plan: tuple[tuple[float, float, int], ...] = ()


@dataclass(frozen=True, slots=True)
class BurstPool:
    """Spot nodes that all start when demand nears capacity and all stop when it is low for long enough."""

    nodes: int
    usd_per_hour: Decimal
    warm_s: float  # from start to ready; billed
    up: float  # start above this share of the base capacity, or with a queue
    down: float  # stop below this share for `cooldown_s` with no queue
    cooldown_s: float
    interrupted_after_h: float | None = None  # each node is taken away after running this long
    lost_per_interruption: int = 36  # requests in flight on a node that is taken away


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to provision. `max_wait_s` None: nobody is refused, however long the queue."""

    nodes: int
    max_wait_s: float | None = None
    autoscaler: Autoscaler | None = None
    burst: BurstPool | None = None
    control_period_s: float = 30.0
    demand_window_s: float = 60.0


def read_strategy(params: Mapping[str, Any]) -> Strategy:
    """Return the strategy that a `params` object describes.

    Keys: `n`; optional `D` (longest wait, s), `auto` {mode, rho, min, max, stab_s, cold_s, plan}, `burst`
    {n, price, warm_s, up, down, cooldown_s, interrupt_h, inflight}, `ctl_s`, `window_s`. Raises
    InvalidInput with the JSON pointer of the first value that is unknown, missing or impossible.
    """
    fields = _Fields("/params", params)
    strategy = Strategy(
        nodes=fields.count("n", 1, MAX_NODES),
        max_wait_s=fields.optional_number("D", 0.0, 86_400.0),
        autoscaler=_read_autoscaler(fields.child("auto")),
        burst=_read_burst(fields.child("burst")),
        control_period_s=fields.number("ctl_s", 10.0, 3_600.0, default=30.0),
        demand_window_s=fields.number("window_s", 10.0, 86_400.0, default=60.0),
    )
    fields.require_no_other()
    _check_looks(strategy)
    return strategy


def _check_looks(strategy: Strategy) -> None:
    scaler, every_s = strategy.autoscaler, strategy.control_period_s
    looked_s = strategy.demand_window_s
    if scaler is not None:
        looked_s += scaler.stabilisation_s * 10 / every_s  # a wish a step
        looked_s += scaler.cold_start_s if scaler.mode is Mode.PREDICTIVE else 0.0
    if looked_s * 86_400 / every_s > MAX_LOOKED_AT_S:
        raise InvalidInput(
            f"/params/ctl_s is {every_s:g} while each step looks at {looked_s:,.0f} s",
            field="/params/ctl_s",
            hint="Give a longer control period, or a shorter window, hold or cold start",
        )


def _read_autoscaler(fields: _Fields | None) -> Autoscaler | None:
    if fields is None:
        return None
    mode = fields.word("mode", tuple(Mode))
    low = fields.count("min", 1, MAX_NODES)
    scaler = Autoscaler(
        mode=Mode(mode),
        target_rho=fields.number("rho", 0.01, 10.0, default=0.85),
        min_nodes=low,
        max_nodes=fields.count("max", low, MAX_NODES),
        stabilisation_s=fields.number("stab_s", 0.0, 86_400.0, default=300.0),
        cold_start_s=fields.number("cold_s", 0.0, 86_400.0, default=240.0),
        plan=fields.plan("plan") if mode == Mode.SCHEDULED else (),
    )
    fields.require_no_other()
    return scaler


def _read_burst(fields: _Fields | None) -> BurstPool | None:
    if fields is None:
        return None
    pool = BurstPool(
        nodes=fields.count("n", 0, MAX_BURST_NODES),
        usd_per_hour=Decimal(str(fields.number("price", 0.0, 1e6))),
        warm_s=fields.number("warm_s", 0.0, 86_400.0, default=180.0),
        up=fields.number("up", 0.0, 100.0, default=0.9),
        down=fields.number("down", 0.0, 100.0, default=0.75),
        cooldown_s=fields.number("cooldown_s", 0.0, 86_400.0, default=300.0),
        interrupted_after_h=fields.optional_number("interrupt_h", 0.01, 8_760.0),
        lost_per_interruption=fields.count("inflight", 0, 1_000_000, default=36),
    )
    fields.require_no_other()
    return pool


class _Fields:
    """Reads an object field by field, remembering which were asked for."""

    def __init__(self, pointer: str, values: Mapping[str, Any]) -> None:
        self._pointer, self._values, self._asked = pointer, values, set[str]()

    def _refuse(self, name: str, problem: str, hint: str) -> InvalidInput:
        at = f"{self._pointer}/{name[:60]}"
        return InvalidInput(f"{at} {problem}"[:200], field=at, hint=hint)

    def _take(self, name: str, default: Any) -> Any:
        self._asked.add(name)
        value = self._values.get(name, default)
        if value is None:
            raise self._refuse(name, "is missing", "Give it, or leave its whole object out")
        return value

    def number(self, name: str, low: float, high: float, *, default: float | None = None) -> float:
        value = self._take(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not low <= value <= high:  # also of NaN and of a whole number no float holds
            raise self._refuse(name, f"is {value!r}", f"Give a number from {low:g} to {high:g}")
        return float(value)

    def optional_number(self, name: str, low: float, high: float) -> float | None:
        self._asked.add(name)
        return None if self._values.get(name) is None else self.number(name, low, high)

    def count(self, name: str, low: int, high: int, *, default: int | None = None) -> int:
        value = self.number(name, low, high, default=default)
        if value != int(value):
            raise self._refuse(name, f"is {value!r}", "Give a whole number")
        return int(value)

    def word(self, name: str, words: tuple[str, ...]) -> str:
        value = self._take(name, None)
        if value not in words:
            raise self._refuse(name, f"is {value!r}", f"Give one of {', '.join(words)}")
        return str(value)

    def child(self, name: str) -> _Fields | None:
        self._asked.add(name)
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self._refuse(name, f"is {value!r}", "Give an object or leave it out")
        return _Fields(f"{self._pointer}/{name}", cast("Mapping[str, Any]", value))

    def plan(self, name: str) -> tuple[tuple[float, float, int], ...]:
        """Return the hours of the day and their nodes, in order, without gap or overlap."""
        parts = self._take(name, None)
        hint = "Give [[from hour, to hour, nodes], …] that covers 0 to 24 without gap or overlap"
        if not isinstance(parts, list | tuple) or not 0 < len(cast("list[Any]", parts)) <= MAX_PLAN_PARTS:
            raise self._refuse(name, f"is no list of 1 to {MAX_PLAN_PARTS} parts", hint)
        found: list[tuple[float, float, int]] = []
        for index, part in enumerate(cast("list[Any]", parts)):
            if not isinstance(part, list | tuple) or len(cast("list[Any]", part)) != 3:
                raise self._refuse(f"{name}/{index}", f"is {part!r}", hint)
            start_h, end_h, nodes = cast("list[Any]", part)
            keys: dict[str, Any] = {"from": start_h, "to": end_h, "nodes": nodes}
            fields = _Fields(f"{self._pointer}/{name}/{index}", keys)
            start, end = fields.number("from", 0.0, DAY_HOURS), fields.number("to", 0.0, DAY_HOURS)
            found.append((start, end, fields.count("nodes", 0, MAX_NODES)))
        found.sort()
        ends = [0.0, *(end for _, end, _ in found)]
        starts = [*(start for start, _, _ in found), DAY_HOURS]
        if starts != ends or any(start >= end for start, end, _ in found):
            raise self._refuse(name, "leaves an hour out or covers it twice", hint)
        return tuple(found)

    def require_no_other(self) -> None:
        unknown = sorted(set(self._values) - self._asked)
        if unknown:
            known = ", ".join(sorted(self._asked))
            raise self._refuse(unknown[0], "is unknown", f"Known here: {known}")
