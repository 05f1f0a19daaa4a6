"""Files of scrapes for `rhodeck capacity fit`: cumulative counters or an engine's log, as CSV or CSV.gz.

A counters file has one row a scrape: `t` (seconds), `itl_sum` (seconds), `itl_count`, and where known
`completed prompt_tokens preempt g_running g_waiting g_kv`, with `node engine model case u` naming the
engine. A log has one row a line: `t_s prompt_tok_s gen_tok_s running waiting`. Prevents: a reset counter
read as negative work, and a truncated or hostile file read as far as it went.
"""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TextIO

from fleet.errors import InvalidInput
from fleet.saturation import EngineLimits, Point

MAX_ROWS = 1_000_000
MAX_LINE_CHARS = 65_536
NAMING = ("node", "engine", "model", "case", "u")
COUNTERS = ("t", "itl_sum", "itl_count")
LOG = ("t_s", "prompt_tok_s", "gen_tok_s", "running")
SLOTS = ("max_num_seqs", "slots")
KV = ("kv_capacity_tokens", "kv_tokens")
BATCHED = "max_num_batched_tokens"
ITL_SLO = "itl_slo_s"
LIMITS = (*SLOTS, BATCHED, *KV, ITL_SLO)
LARGEST = 1e18  # of any number in a file: a cumulative count past it would not add up
MIN_EVENTS = 200

Name = tuple[tuple[str, str], ...]  # column and value, in file order


@dataclass(slots=True)
class EngineScrapes:
    """One engine's points in time order, and the limits its rows name."""

    name: Name
    points: list[Point] = field(default_factory=list[Point])
    limits: EngineLimits = field(default_factory=EngineLimits)
    restarts: int = 0

    @property
    def label(self) -> str:
        """Return the engine's name for people: the naming values joined by slashes."""
        return "/".join(value for _, value in self.name) or "engine"


def open_csv(path: Path) -> TextIO:
    """Open a CSV or CSV.gz file for reading. Raises InvalidInput when it cannot be."""
    try:
        if path.suffix == ".gz":
            return gzip.open(path, "rt", newline="", encoding="utf-8-sig")
        return path.open(newline="", encoding="utf-8-sig")  # spreadsheets begin a file with a mark
    except OSError as exc:
        raise InvalidInput(f"{path} cannot be read: {exc.strerror}", field="FILE") from exc


def _lines(handle: TextIO, path: Path) -> Iterator[str]:
    """Yield lines of bounded length: a compressed file may hold one line of many gigabytes."""
    while line := handle.readline(MAX_LINE_CHARS):
        if len(line) == MAX_LINE_CHARS:
            raise InvalidInput(f"{path} has a line over {MAX_LINE_CHARS} characters", field="FILE")
        yield line


def read_rows(path: Path, most: int = MAX_ROWS) -> Iterator[dict[str, str]]:
    """Yield rows as text by column, at most `most`. Raises InvalidInput naming the broken line."""
    with open_csv(path) as handle:
        reader = csv.DictReader(_lines(handle, path), strict=True)
        try:
            _refuse_column_twice(reader.fieldnames or (), path)
            for row in islice(reader, most + 1):
                if reader.line_num > most:
                    raise InvalidInput(
                        f"{path} has more than {most} rows",
                        field="FILE",
                        hint="Split it by engine or take every n-th scrape",
                    )
                if any(key is None or value is None for key, value in row.items()):
                    raise InvalidInput(
                        f"{path} line {reader.line_num}: not {len(reader.fieldnames or ())} columns",
                        field="FILE",
                        hint="The file may be cut off",
                    )
                yield row
        except (csv.Error, UnicodeDecodeError, OSError, EOFError, zlib.error) as exc:
            raise InvalidInput(
                f"{path} is not a readable CSV file: {exc}",
                field="FILE",
                hint="Give a .csv or .csv.gz with a header line",
            ) from exc


def _refuse_column_twice(columns: Sequence[str], path: Path) -> None:
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise InvalidInput(f"{path} has the column {twice[0][:40]} twice", field="FILE")


def read_engines(path: Path) -> list[EngineScrapes]:
    """Return the engines of a file, in order of appearance. Raises InvalidInput for another format."""
    rows = read_rows(path)
    first = next(rows, None)
    if first is None:
        raise InvalidInput(f"{path} has no rows", field="FILE")
    if all(column in first for column in COUNTERS):
        return _from_counters(path, first, rows)
    if all(column in first for column in LOG):
        return [_from_log(path, first, rows)]
    raise InvalidInput(
        f"{path} has columns {', '.join(list(first)[:12])}",
        field="FILE",
        hint=f"A counters file has {', '.join(COUNTERS)}; a log has {', '.join(LOG)}",
    )


