"""Rollups of samples, verdicts and gateway flows by time: which columns, and how each merges.

A family (engine, health, gateway) has tables of one shape, `<family>_minute`, `<family>_hour` and, where a
month of hours is too many rows, `<family>_day`. Every column says how two rows become one (add, lowest,
highest, newest, bucket by bucket), and all of these are associative: an hour made of minutes is the hour
made of rounds. Seconds, counts, ratios 0..1. An increment that was not read adds its time to
`<name>_unseen_s`, so that a rate divides by the time it was seen in. Prevents: averages of averages,
percentiles of percentiles, and a column rolled up one way by the minute and another by the hour.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, Column, DateTime, Double, Index, Integer, SmallInteger, Table, Text, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import TypeEngine

from control.tables_base import Base

#: A float beyond this is no measurement; leaving it out keeps a sum from overflowing.
ABSURD = 1e290


class Merge(StrEnum):
    """How values of several rows become one. NULL takes no part (but in NEWEST); all NULL stays NULL."""

    ADD = "add"
    ADD_IF_ALL = "add_if_all"  # NULL as soon as one row does not know it
    LOWEST = "lowest"
    HIGHEST = "highest"
    NEWEST = "newest"  # what the row of the newest round says, unknown included; no sum over engines has it
    BUCKETS = "buckets"  # element by element
    TALLY = "tally"  # JSON object of counts, key by key


class Level(StrEnum):
    """What a row covers. RAW is one scrape round."""

    RAW = "raw"
    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"


@dataclass(frozen=True, slots=True)
class Measure:
    """One column of a rollup: its type, how it merges, and its value for a single raw row, in SQL."""

    name: str
    kind: TypeEngine[Any]
    merge: Merge
    lift: str


@dataclass(frozen=True, slots=True)
class Family:
    """A raw table and the columns of its two rollups. Histograms name the prefix of their columns.

    A row holds one set of bucket edges a histogram; what has others is a further row (`variant`) of the
    same key, so that nothing is ever mapped onto other buckets.
    """

    name: str
    raw: str
    keys: tuple[tuple[str, str], ...]  # name, value for a raw row in SQL
    measures: tuple[Measure, ...]
    histograms: tuple[str, ...] = ()
    levels: tuple[Level, ...] = (Level.MINUTE, Level.HOUR)

    @property
    def key_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.keys)

    def table(self, level: Level) -> str:
        """Return the name of the table of `level`."""
        return self.raw if level is Level.RAW else f"{self.name}_{level.value}"

    def columns(self) -> list[str]:
        """Return the names of a rollup table's columns without `at` and `variant`, which merging makes."""
        edges = [f"{prefix}_edges" for prefix in self.histograms]
        return [*self.key_names, "last_at", *edges, *(measure.name for measure in self.measures)]


def _sane(name: str) -> str:
    return f"CASE WHEN abs({name}) < {ABSURD:g} THEN {name} END"


def _count(name: str, lift: str) -> Measure:
    return Measure(name, BigInteger(), Merge.ADD, lift)


def _seconds(name: str, lift: str, merge: Merge = Merge.ADD) -> Measure:
    return Measure(name, Double[float](), merge, lift)


def _increment(name: str) -> tuple[Measure, ...]:
    unseen = f"CASE WHEN {name} IS NULL THEN covered_s END"
    return _count(name, name), _seconds(f"{name}_unseen_s", unseen)


def _gauge(name: str, *, newest: bool = True) -> tuple[Measure, ...]:
    value = _sane(f"{name}::float8")
    parts = (
        _seconds(f"{name}_sum", value),
        _count(f"{name}_n", f"(abs({name}::float8) < {ABSURD:g} IS TRUE)::int"),
        _seconds(f"{name}_min", value, Merge.LOWEST),
        _seconds(f"{name}_max", value, Merge.HIGHEST),
    )
    return (*parts, _seconds(f"{name}_last", value, Merge.NEWEST)) if newest else parts


def _histogram(prefix: str, unit: str = "s") -> tuple[Measure, ...]:
    total = f"{prefix}_sum_{unit}"
    return (
        Measure(f"{prefix}_counts", ARRAY(BigInteger()), Merge.BUCKETS, f"{prefix}_counts"),
        _seconds(total, _sane(total), Merge.ADD_IF_ALL),
    )


def _stage(name: str) -> tuple[Measure, ...]:
    return _seconds(f"{name}_sum_s", _sane(f"{name}_sum_s")), _count(f"{name}_count", f"{name}_count")


INCREMENTS = (
    "arrivals",
    "completed",
    "errors",
    "aborted",
    "prompt_tokens",
    "prompt_tokens_computed",
    "generation_tokens",
    "preemptions",
    "prefix_cache_hits",
    "prefix_cache_queries",
)
FLOW_INCREMENTS = ("offered", "dispatched", "repeated", "prompt_tokens", "output_tokens")
#: Prefixes of the histograms of one engine.
LATENCIES = ("ttft", "itl", "queue_wait", "e2e")
STAGES = ("inference", "prefill", "decode")  # seconds spent and requests that spent them
LENGTHS = ("prompt_len", "output_len", "step")
_ROUNDS = _count("rounds", "1")
_COVERED = _seconds("covered_s", "covered_s")

