"""`rhodeck capacity`: fit an engine's capacity to its scrapes and say how sure that is.

Rates are per second, times are seconds. Without completions in the file mu is in output tokens/s and `unit`
says so. Prevents: a capacity printed without its interval, and an assumed limit passed off as known.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from control.capacity_files import EngineScrapes, Name, read_engines, read_limits
from control.capacity_pages import read_series
from control.finite import FiniteRange
from fleet.capacity import CapacityEstimate
from fleet.capacity_learner import fit_points
from fleet.errors import InvalidInput
from fleet.health_reading import TARGET_RHO
from fleet.saturation import EngineLimits, known_slots

MAX_DRAWS = 10_000


@click.group()
def capacity() -> None:
    """Fit an engine's capacity to its scrapes."""


@capacity.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--limits", "limits_file", type=click.Path(path_type=Path, dir_okay=False), help="CSV of limits."
)
@click.option("--max-num-seqs", type=click.IntRange(1, 1_000_000), help="Sequence slots of every engine.")
@click.option(
    "--max-num-batched-tokens", type=click.IntRange(1, 100_000_000), help="Token budget of a step."
)
@click.option("--kv-capacity-tokens", type=click.IntRange(1, 10**12), help="KV cache in tokens.")
@click.option("--itl-slo-ms", type=FiniteRange(0.1, 60_000), help="Objective between tokens, in ms.")
@click.option("--fit-below", type=FiniteRange(1), help="Use only windows with at most this batch.")
@click.option(
    "--draws", type=click.IntRange(0, MAX_DRAWS), default=100, show_default=True, help="Resamples."
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the resamples.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object an engine.")
def fit(
    file: Path,
    limits_file: Path | None,
    max_num_seqs: int | None,
    max_num_batched_tokens: int | None,
    kv_capacity_tokens: int | None,
    itl_slo_ms: float | None,
    fit_below: float | None,
    draws: int,
    seed: int,
    as_json: bool,
) -> None:
    """Fit every engine of FILE: a CSV or CSV.gz of counters, an engine's log, or a folder of pages.

    Limits come from the flags, else from --limits, else from columns of FILE, else they are learned from
    scrapes where requests waited; slots nobody named are assumed and flagged.
    """
    itl_slo_s = None if itl_slo_ms is None else itl_slo_ms / 1000
    given = EngineLimits(max_num_seqs, max_num_batched_tokens, kv_capacity_tokens, itl_slo_s)
    engines = read_series(file) if file.is_dir() else read_engines(file)
    listed = read_limits(limits_file) if limits_file else []
    learned = _slots_by_kind(engines)
    results: list[dict[str, Any]] = []
    for engine in engines:
        limits = _first_known(given, _listed_for(engine.name, listed), engine.limits)
        flags: tuple[str, ...] = ()
        if limits.max_num_seqs is None and (kind := _kind(engine.name)) in learned:
            limits, flags = replace(limits, max_num_seqs=learned[kind]), ("max_num_seqs_learned",)
        points = engine.points
        if fit_below is not None:
            points = [p for p in points if p.batch <= fit_below]
        found = fit_points(points, limits, np.random.default_rng(seed), draws=draws)
        results.append(as_row(engine, replace(found, flags=found.flags + flags)))
    if not any(result["mu"] is not None for result in results):
        raise InvalidInput(
            f"{file}: no engine has enough usable windows for a capacity",
            field="FILE",
            hint="12 windows with 200 decode steps each, or a minute with requests waiting, are needed",
        )
    click.echo(json.dumps(results, indent=1, allow_nan=False) if as_json else _table(results))


def _kind(name: Name) -> Name:
    """Return what engines of one configuration share: their name without node, engine and load."""
    return tuple((column, value) for column, value in name if column in ("model", "case"))


def _slots_by_kind(engines: list[EngineScrapes]) -> dict[Name, int]:
    """Return slots learned where requests waited, for all engines of the same kind."""
    found: dict[Name, int] = {}
    for engine in engines:
        slots, flags = known_slots(engine.points, EngineLimits())
        if "max_num_seqs_learned" in flags:
            kind = _kind(engine.name)
            found[kind] = max(found.get(kind, 0), int(slots))
    return found


def _listed_for(name: Name, listed: list[tuple[Name, EngineLimits]]) -> EngineLimits:
    """Return the first listed limits whose naming values this engine shares."""
    own = dict(name)
    for wanted, limits in listed:
        if all(own.get(column) == value for column, value in wanted):
            return limits
    return EngineLimits()


def _first_known(*sources: EngineLimits) -> EngineLimits:
    def first(attribute: str) -> Any:
        values = (getattr(source, attribute) for source in sources)
        return next((value for value in values if value is not None), None)

    return EngineLimits(
        max_num_seqs=first("max_num_seqs"),
        max_num_batched_tokens=first("max_num_batched_tokens"),
        kv_capacity_tokens=first("kv_capacity_tokens"),
        itl_slo_s=first("itl_slo_s"),
    )


def as_row(engine: EngineScrapes, found: CapacityEstimate) -> dict[str, Any]:
    """Return one engine's result as JSON-ready values; null is unknown."""
    in_requests = found.requests_per_s is not None
    mu = found.requests_per_s if in_requests else found.tokens_per_s
    low = found.low_requests_per_s if in_requests else found.low_tokens_per_s
    high = found.high_requests_per_s if in_requests else found.high_tokens_per_s
    curve, mix = found.curve, found.mix
    return {
        **dict(engine.name),
        "engine": dict(engine.name).get("engine", engine.label),
        "mu": mu,
        "low": low,
        "high": high,
        "unit": "requests/s" if in_requests else "output tokens/s",
        "tokens_per_s": found.tokens_per_s,
        "grade": found.grade,
        "method": found.method,
        "reach": found.reach,
        "binding": found.binding,
        "operating_batch": found.operating_batch,
        "limits": dict(found.limits),
        "rates_by_limit": {r.name: [r.value, r.low, r.high] for r in found.rates_by_limit},
        "expected_batch_at_0.85": found.occupancy_at(TARGET_RHO),
        "prefill_s": mix.prefill_s if mix else None,
        "saturated_windows": found.plateau.windows if found.plateau else 0,
        "alpha": curve.intercept_s if curve else None,
        "m": curve.slope_s if curve else None,
        "knee": curve.knee if curve else None,
        "m_past_knee": curve.last_slope_s if curve and curve.knee is not None else None,
        "advised_batch": found.advised_batch,
        "drift": found.drift,
        "peak_seen_tokens_per_s": found.peak_seen_tokens_per_s,
        "prompt_tokens": mix.prompt_tokens if mix else None,
        "decode_steps_per_request": mix.decode_events if mix else None,
        "windows": found.windows,
        "restarts": engine.restarts,
        "flags": list(found.flags),
    }


def _table(results: list[dict[str, Any]]) -> str:
    def shown(value: float | None, form: str = ".4g") -> str:
        return "-" if value is None else format(value, form)

    lines = ["engine                     mu [low, high]                     grade reach  binding  curve"]
    for r in results:
        mu = f"{shown(r['mu'])} [{shown(r['low'])}, {shown(r['high'])}] {r['unit']}"
        curve = f"{shown(r['alpha'])} s + {shown(r['m'])} s b"
        if r["knee"] is not None:
            curve += f", {shown(r['m_past_knee'])} s past {shown(r['knee'])}"
        flags = f"  ({', '.join(r['flags'])})" if r["flags"] else ""
        lines.append(
            f"{r['engine'][:26]:26} {mu:34} {r['grade'] or '-':5} {shown(r['reach'], '.2f'):6} "
            f"{r['binding'] or '-':8} {curve}{flags}"
        )
    return "\n".join(lines)
