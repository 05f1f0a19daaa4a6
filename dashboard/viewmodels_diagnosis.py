"""The diagnosis in words: verdict, utilization, and each finding with its numbers, chart and knob. Pure.

Prevents: a confidence without what it rests on, a knob nobody can find, and "nothing found" where nothing
could be looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from control.queries_fleet import HealthView
from control.queries_policy import GatewayState
from dashboard import charts, theme, words
from dashboard.charts import Figure, Line
from dashboard.times import Zone, age
from dashboard.viewmodels import NODE_PAGE, NOT_HEARD, POLICY_PAGE, Card
from dashboard.viewmodels_fleet import rho_heard, silence_note
from dashboard.words import Tone
from fleet.diagnosis import LOW_UTILIZATION
from fleet.diagnosis_evidence import Finding, Kind, Number, Series, Verdict

ESTIMATES_PAGE = "app_pages/estimates.py"
#: Where vLLM explains its launch flags.
FLAGS_URL = "https://docs.vllm.ai/en/latest/configuration/engine_args/"
LOOKS: dict[Kind, tuple[Tone, str]] = {
    Kind.CAPACITY: ("act", "capacity"),
    Kind.SCHEDULING: ("watch", "scheduling"),
    Kind.FAULT: ("act", "fault"),
    Kind.HEALTHY: ("good", "healthy"),
    Kind.UNKNOWN: ("unknown", "cannot say"),
}
SURE, PROBABLE = 0.85, 0.65
_FIELDS = {
    "policy": (POLICY_PAGE, "Open the policy"),
    "tenant": (POLICY_PAGE, "Open the tenant's quota"),
    "node": (NODE_PAGE, "Open the node"),
    "page": (ESTIMATES_PAGE, "Estimate what it costs"),
}


@dataclass(frozen=True, slots=True)
class FindingView:
    """One finding, ready to be drawn. `page` is a page of ours, `url` somebody else's."""

    key: str
    title: str
    tone: Tone
    word: str
    why: str
    numbers: dict[str, list[str]]
    figures: tuple[Figure, ...]
    knob: str
    expect: str
    page: str = ""
    link: str = ""
    query: dict[str, str] = field(default_factory=dict[str, str])
    url: str = ""
    surer_with: str = ""


def not_heard(gateways: Sequence[GatewayState]) -> str | None:
    """Return which gateways do not answer: what their callers meet is in no number; None where all do."""
    gone = [g for g in gateways if g.condition in NOT_HEARD]
    if not gone:
        return None
    heard = ["never heard" if g.age_s is None else f"heard {age(g.age_s)} ago" for g in gone[:3]]
    named = ", ".join(f"{g.name} ({said})" for g, said in zip(gone, heard, strict=False))
    more = f" and {len(gone) - 3} more" if len(gone) > 3 else ""
    return f"{named}{more}: no present word. What their callers meet is in no number below"


def tone_of(verdict: Verdict, *, is_partial: bool = False) -> Tone:
    """Return how a verdict looks; well is only what was judged of everything, and of the present."""
    tone = LOOKS[verdict.kind][0]
    return "unknown" if is_partial and tone == "good" else tone


def cards(
    verdict: Verdict, over: str = "", now: HealthView | None = None, *, is_partial: bool = False
) -> list[Card]:
    """Return the verdict and the numbers it rests on: means of the interval `over`, beside rho of `now`."""
    tone, word = tone_of(verdict, is_partial=is_partial), LOOKS[verdict.kind][1]
    said = {number.label: number.value for number in verdict.numbers}
    curve = verdict.utilization
    measured = said.get("first token, measured at")
    at = f"at the {measured}" if measured else ""
    where = "Over all requests of the interval; at the gateways it holds their queues and the way there."
    use = Card(
        "Use of the hardware",
        words.percent(None if curve is None else curve.p50, 0),
        "unknown" if curve is None else "median",
        "unknown" if curve is None else ("watch" if curve.p50 < LOW_UTILIZATION else "plain"),
        "no capacity is known" if curve is None else _spread(curve.p10, curve.p90),
        "Demand over what the engines could finish if no setting bound them, per engine and minute. A bad "
        f"tail with a median under {words.percent(LOW_UTILIZATION, 0)} is a scheduling problem.",
    )
    return [
        Card("Verdict", word.capitalize(), f"{len(verdict.findings)} found", tone),
        use,
        replace(
            _card(
                f"Rho{_of(over)}",
                said.get("rho"),
                "ratio",
                "Demand over capacity, settings that bind included.",
            ),
            note=_rho_now(now),
        ),
        replace(_card(f"First token p95{_of(over)}", said.get("first token, p95"), "s", where), note=at),
        replace(_card(f"First token p99{_of(over)}", said.get("first token, p99"), "s", where), note=at),
        _card(
            f"Refused for want of room{_of(over)}",
            said.get("refused"),
            "ratio",
            "At the gateways. What tenants' own limits refused is not in it: no capacity would have served "
            "that. The Fleet page counts both.",
        ),
    ]


