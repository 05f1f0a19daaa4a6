"""What cases of a study did to the traffic, and who notices: size classes, tiers, tenants.

Times are seconds, shares ratios. Prevents: one number for everybody, behind which somebody waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleet.percentages import percent
from fleet.replay_outcomes import Group

#: A change below this is not worth a line.
NOTICED = 0.1


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What one case did to the traffic."""

    name: str
    what: str
    all: Group
    by_class: Mapping[str, Group]
    by_tenant: Mapping[str, Group]
    by_tier: Mapping[str, Group]
    tokens_per_s: float  # output tokens of completed requests over the whole run
    gap_p50_s: float | None  # between two tokens, over all tokens
    gap_p99_s: float | None
    gap_p999_s: float | None
    gap_max_s: float | None
    preemptions: int
    is_saturated: bool = False  # everything came at once: only the throughput means anything


@dataclass(frozen=True, slots=True)
class Notice:
    """What changes with one case, for whom; `lines` is empty when nobody would notice."""

    case: str
    against: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """A comparison with its results and what each tier, tenant and size class notices."""

    key: str
    question: str
    results: tuple[CaseResult, ...]
    notices: tuple[Notice, ...]


def notices(results: Sequence[CaseResult]) -> tuple[Notice, ...]:
    """Return what each size class, tier and tenant notices of each case, against the first."""
    base = results[0]
    return tuple(Notice(case.name, base.name, _lines(base, case)) for case in results[1:])


def _lines(base: CaseResult, case: CaseResult) -> tuple[str, ...]:
    found: list[str] = []
    if base.tokens_per_s > 0 and abs(case.tokens_per_s / base.tokens_per_s - 1) >= NOTICED:
        times = case.tokens_per_s / base.tokens_per_s
        found.append(f"fleet: {times:.1f} x the output tokens/s")
    if case.is_saturated:
        return tuple(found)
    gap = _change(base.gap_max_s, case.gap_max_s)
    if gap:
        found.append(f"everybody: longest gap between tokens {gap}")
    for kind, before, after in (
        ("everybody", {"": base.all}, {"": case.all}),
        ("size ", base.by_class, case.by_class),
        ("tier ", base.by_tier, case.by_tier),
        ("tenant ", base.by_tenant, case.by_tenant),
    ):
        for name, group in before.items():
            said = _group_change(group, after[name]) if name in after else ""
            if said:
                found.append(f"{kind}{name}: {said}")
    return tuple(found)


def _group_change(before: Group, after: Group) -> str:
    words: list[str] = []
    first = _change(before.ttft_s.p99, after.ttft_s.p99)
    if first:
        words.append(f"p99 of the first token {first}")
    if abs(after.refused_share - before.refused_share) >= 0.01:
        words.append(
            f"{percent(after.refused_share, 1)} refused instead of {percent(before.refused_share, 1)}"
        )
    if abs(after.good_share - before.good_share) >= 0.02:
        words.append(
            f"{percent(after.good_share)} within the objectives instead of {percent(before.good_share)}"
        )
    return ", ".join(words)


def _change(before: float | None, after: float | None) -> str:
    if not before or after is None or abs(after / before - 1) < NOTICED:
        return ""
    return f"{seconds(after)} instead of {seconds(before)} ({percent(after / before - 1, is_signed=True)})"


def seconds(value: float) -> str:
    """Return a time for people."""
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.1f} s"