class _Row:
    """One row's numbers; empty or absent is None."""

    def __init__(self, path: Path, line: int, row: dict[str, str]) -> None:
        self._at = f"{path} row {line}"
        self._row = row

    def number(self, *columns: str) -> float | None:
        text = next((self._row[c] for c in columns if self._row.get(c)), None)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not abs(value) < LARGEST:
            raise InvalidInput(f"{self._at}: {columns[0]} is not a number: {text[:40]!r}", field=columns[0])
        return value

    def whole(self, *columns: str) -> int | None:
        value = self.number(*columns)
        return None if value is None else round(value)

    def limit(self, *columns: str) -> int | None:
        """A limit of an engine: a whole number from 1, where the row has one."""
        value = self.whole(*columns)
        if value is not None and value < 1:
            raise InvalidInput(f"{self._at}: {columns[0]} is {value}, not 1 or more", field=columns[0])
        return value

    def objective(self, column: str) -> float | None:
        """A latency to keep, in seconds, where the row has one."""
        value = self.number(column)
        if value is not None and value <= 0:
            raise InvalidInput(f"{self._at}: {column} is {value:g}, not above 0", field=column)
        return value

    def needed(self, column: str) -> float:
        value = self.number(column)
        if value is None:
            raise InvalidInput(f"{self._at}: {column} is empty", field=column)
        return value


def _limits_of(row: _Row) -> EngineLimits:
    return EngineLimits(
        max_num_seqs=row.limit(*SLOTS),
        max_num_batched_tokens=row.limit(BATCHED),
        kv_capacity_tokens=row.limit(*KV),
        itl_slo_s=row.objective(ITL_SLO),
    )


def _from_counters(
    path: Path, first: dict[str, str], rows: Iterator[dict[str, str]]
) -> list[EngineScrapes]:
    naming = [column for column in NAMING if column in first]
    engines: dict[Name, EngineScrapes] = {}
    last: dict[Name, _Row] = {}
    for line, text in enumerate((first, *rows), start=2):
        name = tuple((column, text[column]) for column in naming)
        row = _Row(path, line, text)
        engine = engines.setdefault(name, EngineScrapes(name, limits=_limits_of(row)))
        before = last.get(name)
        if before is not None:
            _append(engine, before, row, path, line)
        last[name] = row
    return list(engines.values())


def _append(engine: EngineScrapes, before: _Row, row: _Row, path: Path, line: int) -> None:
    seconds = row.needed("t") - before.needed("t")
    if seconds <= 0:
        raise InvalidInput(
            f"{path} row {line}: t goes back or stands still", field="t", hint="Sort each engine by t"
        )
    restarted = row.needed("itl_count") < before.needed("itl_count")
    engine.restarts += restarted

    def grown(column: str) -> float | None:
        old, new = before.number(column), row.number(column)
        if new is None or old is None:
            return None
        return new if restarted or new < old else new - old

    def needed(column: str) -> float:
        value = grown(column)
        if value is None:
            raise InvalidInput(f"{path} row {line}: {column} is empty here or the row before", field=column)
        return value

    def counted(column: str) -> int | None:
        value = grown(column)
        return None if value is None else round(value)

    events, latency = needed("itl_count"), needed("itl_sum")
    preempted, prompt = counted("preempt"), counted("prompt_tokens")
    computed = counted("prompt_tokens_computed")
    engine.points.append(
        Point(
            ended_at_s=row.needed("t"),
            length_s=seconds,
            batch=latency / seconds,
            itl_s=latency / events if events else 0.0,
            decode_events=events,
            completed=counted("completed"),
            prompt_tokens=prompt,
            prompt_tokens_computed=computed if computed is not None else prompt,
            running=row.whole("g_running", "running"),
            waiting=row.whole("g_waiting", "waiting"),
            kv_used_ratio=row.number("g_kv", "kv_used_ratio"),
            preemptions=preempted,
            usable=events >= MIN_EVENTS and latency > 0 and not preempted and not restarted,
        )
    )


def _from_log(path: Path, first: dict[str, str], rows: Iterator[dict[str, str]]) -> EngineScrapes:
    """Return decode-only log lines as points: ITL is running / generated tokens per second.

    Replays of one server follow each other; each starts its own clock at 0.
    """
    engine = EngineScrapes((), limits=_limits_of(_Row(path, 2, first)))
    offset = at = 0.0
    for line, text in enumerate((first, *rows), start=2):
        row = _Row(path, line, text)
        clock = row.needed("t_s")
        if offset + clock < at:
            offset = at
        length, at = max(offset + clock - at, 1e-3), offset + clock
        running, rate = row.needed("running"), row.needed("gen_tok_s")
        if row.needed("prompt_tok_s") == 0 and rate > 0 and running > 0:
            engine.points.append(
                Point(
                    ended_at_s=at,
                    length_s=length,
                    batch=running,
                    itl_s=running / rate,
                    decode_events=rate * length,
                    running=round(running),
                    waiting=row.whole("waiting"),
                )
            )
    return engine


def read_limits(path: Path) -> list[tuple[Name, EngineLimits]]:
    """Return limits by engine from a CSV whose naming columns are those of the scrapes file."""
    found: list[tuple[Name, EngineLimits]] = []
    for line, text in enumerate(read_rows(path), start=2):
        name = tuple((column, text[column]) for column in NAMING if column in text)
        if not any(column in text for column in LIMITS):
            raise InvalidInput(
                f"{path} has columns {', '.join(list(text)[:12])}: none of them is a limit",
                field="--limits",
                hint=f"A file of limits has {', '.join(NAMING)} to name engines, and {', '.join(LIMITS)}",
            )
        found.append((name, _limits_of(_Row(path, line, text))))
    if not found:
        raise InvalidInput(f"{path} has no rows", field="--limits")
    return found