def _of(over: str) -> str:
    return f", {over}" if over else ""


def _rho_now(now: HealthView | None) -> str:
    """Return what the Fleet page shows of the present: it moves ahead of a mean over minutes."""
    if now is None or now.is_stale or now.rho is None:
        return "now: not known"
    least = "" if silence_note(now) is None else "at least "
    return f"now {least}{words.ratio(rho_heard(now))}, as on the Fleet page"


def _spread(low: float, high: float) -> str:
    return f"p10 {words.percent(low, 0)}, p90 {words.percent(high, 0)}"


def _card(label: str, value: float | str | None, unit: str, help_text: str) -> Card:
    known = value is not None
    return Card(
        label,
        words.UNKNOWN if value is None else shown(Number(label, value, unit)),
        "measured" if known else "unknown",
        "plain" if known else "unknown",
        help=help_text,
    )


def shown(number: Number) -> str:
    """Return one figure with its unit; a dash where nobody knows."""
    value, unit = number.value, number.unit
    if value is None or isinstance(value, str):
        return words.UNKNOWN if value is None else value
    match unit:
        case "ratio" if number.label.lower().partition(",")[0] == "rho":
            return words.ratio(value)
        case "ratio":
            return words.percent(value, 1 if value < 0.1 else 0)
        case "s":
            return words.seconds(value)
        case "times":
            return f"{words.number(value)} \u00d7"
        case _:
            return f"{words.number(value)} {unit}".strip()


def finding(found: Finding, rank: int, zone: Zone) -> FindingView:
    """Return a finding with its confidence in words and a link to its knob."""
    tone: Tone = "act" if found.confidence >= SURE else "watch"
    sure = (
        "sure" if found.confidence >= SURE else "probable" if found.confidence >= PROBABLE else "possible"
    )
    kind, _, target = found.knob_link.partition(":")
    page, link = _FIELDS.get(kind, ("", ""))
    return FindingView(
        key=f"finding_{rank}",
        title=f"{rank}. {found.title[:1].upper()}{found.title[1:]}",
        tone=tone,
        word=f"{sure}, {words.percent(found.confidence, 0)}",
        why=found.why,
        numbers={
            "evidence": [number.label for number in found.numbers],
            "value": [shown(number) for number in found.numbers],
        },
        figures=tuple(figure for s in found.series if (figure := line(s, zone)) is not None),
        knob=found.knob,
        expect=found.expect,
        page=page,
        link=f"{link}: {target}" if kind in ("policy", "node", "tenant") else link,
        query={"node": target} if kind == "node" else {},
        url=FLAGS_URL if kind == "flag" else "",
        surer_with=", ".join(found.missing),
    )


def findings(verdict: Verdict, zone: Zone) -> list[FindingView]:
    """Return every finding in its rank."""
    return [finding(found, rank, zone) for rank, found in enumerate(verdict.findings, 1)]


def utilization_figure(verdict: Verdict, zone: Zone) -> Figure | None:
    """Return utilization over the interval with the line below which hardware is not what lacks."""
    curve = verdict.utilization
    if curve is None or curve.series is None:
        return None
    return line(
        curve.series,
        zone,
        limit=(LOW_UTILIZATION, f"under {words.percent(LOW_UTILIZATION, 0)}: not for lack of hardware"),
    )


def line(series: Series, zone: Zone, *, limit: tuple[float, str] | None = None) -> Figure | None:
    """Return a series as a small chart on equal steps; a round that is missing is a gap."""
    if len(series.points) < 2:
        return None
    gaps = [b - a for (a, _), (b, _) in zip(series.points, series.points[1:], strict=False) if b > a]
    if not gaps:
        return None
    step_s, (first_s, _), (last_s, _) = min(gaps), series.points[0], series.points[-1]
    values: list[float | None] = [None] * (round((last_s - first_s) / step_s) + 1)
    for at_s, value in series.points:
        values[min(len(values) - 1, round((at_s - first_s) / step_s))] = value
    known = [value for value in values if value is not None]
    summary = f"{series.name}: between {min(known):.3g} and {max(known):.3g}" if known else series.name
    return charts.timeline(
        [datetime.fromtimestamp(first_s + n * step_s, UTC) for n in range(len(values))],
        [Line(series.name, values, theme.BLUE)],
        zone,
        title=f"{series.name[:1].upper()}{series.name[1:]}",
        unit=series.unit,
        summary=summary,
        limit=limit,
        height_px=200,
    )


def cannot_tell(verdict: Verdict) -> list[str]:
    """Return what could not be looked for, and why."""
    return [f"Cannot tell {said}" if ":" in said else said for said in verdict.cannot_tell]


def judged(when: str, over: str) -> str:
    """Return of what time a verdict is: it may differ from the Fleet page, which shows the newest round."""
    return (
        f"Judged at {when} over the last {over}: what began or ended minutes ago weighs by its time. The "
        "Fleet page shows the newest minute."
    )
