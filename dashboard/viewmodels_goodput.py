"""Goodput in words and curves: what to admit, how many at once, where today stands. Pure.

Rates are requests/s of one engine, times ms or s. Prevents: an advised rate without the objective it
keeps, and a measured point drawn on the curve of another batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from control.queries_goodput import FittedEngine, Today
from dashboard import theme, words
from dashboard.charts import Figure, rounded
from dashboard.times import UNKNOWN
from dashboard.viewmodels import Card
from fleet.goodput import LIMIT_WORDS, Advice, Choice, EngineModel, Point, advise, point
from fleet.replay_outcomes import Objectives

TYPED = "typed"
_POINTS = 24
#: Of each rate on the page: enough for a p95, short enough to wait for.
SIMULATED_S = 300
KEPT = 64  # answers a process keeps; each is asked for again at every click of the page


@dataclass(frozen=True, slots=True)
class Asked:
    """What the page was asked."""

    model: EngineModel
    objectives: Objectives
    quantile: float
    most_batch: int
    in_use: int | None
    today_rate: float | None  # what comes
    today_served: float | None  # what of it is served: the first token is theirs
    today_ttft_s: float | None  # measured; None: not known


@lru_cache(maxsize=KEPT)
def _advised(
    model: EngineModel, objectives: Objectives, most_batch: int, in_use: int | None, quantile: float
) -> Advice:
    return advise(model, objectives, most_batch=most_batch, in_use=in_use, quantile=quantile)


def advised(asked: Asked) -> Advice:
    """Return what `fleet.goodput.advise` says, kept: a third of a second of processor, for each click else.

    Raises InvalidInput as it does.
    """
    return _advised(asked.model, asked.objectives, asked.most_batch, asked.in_use, asked.quantile)


def names(engines: Sequence[FittedEngine]) -> dict[str, FittedEngine | None]:
    """Return what can be chosen: engines with a curve, and a typed one."""
    return {engine.name: engine for engine in engines} | {TYPED: None}


def measured_words(engine: FittedEngine, now: Today | None) -> str:
    """Return where the numbers come from."""
    rate = "rate now not known" if now is None else f"now {words.rate(now.arrival_rate)}"
    first = words.quantile(now.ttft_p95) if now is not None else UNKNOWN
    return (
        f"Fitted to {engine.name}, grade {engine.grade or UNKNOWN}; {rate}, p95 of the first token {first}."
    )


def kv_words(held: int | None) -> str:
    """Return what the KV cache holds of the mix; `held` sequences, None where nobody knows."""
    if held is None:
        return "The KV cache is not looked at: enter at most what it holds."
    return f"The KV cache holds {words.count(held)} sequences of this engine's mix: no more are tried."


def headline(asked: Asked, advice: Advice) -> tuple[words.Tone, str]:
    """Return the answer in one sentence."""
    best = advice.best
    if best is None or best.best is None:
        return "act", advice.words[0]
    rate, now = best.best.rate, asked.today_rate
    said = f"Admit {rate:.2f} requests/s an engine, {best.batch} at once"
    if asked.in_use is not None and asked.in_use != best.batch:
        said += f" instead of {asked.in_use}"
    if now is None:
        return "plain", f"{said}."
    if now > rate:
        return "act", f"{said}: {now:.2f} come now, {now - rate:.2f} too many."
    return "good", f"{said}: {now:.2f} come now, there is room for {rate - now:.2f} more."


def cards(asked: Asked, advice: Advice) -> list[Card]:
    """Return the best choice's numbers; none when no rate keeps the objectives."""
    best = advice.best
    if best is None or best.best is None:
        return []
    found, name = best.best, f"p{100 * asked.quantile:g}"
    return [
        Card(
            "Admit", f"{found.rate:.2f}", "req/s an engine", "plain", f"saturates at {best.saturation:.2f}"
        ),
        Card("At once", str(best.batch), "sequences", "plain", f"{found.mean_batch:.0f} on average"),
        Card("First token", words.seconds(found.ttft_s), name, "plain", ""),
        Card("Between tokens", words.seconds(found.itl_s), name, "plain", ""),
        Card("Last token", words.seconds(found.e2e_s), name, "plain", ""),
        Card("In time", f"{found.goodput:.2f}", "req/s", "plain", words.percent(found.good_share)),
    ]


