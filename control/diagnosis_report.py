"""A verdict as JSON and as lines for people: one form for the CLI and the API.

Numbers keep their units; what is unknown is null or "unknown", never 0. Prevents: two places that word the
same finding differently.
"""

from __future__ import annotations

from fleet.diagnosis_evidence import Curve, Finding, Kind, Number, Series, Verdict
from fleet.percentages import percent

#: Exit code of `rhodeck diagnose` by verdict.
EXIT_CODES = {Kind.HEALTHY: 0, Kind.SCHEDULING: 1, Kind.CAPACITY: 1, Kind.FAULT: 1, Kind.UNKNOWN: 3}


def as_json(verdict: Verdict) -> dict[str, object]:
    """Return the JSON form of a verdict."""
    return {
        "verdict": verdict.kind.value,
        "sentence": verdict.sentence,
        "utilization": None if verdict.utilization is None else _curve(verdict.utilization),
        "numbers": [_number(n) for n in verdict.numbers],
        "findings": [_finding(f) for f in verdict.findings],
        "cannot_tell": list(verdict.cannot_tell),
    }


def _curve(curve: Curve) -> dict[str, object]:
    return {
        "p10": curve.p10,
        "p50": curve.p50,
        "p90": curve.p90,
        "samples": curve.samples,
        "series": None if curve.series is None else _series(curve.series),
    }


def _number(number: Number) -> dict[str, object]:
    return {"label": number.label, "value": number.value, "unit": number.unit}


def _series(series: Series) -> dict[str, object]:
    return {"name": series.name, "unit": series.unit, "points": [list(point) for point in series.points]}


def _finding(finding: Finding) -> dict[str, object]:
    return {
        "cause": finding.cause.value,
        "confidence": round(finding.confidence, 2),
        "title": finding.title,
        "why": finding.why,
        "numbers": [_number(n) for n in finding.numbers],
        "subjects": list(finding.subjects),
        "knob": finding.knob,
        "knob_link": finding.knob_link,
        "expect": finding.expect,
        "missing": list(finding.missing),
        "series": [_series(s) for s in finding.series],
    }


def as_text(verdict: Verdict) -> str:
    """Return the verdict as lines for people."""
    lines = [verdict.sentence]
    if verdict.utilization is not None:
        u = verdict.utilization
        lines.append(
            f"use of the hardware   p10 {percent(u.p10)}, p50 {percent(u.p50)}, p90 {percent(u.p90)}"
        )
    lines += [f"{n.label:21} {shown(n)}" for n in verdict.numbers if n.value is not None]
    for rank, finding in enumerate(verdict.findings, 1):
        lines += [
            "",
            f"{rank}. {finding.title} ({finding.cause.value}, confidence {percent(finding.confidence)})",
        ]
        lines.append(f"   {finding.why}")
        lines += [f"   {n.label}: {shown(n)}" for n in finding.numbers]
        lines += [f"   do: {finding.knob}", f"   expect: {finding.expect}"]
        lines += [f"   surer with: {name}" for name in finding.missing]
    if verdict.cannot_tell:
        lines += ["", *(f"cannot tell: {words}" for words in verdict.cannot_tell)]
    return "\n".join(lines)


def shown(number: Number) -> str:
    """Return a number in words: ratios as percent, seconds below one as ms, unknown as such."""
    value = number.value
    if value is None:
        return "unknown"
    if isinstance(value, str):
        return value
    if number.unit == "ratio":
        return f"{percent(value, 1)}" if value < 0.1 else f"{percent(value)}"
    if number.unit == "s" and value < 1:
        return f"{value * 1000:.0f} ms"
    digits = f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{digits} {number.unit}".rstrip()
