"""Sizing in words: what fits, what stops it, which flags, what nodes run instead. Pure.

Memory in GB (1e9 bytes), times in ms. Prevents: a bound read as a forecast, and unknown read as equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard import theme, words
from dashboard.charts import Figure, rounded
from dashboard.times import UNKNOWN
from dashboard.viewmodels import Card
from fleet.sizing import Choice, Sizing
from fleet.sizing_flags import Launch, differences
from fleet.sizing_roofline import EFFICIENCY, Roofline

_BATCHES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


def headline(found: Sizing) -> tuple[words.Tone, str]:
    """Return the answer in one sentence."""
    name = f"{found.shape.architecture}, {found.parameters / 1e9:.1f} B parameters"
    on = f"{found.gpus} x {found.gpu.title}"
    if found.best is None:
        return "act", f"{name}: no spread over {on} holds one request of the longest context."
    if found.best.batch == 0:
        why = found.best.why_none(found.demand.token_s)
        return "watch", f"{name}: fits {on}, but no spread serves: {why}."
    return "good", f"{name}: fits {on} as {found.best.layout.words}."


def cards(found: Sizing) -> list[Card]:
    """Return the best spread's numbers; none if nothing fits."""
    best = found.best
    if best is None or best.memory is None or best.step is None or best.first is None:
        return []
    memory, low = best.memory, EFFICIENCY[0]
    cache = memory.tokens
    return [
        Card(
            "Weights",
            f"{memory.weight_bytes / 1e9:.1f} GB",
            "a GPU",
            "plain",
            f"of {memory.usable_bytes / 1e9:.1f} usable; {found.stored_bytes / 1e9:.0f} GB in all",
        ),
        Card(
            "KV cache",
            f"{cache.expected:,.0f}",
            "tokens a replica",
            "plain",
            f"{cache.low:,.0f} to {cache.high:,.0f}",
            "The band is what engines were seen to take for work beside weights and cache.",
        ),
        Card("Largest batch, sequences", _batch(best), "a replica", "plain", _batch_text(found, best)),
        Card(
            "Token",
            f"{best.step.total_s / low * 1e3:.1f} ms",
            "a plan",
            "good" if best.batch else "watch",
            f"bound {best.step.total_s * 1e3:.1f} ms by {best.step.limit}; "
            f"allowed {found.demand.token_s * 1e3:.0f} ms",
        ),
        Card(
            "First token",
            f"{best.first.total_s / low * 1e3:.0f} ms",
            "a plan, no queue",
            "good" if best.first.total_s / low <= found.demand.ttft_s else "watch",
            f"bound {best.first.total_s * 1e3:.0f} ms by {best.first.limit}; "
            f"allowed {found.demand.ttft_s * 1e3:.0f} ms",
        ),
        Card(
            "Output",
            f"{best.tokens_per_s:,.0f}" if best.batch else UNKNOWN,
            "tokens/s, a plan" if best.batch else "no batch is in time",
            "plain",
            f"at {words.percent(low, 0)} of the bound",
        ),
    ]


def _batch(choice: Choice) -> str:
    return f"{choice.batch_a_replica}" if choice.batch else "none"


def _batch_text(found: Sizing, best: Choice) -> str:
    if not best.batch:
        return best.why_none(found.demand.token_s)
    replicas = best.layout.dp
    together = f"{best.batch} on {replicas} replicas together; " if replicas > 1 else ""
    return f"{together}stopped by {best.batch_limit}"


def choice_rows(found: Sizing) -> dict[str, list[Any]]:
    """Return the spreads an engine takes, best first."""
    rows = [_choice_row(found, choice) for choice in found.choices if choice.is_possible]
    return {name: [row[name] for row in rows] for name in _COLUMNS}


def refused_rows(found: Sizing) -> dict[str, list[Any]]:
    """Return the spreads that cannot be, each with its reason."""
    refused = [choice for choice in found.choices if not choice.is_possible]
    return {"spread": [c.layout.words for c in refused], "reason": [c.refused for c in refused]}


_COLUMNS = ("spread", "batch", "limit", "step", "rate", "cache", "weights", "verdict")