def choice_rows(asked: Asked, advice: Advice) -> dict[str, list[Any]]:
    """Return a row for every batch tried."""
    rows = [_choice(asked, advice, choice) for choice in advice.choices]
    return {name: [row[name] for row in rows] for name in rows[0]}


def _choice(asked: Asked, advice: Advice, choice: Choice) -> dict[str, str]:
    best = choice.best
    marks = ["advised"] if choice is advice.best else []
    marks += ["in use"] if choice.batch == asked.in_use else []
    return {
        "batch": str(choice.batch),
        "rate": UNKNOWN if best is None else f"{best.rate:.2f}",
        "goodput": UNKNOWN if best is None else f"{best.goodput:.2f}",
        "ttft": words.seconds(best.ttft_s if best else None),
        "itl": words.seconds(best.itl_s if best else None),
        "last": words.seconds(best.e2e_s if best else None),
        "saturation": f"{choice.saturation:.2f}",
        "limit": LIMIT_WORDS[choice.limited_by],
        "verdict": ", ".join(marks),
    }


def latency_figure(asked: Asked, advice: Advice, simulated: Sequence[dict[str, Any]] = ()) -> Figure | None:
    """Return the first token against the rate, by batch, with the objective and today's point."""
    best = advice.best
    shown = {} if best is None else {best.batch: "advised"}
    if asked.in_use is not None:
        shown.setdefault(asked.in_use, "in use")
    if not shown:
        return None
    data = [
        _curve(asked, batch, word, theme.SERIES[place]) for place, (batch, word) in enumerate(shown.items())
    ]
    if simulated:
        data.append(_simulated(simulated))
    data += _today(asked)
    bound = asked.objectives.ttft_s
    layout: dict[str, Any] = {
        "title": {"text": f"First token at p{100 * asked.quantile:g}, ms", "font": {"size": 13}, "x": 0},
        "margin": {"l": 52, "r": 12, "t": 34, "b": 96},
        "xaxis": {"title": {"text": "requests/s of one engine"}, "rangemode": "tozero"},
        "yaxis": {"type": "log", "dtick": 1},
        "legend": {"orientation": "h", "y": -0.36, "x": 0, "yanchor": "top"},
        "uirevision": "goodput",
        "shapes": [],
    }
    if bound is not None:
        layout["shapes"].append(_line(1000 * bound, is_level=True))
    if best is not None and best.best is not None:
        layout["shapes"].append(_line(best.best.rate, is_level=False))
    said = "" if asked.today_rate is None else f" Today: {asked.today_rate:.2f} requests/s."
    batches = ", ".join(f"{batch} at once ({word})" for batch, word in shown.items())
    return Figure({"data": data, "layout": layout}, f"First token against the rate: {batches}.{said}", 340)


def simulation(asked: Asked, advice: Advice) -> tuple[str, ...]:
    """Return the arguments of the command that simulates the advised batch at nine rates."""
    model, curve = asked.model, asked.model.curve
    best = asked.most_batch if advice.best is None else advice.best.batch
    flags: dict[str, float | int | None] = {
        "--alpha-ms": 1000 * curve.intercept_s,
        "--m-ms": 1000 * curve.slope_s,
        "--knee": curve.knee,
        "--m-past-ms": None if curve.knee is None else 1000 * curve.last_slope_s,
        "--gamma-us": 1e6 * model.prompt_s_per_token,
        "--prompt-tokens": model.prompt_tokens,
        "--output-tokens": model.output_tokens,
        "--ttft-ms": 1000 * (asked.objectives.ttft_s or 0.5),
        "--itl-ms": None if asked.objectives.itl_s is None else 1000 * asked.objectives.itl_s,
        "--e2e-s": asked.objectives.e2e_s,
        "--quantile": asked.quantile,
        "--most-seqs": best,
        "--seconds": SIMULATED_S,
    }
    given = [(flag, repr(value)) for flag, value in flags.items() if value is not None]
    return ("goodput", *(part for pair in given for part in pair))


def overload_words(document: dict[str, Any]) -> str:
    """Return what half as much again as advised comes to."""
    over = document["overload"]
    if over is None:
        return "Simulated."
    return (
        f"Simulated at {over['rate']:.2f} requests/s, half as much again: {over['in_time']:.2f} in time "
        f"without admission, {over['in_time_with_admission']:.2f} with the quota, which refuses "
        f"{words.percent(over['refused_share'], 0)}."
    )


