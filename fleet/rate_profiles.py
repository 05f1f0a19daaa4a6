"""Traffic for estimates: arrival rates in 10 s bins over a month of 720 hours.

Owns: the formats a profile may have and how a shorter one fills the month. Rates are requests/s, times
seconds. A profile is rates in 10 s bins (`bin,rate_rps`), rates held for longer steps (`t_s,rate_rps`),
or a trace of requests (`t_s`, optionally `input_tokens` and `output_tokens`; or as published, see
`fleet.trace_columns`). Prevents: a missing bin read as no traffic, and a trace whose half-filled last bin
looks like a lull.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fleet.errors import InvalidInput
from fleet.fluid import BIN_S, DAY_BINS, MONTH_BINS
from fleet.percentages import percent
from fleet.trace_columns import TraceColumns, clock_of, trace_columns

MAX_ROWS = 50_000_000
MAX_DAYS = 366
MAX_RATE_RPS = 1e9
_HINT = (
    "Give columns bin,rate_rps (10 s bins from 0), t_s,rate_rps (even steps), "
    "or t_s[,input_tokens,output_tokens] (one row a request; timestamp for instants)"
)


@dataclass(frozen=True, slots=True)
class RateProfile:
    """Traffic with its origin. `rates_rps` is as given: one rate for each 10 s bin."""

    name: str
    rates_rps: NDArray[np.float64]
    source: str
    tokens_in: float | None = None  # means of a request, where the profile says
    tokens_out: float | None = None
    requests: int | None = None  # of a trace
    filled_share: float = 0.0  # of bins that were missing and hold their neighbour's rate

    @property
    def mean_rps(self) -> float:
        """The mean rate of what was given."""
        return float(self.rates_rps.mean())

    @property
    def hours(self) -> float:
        """How much traffic was given."""
        return self.rates_rps.size * BIN_S / 3600

    def month(self) -> NDArray[np.float64]:
        """Return 720 hours of rates: the profile repeated, or its beginning."""
        return np.resize(self.rates_rps, MONTH_BINS)

    def scaled_to(self, mean_rps: float) -> RateProfile:
        """Return the same shape with another mean rate."""
        if self.mean_rps <= 0:
            raise InvalidInput(f"profile {self.name} has no traffic to scale", field="/profile")
        return replace(self, rates_rps=self.rates_rps * mean_rps / self.mean_rps)

    def notes(self) -> list[str]:
        """Return what a reader of the estimate must know of its traffic."""
        found: list[str] = []
        if self.rates_rps.size < MONTH_BINS:
            found.append(f"{self.hours:.4g} h of traffic are repeated to fill 720 h")
        if self.rates_rps.size > MONTH_BINS:
            found.append(f"the first 720 of {self.hours:.4g} h of traffic are used")
        if self.rates_rps.size % DAY_BINS:
            found.append("not whole days: the same time yesterday is not the same time of day")
        if self.tokens_in is not None and self.tokens_out is not None:
            found.append(
                f"its requests have {self.tokens_in:.5g} + {self.tokens_out:.5g} tokens on average: "
                "give tokens_in, tokens_out and mu for that mix"
            )
        if self.filled_share > 0:
            found.append(
                f"{percent(self.filled_share, 1)} of the bins were not recorded and hold the rate before"
            )
        return found


def read_profile(name: str, source: str, rows: Iterable[Mapping[str, str]]) -> RateProfile:
    """Return the profile that the rows of a CSV file hold. Raises InvalidInput with the line of a fault."""
    reader = iter(rows)
    first = next(reader, None)
    if first is None:
        raise InvalidInput(f"profile {name} has no rows", field="/profile", hint=_HINT)
    columns = set(first)
    everything = _chain(first, reader)
    if {"bin", "rate_rps"} <= columns:
        return RateProfile(name, _numbered(everything), source)
    if {"t_s", "rate_rps"} <= columns:
        return RateProfile(name, _held(everything), source)
    trace = trace_columns(columns)
    if trace is not None:
        return _trace(name, source, everything, trace, clock_of(trace, first))
    seen = ", ".join(sorted(str(column)[:30] for column in columns)[:8])
    raise InvalidInput(f"profile {name} has the columns {seen}", field="/profile", hint=_HINT)


def read_csv_text(name: str, source: str, lines: Iterable[str]) -> RateProfile:
    """Return the profile in the lines of a CSV file with a header. Raises InvalidInput."""
    try:
        return read_profile(name, source, _even(csv.DictReader(lines)))
    except (csv.Error, UnicodeDecodeError) as exc:
        raise InvalidInput(f"profile {name} is not CSV: {exc}", field="/profile", hint=_HINT) from exc


def _even(reader: csv.DictReader[str]) -> Iterable[Mapping[str, str]]:
    """Rows as wide as the header; another is shifted, or the file is cut off."""
    width = len(reader.fieldnames or ())
    for row in reader:
        if None in row or None in row.values():
            raise InvalidInput(
                f"line {reader.line_num}: not {width} columns",
                field="/profile",
                hint="The file may be cut off",
            )
        yield row


def _chain(first: Mapping[str, str], rest: Iterable[Mapping[str, str]]) -> Iterable[Mapping[str, str]]:
    yield first
    yield from rest


def _number(row: Mapping[str, str], column: str, line: int, most: float = 1e12) -> float:
    text = row.get(column)
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 <= value <= most:
        shown = repr(text)[:40]
        raise InvalidInput(
            f"line {line}: {column} is {shown}", field="/profile", hint=f"Give a number from 0 to {most:g}"
        )
    return value


def _limited(rows: Iterable[Mapping[str, str]]) -> Iterable[tuple[int, Mapping[str, str]]]:
    for line, row in enumerate(rows, start=2):
        if line > MAX_ROWS:
            raise InvalidInput(
                f"more than {MAX_ROWS:,} rows", field="/profile", hint="Give a shorter trace"
            )
        yield line, row


def _numbered(rows: Iterable[Mapping[str, str]]) -> NDArray[np.float64]:
    rates: list[float] = []
    for line, row in _limited(rows):
        number = _number(row, "bin", line)
        if number != len(rates):
            raise InvalidInput(
                f"line {line}: bin {row['bin'][:20]} where bin {len(rates)} is due",
                field="/profile",
                hint="Number the 10 s bins 0, 1, 2, … and leave none out; a bin without traffic has rate 0",
            )
        rates.append(_number(row, "rate_rps", line, MAX_RATE_RPS))
    return np.array(rates)


def _held(rows: Iterable[Mapping[str, str]]) -> NDArray[np.float64]:
    """Rates at even steps of whole bins, each held until the next."""
    times: list[float] = []
    rates: list[float] = []
    for line, row in _limited(rows):
        times.append(_number(row, "t_s", line))
        rates.append(_number(row, "rate_rps", line, MAX_RATE_RPS))
    steps = np.diff(np.array(times))
    step_s = float(steps[0]) if steps.size else BIN_S
    if steps.size and (np.abs(steps - step_s).max() > 1e-6 or step_s < BIN_S or step_s % BIN_S):
        place = int(np.argmax(np.abs(steps - step_s) > 1e-6))
        raise InvalidInput(
            f"line {place + 3}: t_s does not go on in even steps of whole 10 s",
            field="/profile",
            hint="Give a rate for each step, as 0, 600, 1200, …",
        )
    if step_s * len(rates) > MAX_DAYS * 86_400:
        raise InvalidInput(
            f"the rates last {step_s * len(rates) / 86_400:,.0f} days: {len(rates)} steps of {step_s:g} s",
            field="/profile",
            hint=f"At most {MAX_DAYS}; t_s is in seconds",
        )
    return np.repeat(np.array(rates), int(step_s // BIN_S))


def _trace(
    name: str,
    source: str,
    rows: Iterable[Mapping[str, str]],
    columns: TraceColumns,
    clock: Callable[[str, int], float],
) -> RateProfile:
    """Requests counted into bins. The last bin is left out: it ends with the recording."""
    counts: list[int] = []
    prompt = output = 0.0
    requests = 0
    before = 0.0
    prompt_of, output_of = columns.prompt, columns.output
    has_tokens = bool(prompt_of)
    for line, row in _limited(rows):
        at_s = clock(row.get(columns.time) or "", line)
        if at_s < before or at_s > MAX_DAYS * 86_400:
            raise InvalidInput(
                f"line {line}: {columns.time} is {at_s:g} after {before:g}",
                field="/profile",
                hint="Order the requests by time, in seconds from the start of the trace, at most a year",
            )
        before = at_s
        place = int(at_s // BIN_S)
        counts.extend([0] * (place + 1 - len(counts)))
        counts[place] += 1
        requests += 1
        has_tokens = has_tokens and bool(row.get(prompt_of)) and bool(row.get(output_of))
        if has_tokens:
            prompt += _number(row, prompt_of, line)
            output += _number(row, output_of, line)
    whole = counts[:-1] or counts
    return RateProfile(
        name,
        np.array(whole, dtype=np.float64) / BIN_S,
        source,
        tokens_in=prompt / requests if has_tokens else None,
        tokens_out=output / requests if has_tokens else None,
        requests=requests,
    )


def recorded_profile(source: str, counts: Sequence[tuple[float, float | None]]) -> RateProfile:
    """Return the profile of (covered seconds, requests) per 10 s bin. Requests None: nobody counted.

    A bin nobody counted holds the rate before it. Raises InvalidInput when over a fifth is missing.
    """
    rates: list[float] = []
    missing = 0
    for covered_s, requests in counts:
        if requests is not None and covered_s > 0:
            rates.append(requests / covered_s)
        else:
            missing += 1
            if rates:
                rates.append(rates[-1])
    if not rates or missing > 0.2 * len(counts):
        raise InvalidInput(
            f"{missing} of {len(counts)} recorded bins of 10 s hold no count of arrivals",
            field="/profile",
            hint="Choose fewer days, in which the gateways were scraped (0.1 is 2.4 hours), or give a file",
        )
    return RateProfile("recorded", np.array(rates), source, filled_share=missing / len(counts))