def _choice_row(found: Sizing, choice: Choice) -> dict[str, str]:
    row = dict.fromkeys(_COLUMNS, UNKNOWN) | {"spread": choice.layout.words}
    if choice.memory is None or choice.step is None:
        return row
    fine = "none" if choice.batch == 0 else "best" if choice is found.best else "possible"
    return row | {
        "batch": _batch(choice),
        "limit": choice.batch_limit,
        "step": f"{choice.step.total_s * 1e3:.1f} ms",
        "rate": f"{choice.tokens_per_s:,.0f}" if choice.batch else UNKNOWN,
        "cache": f"{choice.memory.tokens.expected:,.0f}",
        "weights": f"{choice.memory.weight_bytes / 1e9:.1f}",
        "verdict": fine,
    }


def minds(found: Sizing) -> list[str]:
    """Return what is to be minded of which spreads, one line a matter; none of those without."""
    told: dict[str, list[str]] = {}
    for choice in (c for c in found.choices if c.is_possible and c.memory is not None):
        reasons = () if choice.batch else (choice.why_none(found.demand.token_s),)
        for matter in (*reasons, *choice.notes):
            told.setdefault(matter, []).append(choice.layout.words)
    return [f"{', '.join(spreads)}: {matter}." for matter, spreads in told.items()]


def command(found: Sizing) -> str:
    """Return the launch command, one flag a line."""
    return " \\\n  ".join(["vllm serve MODEL", *(flag.words for flag in found.flags)])


def flag_rows(found: Sizing) -> dict[str, list[Any]]:
    """Return each flag with its reason."""
    return {"flag": [f.words for f in found.flags], "why": [f.why for f in found.flags]}


def difference_rows(found: Sizing, runs: Mapping[str, Launch]) -> dict[str, list[Any]]:
    """Return what each node runs against the suggestion, differences first."""
    if found.best is None or found.best.memory is None:
        return {}
    tokens = found.best.memory.tokens.expected
    listed = [(node, d) for node, launch in runs.items() for d in differences(found.flags, launch, tokens)]
    order = {True: 0, None: 1, False: 2}
    listed.sort(key=lambda item: order[item[1].differs])
    said = {True: "differs", False: "as suggested", None: "unknown"}
    return {
        "node": [node for node, _ in listed],
        "setting": [d.setting for _, d in listed],
        "runs": [d.runs or UNKNOWN for _, d in listed],
        "suggested": [d.suggested for _, d in listed],
        "verdict": [said[d.differs] for _, d in listed],
    }


def batch_figure(found: Sizing) -> Figure | None:
    """Return time for a token against the batch of one replica; None if nothing fits."""
    best = found.best
    if best is None:
        return None
    roofline = Roofline.of(found.shape, found.gpu, best.layout, found.settings)
    batches = [b for b in _BATCHES if b <= max(8, 2 * best.batch // best.layout.dp)]
    bound = [roofline.decode(b, found.demand.mean_context).total_s * 1e3 for b in batches]
    plan = [value / EFFICIENCY[0] for value in bound]
    allowed = found.demand.token_s * 1e3
    shared: dict[str, Any] = {"type": "scatter", "mode": "lines+markers", "x": batches}
    series = (("plan", plan, theme.BLUE, "solid"), ("bound", bound, theme.GREEN, "dot"))
    data: list[dict[str, Any]] = [
        {
            **shared,
            "name": name,
            "y": [rounded(v) for v in values],
            "line": {"color": colour, "width": 2, "dash": dash},
            "hovertemplate": f"batch %{{x}}: %{{y:.3~g}} ms<extra>{name}</extra>",
        }
        for name, values, colour, dash in series
    ]
    data.append(
        {
            "type": "scatter",
            "mode": "lines",
            "name": "allowed",
            "x": [batches[0], batches[-1]],
            "y": [rounded(allowed)] * 2,
            "line": {"color": theme.RED, "width": 1.5, "dash": "dash"},
        }
    )
    layout = {
        "title": {"text": "Token by batch of a replica, ms", "font": {"size": 14}, "x": 0},
        "margin": {"l": 52, "r": 12, "t": 34, "b": 70},
        "xaxis": {"title": {"text": "sequences at once"}},
        "yaxis": {"rangemode": "tozero"},
        "legend": {"orientation": "h", "y": -0.3, "x": 0, "yanchor": "top"},
        "uirevision": "sizing",
    }
    last = f"{plan[-1]:.1f} ms at {batches[-1]}"
    summary = f"A token takes {plan[0]:.1f} ms alone and {last}; {allowed:.0f} are allowed."
    return Figure({"data": data, "layout": layout}, summary, 300)