@lru_cache(maxsize=KEPT)
def _points(
    model: EngineModel, batch: int, objectives: Objectives, quantile: float
) -> tuple[Point | None, ...]:
    last = model.throughput(batch)
    rates = [last * (place + 1) / _POINTS * 0.998 for place in range(_POINTS)]
    return tuple(point(model, rate, batch, objectives, quantile) for rate in rates)


def _curve(asked: Asked, batch: int, word: str, colour: str) -> dict[str, Any]:
    found = _points(asked.model, batch, asked.objectives, asked.quantile)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"{batch} at once, {word}",
        "x": [rounded(one.rate) for one in found if one is not None],
        "y": [rounded(1000 * one.ttft_s) for one in found if one is not None],
        "line": {"color": colour, "width": 2},
        "hovertemplate": "%{x:.2f} req/s: %{y:.3~g} ms<extra>%{fullData.name}</extra>",
    }


def _simulated(points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    known = [one for one in points if one["ttft_p95_s"] is not None]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "simulated, p95",
        "x": [rounded(one["rate"]) for one in known],
        "y": [rounded(1000 * one["ttft_p95_s"]) for one in known],
        "marker": {"color": theme.GREEN, "size": 8, "symbol": "circle-open", "line": {"width": 2}},
        "hovertemplate": "%{x:.2f} req/s: %{y:.3~g} ms<extra>simulated</extra>",
    }


def _today(asked: Asked) -> list[dict[str, Any]]:
    """Return today's point: as measured, else where the curve of what is in use has it."""
    rate, first_s = asked.today_served or asked.today_rate, asked.today_ttft_s
    name = "today, measured"
    if rate is None:
        return []
    if first_s is None:
        found = point(asked.model, rate, asked.in_use or asked.most_batch, asked.objectives, asked.quantile)
        if found is None:
            return []
        first_s, name = found.ttft_s, "today, as the curve has it"
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": [rounded(rate)],
            "y": [rounded(1000 * first_s)],
            "marker": {"color": theme.RED, "size": 13, "symbol": "diamond"},
            "hovertemplate": "%{x:.2f} req/s: %{y:.3~g} ms<extra>%{fullData.name}</extra>",
        }
    ]


def _line(at: float, *, is_level: bool) -> dict[str, Any]:
    own, other = ("y", "x") if is_level else ("x", "y")
    return {
        "type": "line",
        f"{other}ref": "paper",
        f"{other}0": 0,
        f"{other}1": 1,
        f"{own}0": at,
        f"{own}1": at,
        "line": {"color": theme.RED if is_level else theme.PURPLE, "width": 1.5, "dash": "dash"},
    }


def rate_figure(advice: Advice) -> Figure:
    """Return what each batch may admit and what of it is in time."""
    able = [(choice.batch, choice.best) for choice in advice.choices if choice.best is not None]
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": "in time, at the most each may admit",
            "x": [batch for batch, _ in able],
            "y": [rounded(best.goodput) for _, best in able],
            "line": {"color": theme.BLUE, "width": 2},
            "hovertemplate": "%{x} at once: %{y:.3~g} req/s<extra></extra>",
        },
        {
            "type": "scatter",
            "mode": "lines",
            "name": "saturation",
            "x": [choice.batch for choice in advice.choices],
            "y": [rounded(choice.saturation) for choice in advice.choices],
            "line": {"color": theme.ORANGE, "width": 2, "dash": "dot"},
            "hovertemplate": "%{x} at once: %{y:.3~g} req/s<extra>saturation</extra>",
        },
    ]
    layout: dict[str, Any] = {
        "title": {"text": "Requests/s of one engine by batch", "font": {"size": 13}, "x": 0},
        "margin": {"l": 52, "r": 12, "t": 34, "b": 96},
        "xaxis": {"title": {"text": "sequences at once"}, "type": "log", "dtick": 0.30103},
        "yaxis": {"rangemode": "tozero"},
        "legend": {"orientation": "h", "y": -0.36, "x": 0, "yanchor": "top"},
        "uirevision": "goodput_batches",
        "shapes": [],
    }
    best = advice.best
    said = (
        "No batch keeps the objectives." if best is None else f"Most is in time with {best.batch} at once."
    )
    return Figure({"data": data, "layout": layout}, said, 340)
