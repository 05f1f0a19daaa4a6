"""`rhodeck estimate goodput`: the rate and the batch that serve most requests in time.

Takes a step-time curve as `rhodeck capacity fit --json` prints it, or typed. Rates are requests/s of one
engine. Prevents: a concurrency limit copied from a benchmark of another model, and an admitted rate that
nobody checked against the objectives.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import click

from control.cli_estimate_run import read_input
from control.estimate_scenarios import json_value
from control.finite import FiniteRange
from control.progress_lines import progress
from fleet.capacity_limits import kv_tokens_per_sequence
from fleet.curve_fit import StepCurve
from fleet.errors import InvalidInput
from fleet.goodput import (
    LIMIT_WORDS,
    MAX_BATCH,
    QUOTA_SHARE,
    Advice,
    Choice,
    EngineModel,
    advise,
    load_line,
    point,
)
from fleet.goodput_simulation import SimulatedPoint, rates_around, simulate_curve, simulate_point
from fleet.percentages import percent
from fleet.replay_outcomes import Objectives

MAX_BYTES = 10_000_000
LARGEST = 1e12  # of any number in a fit
KV_TARGET = 0.9
OVERLOAD = 1.5
INTERACTIVE_TIMEOUT_S = 1.5


@click.command("goodput")
@click.option("--fit", type=click.Path(dir_okay=False, path_type=Path), help="JSON of `capacity fit`.")
@click.option("--engine", help="Which engine of --fit; default: the first with a curve.")
@click.option("--alpha-ms", type=FiniteRange(0.001, 60_000), help="Of a step.  [14]")
@click.option("--m-ms", type=FiniteRange(0, 60_000), help="A sequence adds, its prompts included.  [0.687]")
@click.option("--knee", type=FiniteRange(1, 1e6), help="Sequences at which the slope changes.  [12]")
@click.option("--m-past-ms", type=FiniteRange(0, 60_000), help="A sequence adds past the knee.  [0.94]")
@click.option("--gamma-us", type=FiniteRange(0, 1e6), default=22, show_default=True, help="A prompt token.")
@click.option("--prompt-tokens", type=FiniteRange(1, 1e7), help="Mean.  [500, or as fitted]")
@click.option("--output-tokens", type=FiniteRange(1, 1e7), help="Mean.  [300, or as fitted]")
@click.option(
    "--prompt-cv",
    type=FiniteRange(0, 20),
    default=1.0,
    show_default=True,
    help="Variation: deviation / mean.",
)
@click.option(
    "--output-cv",
    type=FiniteRange(0, 20),
    default=0.8,
    show_default=True,
    help="Variation: deviation / mean.",
)
@click.option(
    "--kv-tokens", type=click.IntRange(1, 10**12), help="KV cache of the engine; bounds the batch."
)
@click.option(
    "--most-seqs",
    type=click.IntRange(1, MAX_BATCH),
    default=256,
    show_default=True,
    help="Largest batch to try.",
)
@click.option("--in-use", type=click.IntRange(1, MAX_BATCH), help="max-num-seqs as it is now.")
@click.option(
    "--ttft-ms",
    type=FiniteRange(1, 3.6e6),
    default=500,
    show_default=True,
    help="Objective of the first token.",
)
@click.option("--itl-ms", type=FiniteRange(0.1, 3.6e6), help="Objective between tokens.")
@click.option("--e2e-s", type=FiniteRange(0.01, 86_400), help="Objective to the last token.")
@click.option(
    "--quantile",
    type=FiniteRange(0.5, 0.999),
    default=0.95,
    show_default=True,
    help="That objectives are held at.",
)
@click.option("--today-rps", type=FiniteRange(0.0001, 1e6), help="Rate now: its point is printed too.")
@click.option("--simulate/--no-simulate", default=True, show_default=True, help="Confirm by simulation.")
@click.option("--seconds", type=FiniteRange(60, 86_400), default=600, show_default=True, help="A rate.")
@click.option(
    "--seed", type=click.IntRange(0, 2**31), default=1, show_default=True, help="Of the simulation."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; seconds and requests/s.")
def goodput(as_json: bool, **asked: Any) -> None:
    """Say how many requests/s an engine may admit and how many at once, under p95 first token < 500 ms."""
    model = _model(asked)
    itl_ms = asked["itl_ms"]
    objectives = Objectives(
        ttft_s=asked["ttft_ms"] / 1000,
        itl_s=None if itl_ms is None else itl_ms / 1000,
        e2e_s=asked["e2e_s"],
    )
    most, notes = _most_batch(asked, model)
    quantile = asked["quantile"]
    advice = advise(model, objectives, most_batch=most, in_use=asked["in_use"], quantile=quantile)
    simulated: tuple[SimulatedPoint, ...] = ()
    if asked["simulate"] and advice.best is not None:
        simulated = _simulated(model, advice.best, objectives, asked)
    document = as_document(model, objectives, advice, simulated, quantile)
    document["overload"] = _overload(model, advice.best, objectives, asked) if simulated else None
    document["notes"] = notes
    document["today"] = _today(model, objectives, asked, advice)
    click.echo(json.dumps(document, indent=1, allow_nan=False) if as_json else as_text(document))


def _model(asked: dict[str, Any]) -> EngineModel:
    row = _fitted(asked["fit"], asked["engine"]) if asked["fit"] is not None else {}
    typed = {"alpha": asked["alpha_ms"], "m": asked["m_ms"], "m_past_knee": asked["m_past_ms"]}
    values = {name: value / 1000 for name, value in typed.items() if value is not None}
    if asked["knee"] is not None:
        values["knee"] = asked["knee"]
    if not row and "alpha" not in values and "m" not in values:  # a 70B in FP8 on eight H100
        row = {"alpha": 0.014, "m": 0.00065 + 22e-6 * 500 / 300, "knee": 12, "m_past_knee": 0.00094}
    merged = row | values
    alpha, slope = (_number(merged, name) for name in ("alpha", "m"))
    knee = _optional(merged, "knee")
    past = _optional(merged, "m_past_knee")
    prompt = asked["prompt_tokens"] or _optional(row, "prompt_tokens") or 500.0
    output = asked["output_tokens"] or _optional(row, "decode_steps_per_request") or 300.0
    extra = 0.0 if knee is None or past is None else past - slope
    model = EngineModel(
        StepCurve(alpha, slope, knee if extra else None, extra),
        prompt,
        output,
        asked["gamma_us"] / 1e6,
        asked["prompt_cv"],
        asked["output_cv"],
        source="fit" if asked["fit"] is not None else "typed",
    )
    if model.prefill_share > 1:
        own_ms = asked["gamma_us"] * prompt / output / 1000
        raise InvalidInput(
            f"prompts of {prompt:g} tokens at {asked['gamma_us']:g} us take {own_ms:.3g} ms "
            f"of the {1000 * slope:.3g} ms that a sequence adds to a step",
            field="--gamma-us",
            hint="Give fewer us a prompt token, or the slope with its prompts included",
        )
    return model


def fitted_model(path: Path, prompt_tokens: float, output_tokens: float) -> EngineModel:
    """Return the first engine with a curve in the JSON of `capacity fit`, at these mean lengths.

    The slope as fitted holds the prompts of the mix it was fitted on. Raises InvalidInput.
    """
    asked: dict[str, Any] = dict.fromkeys(("engine", "alpha_ms", "m_ms", "m_past_ms", "knee"))
    lengths = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    return _model(asked | lengths | {"fit": path, "gamma_us": 22.0, "prompt_cv": 1.0, "output_cv": 0.8})


def _fitted(path: Path, engine: str | None) -> dict[str, Any]:
    listed = json_value(read_input(path, MAX_BYTES)[0], path.name, MAX_BYTES)
    if not isinstance(listed, list):
        raise InvalidInput(f"{path} is not a list of engines", field="--fit", hint="capacity fit --json")
    rows = [cast("dict[str, Any]", row) for row in cast("list[Any]", listed) if isinstance(row, dict)]
    named = [row for row in rows if engine is None or str(row.get("engine")) == engine]
    with_curve = [row for row in named if row.get("alpha") is not None and row.get("m") is not None]
    if not with_curve:
        names = ", ".join(str(row.get("engine"))[:40] for row in rows[:10])
        raise InvalidInput(
            f"no engine {engine or ''} with a curve in {path.name}".replace("  ", " "),
            field="--engine",
            hint=f"The file has: {names}",
        )
    return with_curve[0]


def _number(row: dict[str, Any], name: str) -> float:
    value = _optional(row, name)
    if value is None:
        raise InvalidInput(f"{name} is not given", field=f"--{name}-ms", hint="Give --alpha-ms and --m-ms")
    return value


def _optional(row: dict[str, Any], name: str) -> float | None:
    value = row.get(name)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= LARGEST:
        raise InvalidInput(f"{name} is {value!r}"[:200], field="--fit", hint="Give a number")
    return float(value)


def _most_batch(asked: dict[str, Any], model: EngineModel) -> tuple[int, list[str]]:
    """Return the largest batch to try, and what bounds it."""
    most: int = asked["most_seqs"]
    tokens = asked["kv_tokens"]
    if tokens is None:
        return most, ["KV is not looked at: give --kv-tokens to bound the batch by the cache"]
    held = kv_tokens_per_sequence(model.prompt_tokens, model.output_tokens, model.output_cv)
    fits = max(1, int(KV_TARGET * tokens / held))
    said = f"{percent(KV_TARGET)} of {tokens:,} KV tokens hold {fits} sequences of {held:.0f}"
    return min(most, fits), [said]


def _simulated(
    model: EngineModel, best: Choice, objectives: Objectives, asked: dict[str, Any]
) -> tuple[SimulatedPoint, ...]:
    rate = best.best.rate if best.best is not None else best.saturation / 2
    rates = rates_around(rate, best.saturation)
    with progress(len(rates), "rates") as told:
        try:
            return simulate_curve(
                model,
                rates,
                best.batch,
                objectives,
                seconds=asked["seconds"],
                seed=asked["seed"],
                on_progress=told,
            )
        except KeyboardInterrupt:
            click.echo("stopped: no simulated curve", err=True)
            return ()


def _overload(
    model: EngineModel, best: Choice | None, objectives: Objectives, asked: dict[str, Any]
) -> dict[str, float] | None:
    """Return requests/s in time at half as much again as advised, without and with the quota."""
    if best is None or best.best is None:
        return None
    rate = OVERLOAD * best.best.rate
    runs = {"seconds": asked["seconds"], "seed": asked["seed"]}
    free = simulate_point(model, rate, best.batch, objectives, **runs)
    kept = simulate_point(
        model,
        rate,
        best.batch,
        objectives,
        admitted_rate=QUOTA_SHARE * best.best.rate,
        timeout_s=INTERACTIVE_TIMEOUT_S,
        **runs,
    )
    return {
        "rate": rate,
        "in_time": free.goodput,
        "in_time_with_admission": kept.goodput,
        "refused_share": kept.group.refused_share,
    }


def _today(
    model: EngineModel, objectives: Objectives, asked: dict[str, Any], advice: Advice
) -> dict[str, Any] | None:
    rate = asked["today_rps"]
    if rate is None:
        return None
    batch = asked["in_use"] or (advice.best.batch if advice.best is not None else asked["most_seqs"])
    found = point(model, rate, batch, objectives, asked["quantile"])
    shown = {"rate": rate, "batch": batch, "load_line_batch": load_line(model, rate)}
    if found is None:
        return shown | {"saturated": True}
    return shown | {
        "ttft_s": found.ttft_s,
        "itl_s": found.itl_s,
        "e2e_s": found.e2e_s,
        "goodput": found.goodput,
    }


def as_document(
    model: EngineModel,
    objectives: Objectives,
    advice: Advice,
    simulated: Sequence[SimulatedPoint],
    quantile: float,
) -> dict[str, Any]:
    """Return the answer as JSON-ready values."""
    curve = model.curve
    return {
        "curve": {
            "alpha": curve.intercept_s,
            "m": curve.slope_s,
            "knee": curve.knee,
            "m_past_knee": curve.last_slope_s,
            "source": model.source,
        },
        "prompt_tokens": model.prompt_tokens,
        "output_tokens": model.output_tokens,
        "objectives": {
            "quantile": quantile,
            "ttft_s": objectives.ttft_s,
            "itl_s": objectives.itl_s,
            "e2e_s": objectives.e2e_s,
        },
        "best": None if advice.best is None else _choice(advice.best),
        "choices": [_choice(choice) for choice in advice.choices],
        "advice": list(advice.words),
        "simulated": [
            {
                "rate": one.rate,
                "batch": one.batch,
                "throughput": one.throughput,
                "goodput": one.goodput,
                "ttft_p95_s": one.group.ttft_s.p95,
                "itl_p95_s": one.group.itl_s.p95,
                "e2e_p95_s": one.group.e2e_s.p95,
            }
            for one in simulated
        ],
    }


def _choice(choice: Choice) -> dict[str, Any]:
    best = choice.best
    return {
        "batch": choice.batch,
        "saturation": choice.saturation,
        "limited_by": choice.limited_by,
        "rate": None if best is None else best.rate,
        "goodput": None if best is None else best.goodput,
        "mean_batch": None if best is None else best.mean_batch,
        "ttft_s": None if best is None else best.ttft_s,
        "itl_s": None if best is None else best.itl_s,
        "e2e_s": None if best is None else best.e2e_s,
    }


def as_text(document: dict[str, Any]) -> str:
    """Return the answer as lines for people."""
    wanted = document["objectives"]
    quantile = f"p{100 * wanted['quantile']:g}"
    asked = [
        f"{words} within {wanted[key]:g} s"
        for key, words in (("ttft_s", "first token"), ("itl_s", "every token"), ("e2e_s", "last token"))
        if wanted[key] is not None
    ]
    lines = [f"{quantile}: {', '.join(asked)}; rates in requests/s of one engine", ""]
    lines.append(
        f"{'at once':>8} {'saturates':>10} {'admit':>8} {'in time':>8} {'TTFT':>8} {'ITL':>8} reached first"
    )
    best = document["best"]
    for row in document["choices"]:
        mark = "  <-" if best is not None and row["batch"] == best["batch"] else ""
        first, gap = (_ms(row[key]) for key in ("ttft_s", "itl_s"))
        lines.append(
            f"{row['batch']:>8} {row['saturation']:>10.2f} {_rate(row['rate'])} {_rate(row['goodput'])} "
            f"{first} {gap} {LIMIT_WORDS[row['limited_by']]}{mark}"
        )
    lines += ["", *document["advice"]]
    if document["today"] is not None:
        lines.append(_today_line(document["today"], quantile))
    if document["simulated"]:
        lines += [
            "",
            f"{'offered':>8} {'done':>8} {'in time':>8} {'TTFT p95':>8} {'ITL p95':>8}  simulated",
        ]
        lines += [
            f"{row['rate']:>8.2f} {row['throughput']:>8.2f} {row['goodput']:>8.2f} "
            f"{_ms(row['ttft_p95_s'])} {_ms(row['itl_p95_s'])}"
            for row in document["simulated"]
        ]
    over = document["overload"]
    if over is not None:
        lines.append(
            f"At {over['rate']:.2f} requests/s: {over['in_time']:.2f} in time without admission, "
            f"{over['in_time_with_admission']:.2f} with the quotas above, which refuses "
            f"{percent(over['refused_share'])}."
        )
    return "\n".join([*lines, *(f"! {note}" for note in document["notes"])])


def _today_line(today: dict[str, Any], quantile: str) -> str:
    if today.get("saturated"):
        return f"Today: {today['rate']:g} requests/s are more than {today['batch']} at once can serve."
    return (
        f"Today: {today['rate']:g} requests/s with {today['batch']} at once: "
        f"{today['goodput']:.2f} in time, {quantile} first token "
        f"{_ms(today['ttft_s']).strip()}, gap {_ms(today['itl_s']).strip()}"
    )


def _rate(value: float | None) -> str:
    return f"{'-':>8}" if value is None else f"{value:>8.2f}"


def _ms(value: float | None) -> str:
    return f"{'-':>8}" if value is None else f"{1000 * value:>5.0f} ms"