ENGINE = Family(
    name="engine",
    raw="sample",
    keys=(("scope", "'engine'"), ("name", "node"), ("engine", "engine")),
    measures=(
        _ROUNDS,
        _COVERED,
        _count("restarts", "restarted::int"),
        _count("flagged", "(flags <> '{}')::int"),
        *(measure for name in INCREMENTS for measure in _increment(name)),
        *_gauge("running"),
        *_gauge("waiting"),
        *_gauge("kv_used_ratio"),
        *_gauge("fetch_s", newest=False),
        Measure("kv_capacity_tokens", BigInteger(), Merge.NEWEST, "kv_capacity_tokens"),
        Measure("waiting_capacity", BigInteger(), Merge.NEWEST, "waiting_capacity"),
        Measure("model", Text(), Merge.NEWEST, "model"),
        Measure("counted_in", Text(), Merge.NEWEST, "counted_in"),
        *(m for stage in STAGES for m in _stage(stage)),
        *(m for prefix in LATENCIES for m in _histogram(prefix)),
        *(m for prefix in LENGTHS for m in _histogram(prefix, "tokens")),
    ),
    histograms=(*LATENCIES, *LENGTHS),
)
HEALTH = Family(
    name="health",
    raw="health",
    keys=(("scope", "scope"), ("name", "name")),
    measures=(
        _ROUNDS,
        *_gauge("rho"),
        _seconds("rho_low", _sane("rho_low"), Merge.LOWEST),
        _seconds("rho_high", _sane("rho_high"), Merge.HIGHEST),
        *_gauge("service_rate"),
        _seconds("service_rate_low", _sane("service_rate_low"), Merge.LOWEST),
        _seconds("service_rate_high", _sane("service_rate_high"), Merge.HIGHEST),
        *_gauge("arrival_rate", newest=False),
        *_gauge("throughput", newest=False),
        *_gauge("output_tokens_rate", newest=False),
        *_gauge("headroom_rps", newest=False),
        *_gauge("running", newest=False),
        *_gauge("waiting", newest=False),
        *_gauge("kv_used_ratio", newest=False),
        _count("saturated", "saturated::int"),
        _count("partial", "partial::int"),
        Measure("grade", Text(), Merge.HIGHEST, "grade"),  # D is worse than A
        Measure("binding", Text(), Merge.NEWEST, "binding"),
    ),
)
GATEWAY = Family(
    name="gateway",
    raw="gateway_sample",
    keys=(("gateway", "gateway"), ("tenant", "tenant"), ("tier", "tier")),
    measures=(
        _ROUNDS,
        _COVERED,
        _seconds("counted_s", "CASE WHEN output_tokens IS NOT NULL THEN covered_s END"),
        *(measure for name in FLOW_INCREMENTS for measure in _increment(name)),
        Measure("outcomes", JSONB(), Merge.TALLY, "outcomes"),
        *_gauge("queued_requests"),
        *_gauge("in_flight_requests"),
        *_gauge("in_flight_tokens"),
        *(measure for prefix in ("queue_wait", "ttft") for measure in _histogram(prefix)),
    ),
    histograms=("queue_wait", "ttft"),
    levels=(Level.MINUTE, Level.HOUR, Level.DAY),  # a month of 100 tenants is 72,000 hours
)
FAMILIES = (ENGINE, HEALTH, GATEWAY)
#: Rollup tables of one level, in the order of FAMILIES.
MINUTE_TABLES = tuple(family.table(Level.MINUTE) for family in FAMILIES)
HOUR_TABLES = tuple(family.table(Level.HOUR) for family in FAMILIES)
DAY_TABLES = tuple(family.table(Level.DAY) for family in FAMILIES if Level.DAY in family.levels)


def _table(family: Family, level: Level) -> Table:
    keys: list[Column[Any]] = [Column(name, Text(), primary_key=True) for name in family.key_names]
    variant: Column[Any] = Column(
        "variant", SmallInteger(), primary_key=True, autoincrement=False, server_default=text("0")
    )
    edges: list[Column[Any]] = [Column(f"{prefix}_edges", SmallInteger()) for prefix in family.histograms]
    measures: list[Column[Any]] = [Column(m.name, m.kind) for m in family.measures]
    return Table(
        family.table(level),
        Base.metadata,
        *keys,
        Column("at", DateTime(timezone=True), primary_key=True),
        variant,
        Column("last_at", DateTime(timezone=True), nullable=False),
        *edges,
        *measures,
        Index(f"ix_{family.table(level)}_at_brin", "at", postgresql_using="brin"),
        postgresql_partition_by="RANGE (at)",
    )


TABLES = {(family.name, level): _table(family, level) for family in FAMILIES for level in family.levels}


class RollupDueRow(Base):
    """A minute, hour or day whose rollup is older than what it is made of. Written with the change."""

    __tablename__ = "rollup_due"
    level: Mapped[str] = mapped_column(primary_key=True)  # "minute" | "hour" | "day"
    at: Mapped[datetime] = mapped_column(primary_key=True)  # its start
    not_before: Mapped[datetime]  # when it is worth rolling up
    touched: Mapped[int] = mapped_column(Integer, server_default=text("1"))


class RollupHorizonRow(Base):
    """Since when the rows of a table are all there; what is older was dropped and lives on above."""

    __tablename__ = "rollup_horizon"
    source: Mapped[str] = mapped_column(primary_key=True)  # name of a raw or minute table
    kept_since: Mapped[datetime]
